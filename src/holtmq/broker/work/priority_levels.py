"""Messages by priority: higher first, first-in-first-out within a level.

Owns: the levels of one queue. A level is created on first use. There is no index of occupied levels, so a
push is one lookup and one append; a take scans the levels from the top, once per call.
Must not touch: files, clocks.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Final

from holtmq.broker.message import Message
from holtmq.broker.work.paging import Pager
from holtmq.broker.work.spilled_run import Missing
from holtmq.broker.work.spilling_fifo import RUN, SpillingFifo

_SAMPLE: Final = 8
_seq: Final = attrgetter("seq")


class _ByPriority(dict[int, SpillingFifo]):
    """The fifo for each message priority. A missing one is found and kept; each level has one."""

    __slots__ = ("from_top", "levels", "top")

    def __init__(self, top: int) -> None:
        super().__init__()
        self.top = top  # higher priorities count as this level
        self.levels: dict[int, SpillingFifo] = {}
        self.from_top: list[SpillingFifo] = []

    def __missing__(self, priority: int) -> SpillingFifo:
        fifo = self[priority] = self.of_level(min(priority, self.top))
        return fifo

    def of_level(self, level: int) -> SpillingFifo:
        """The fifo of this level."""
        fifo = self.levels.get(level)
        if fifo is None:
            fifo = self.levels[level] = SpillingFifo()
            self.from_top[:] = [self.levels[used] for used in sorted(self.levels, reverse=True)]
        return fifo


class Levels:
    """The fifos of a priority queue, with the interface of a ``SpillingFifo``."""

    __slots__ = ("_from_top", "by_priority", "fifos", "sheds_highest", "top")

    def __init__(self, top: int, sheds_highest: bool = False) -> None:
        self.sheds_highest = sheds_highest
        self.top = top
        self.by_priority = _ByPriority(top)
        self.fifos = self.by_priority.levels
        self._from_top = self.by_priority.from_top

    def __len__(self) -> int:
        return sum(map(len, self.fifos.values()))

    @property
    def in_memory(self) -> int:
        """Messages that are in memory."""
        return sum(fifo.in_memory for fifo in self.fifos.values())

    @property
    def unreadable(self) -> list[Missing]:
        """The errors that ``take_unreadable`` will return; a copy."""
        return [error for fifo in self._from_top for error in fifo.unreadable]

    def take_unreadable(self) -> list[Missing]:
        """Read errors since the last call; their messages were skipped."""
        return [error for fifo in self._from_top for error in fifo.take_unreadable()]

    def level_of(self, priority: int) -> int:
        """The level for messages of this priority."""
        return priority if priority < self.top else self.top

    def push(self, message: Message) -> None:
        """Append to the message's level. (The publish path inlines this.)"""
        self.by_priority[message.priority].inbox.append(message)

    def take(self, limit: int, pager: Pager) -> list[Message]:
        """Remove and return up to ``limit`` messages, highest level first."""
        taken: list[Message] = []
        for fifo in self._from_top:
            while len(taken) < limit and fifo:  # a fifo returns at most what it has read back
                taken += fifo.take(limit - len(taken), pager)
        return taken

    def shed(self, pager: Pager) -> Message | None:
        """Remove and return the oldest message of the lowest occupied level, or of the highest."""
        for _, fifo in self.by_level(highest_first=self.sheds_highest):
            return fifo.shed(pager)
        return None

    def expired(
        self, deadline: Callable[[Message], int], now_ms: int, pager: Pager, limit: int
    ) -> list[Message]:
        """Remove and return messages from the head of any level whose deadline has passed."""
        gone: list[Message] = []
        for _, fifo in self.by_level(highest_first=True):
            gone += fifo.expired(deadline, now_ms, pager, limit - len(gone))
        return gone

    def next_deadline(self, deadline: Callable[[Message], int], pager: Pager) -> int:
        """When the first head of any level expires; 0 if never."""
        heads = (fifo.next_deadline(deadline, pager) for _, fifo in self.by_level(highest_first=True))
        return min((at for at in heads if at), default=0)

    def peek(self, pager: Pager) -> Message | None:
        """The next message, without removing it."""
        for _, fifo in self.by_level(highest_first=True):
            message = fifo.peek(pager)
            if message is not None:
                return message
        return None

    def by_level(self, highest_first: bool) -> list[tuple[int, SpillingFifo]]:
        """Occupied levels with their fifos."""
        return [
            (level, self.fifos[level])
            for level in sorted(self.fifos, reverse=highest_first)
            if self.fifos[level]
        ]

    def restore(self, messages: list[Message], pager: Pager) -> None:
        """Put taken messages back at their old places; ``messages`` is in arrival order."""
        self.restore_levels(self.split(messages), pager)

    def split(self, messages: list[Message]) -> dict[int, list[Message]]:
        """Messages by level, in the same order."""
        by_priority: defaultdict[int, list[Message]] = defaultdict(list)
        for message in messages:  # there may be 100,000
            by_priority[message.priority].append(message)
        by_level: dict[int, list[Message]] = {}
        for priority, part in by_priority.items():
            level = self.level_of(priority)
            if level in by_level:
                part = sorted(by_level[level] + part, key=_seq)
            by_level[level] = part
        return by_level

    def restore_levels(self, by_level: dict[int, list[Message]], pager: Pager) -> None:
        """``restore`` for messages that are split."""
        for level, part in by_level.items():
            self.by_priority.of_level(level).restore(part, pager)

    def withdraw(self, message: Message) -> bool:
        """Remove one message; False when it is no longer here."""
        fifo = self.fifos.get(self.level_of(message.priority))
        return fifo is not None and fifo.withdraw(message)

    def spill(self, pager: Pager, bytes_held: int, is_short: bool = True) -> None:
        """Page out what exceeds the memory limits, lowest priority first."""
        if all(fifo.fits_memory(bytes_held) for fifo in self._from_top):
            return
        waiting = len(self)
        for _, fifo in self.by_level(highest_first=False):
            # Estimate a level's size by its newest messages if those are larger than the queue's average.
            newest = [len(message.body) for message in islice(reversed(fifo.inbox), _SAMPLE)]
            mean = max(bytes_held // waiting, sum(newest) // (len(newest) or 1))
            fifo.spill(pager, mean * len(fifo), is_short)

    def adopt(self, level: int, positions: Iterable[int]) -> None:
        """Append positions known from the journal to a level (recovery)."""
        self.by_priority.of_level(level).adopt(positions)

    def clear(self) -> None:
        """Delete all messages. The fifos stay, since publishers hold references to them."""
        for fifo in self._from_top:
            fifo.clear()

    def positions(self) -> Iterator[array[int]]:
        """Runs of the journal positions of all messages here that are in the journal."""
        for fifo in self.fifos.values():
            yield from fifo.positions()

    def drain(self, pager: Pager) -> Iterator[list[Message]]:
        """Take all messages, run by run."""
        while len(self):
            yield self.take(RUN, pager)
