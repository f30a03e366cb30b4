"""Messages by priority: higher first, first-in-first-out within a level.

Owns: the levels of one queue. A level is made when first used. Nothing is kept about which of them hold
messages, so that a push is one lookup and one append; a take looks at them from the top, once for all
it takes. Must not touch: files, clocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from holtmq.broker.message import Message
from holtmq.broker.work.spilling_fifo import RUN, Lane, Pager

_SAMPLE: Final = 8


class _ByPriority(dict[int, Lane]):
    """The lane of each priority a message came with; asked for another, it finds out."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[int], Lane]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, priority: int) -> Lane:
        lane = self[priority] = self._find(priority)
        return lane


class Levels:
    """The lanes of a priority queue; meets the same calls as a ``Lane``."""

    __slots__ = ("_from_top", "by_priority", "lanes", "top")

    def __init__(self, top: int) -> None:
        self.top = top  # messages above count as this level
        self.lanes: dict[int, Lane] = {}
        self.by_priority: dict[int, Lane] = _ByPriority(self._lane_of)
        self._from_top: list[Lane] = []

    def __len__(self) -> int:
        return sum(map(len, self.lanes.values()))

    @property
    def in_memory(self) -> int:
        """Messages whose bytes are held."""
        return sum(lane.in_memory for lane in self.lanes.values())

    def level_of(self, priority: int) -> int:
        """The level a message of this priority waits on."""
        return priority if priority < self.top else self.top

    def push(self, message: Message) -> None:
        """Append to the message's level. (The publish path inlines this.)"""
        self.by_priority[message.priority].inbox.append(message)

    def _lane_of(self, priority: int) -> Lane:
        return self._lane(self.level_of(priority))

    def _lane(self, level: int) -> Lane:
        lane = self.lanes.get(level)
        if lane is None:
            lane = self.lanes[level] = Lane()
            self._from_top = [self.lanes[used] for used in sorted(self.lanes, reverse=True)]
        return lane

    def take(self, limit: int, pager: Pager) -> list[Message]:
        """Remove and return up to ``limit`` messages, highest level first."""
        taken: list[Message] = []
        for lane in self._from_top:
            while len(taken) < limit and lane:  # a deep lane gives no more at once than it has read back
                taken += lane.take(limit - len(taken), pager)
        return taken

    def shed(self, pager: Pager) -> Message | None:
        """Remove and return the oldest message of the lowest occupied level."""
        for _, lane in self.by_level(highest_first=False):
            return lane.shed(pager)
        return None

    def expired(
        self, deadline: Callable[[Message], int], now_ms: int, pager: Pager, limit: int
    ) -> list[Message]:
        """Remove and return messages from the head of any level whose deadline has passed."""
        gone: list[Message] = []
        for _, lane in self.by_level(highest_first=True):
            gone += lane.expired(deadline, now_ms, pager, limit - len(gone))
        return gone

    def next_deadline(self, deadline: Callable[[Message], int], pager: Pager) -> int:
        """When the first head of any level expires; 0: never."""
        heads = (lane.next_deadline(deadline, pager) for _, lane in self.by_level(highest_first=True))
        return min((at for at in heads if at), default=0)

    def peek(self, pager: Pager) -> Message | None:
        """The next message, left in place."""
        for _, lane in self.by_level(highest_first=True):
            message = lane.peek(pager)
            if message is not None:
                return message
        return None

    def by_level(self, highest_first: bool) -> list[tuple[int, Lane]]:
        """Occupied levels with their lanes."""
        return [
            (level, self.lanes[level])
            for level in sorted(self.lanes, reverse=highest_first)
            if self.lanes[level]
        ]

    def restore(self, messages: list[Message], pager: Pager) -> None:
        """Put messages that were taken back at their old places; ``messages`` is in arrival order."""
        by_level: dict[int, list[Message]] = {}
        for message in messages:
            by_level.setdefault(self.level_of(message.priority), []).append(message)
        for level, part in by_level.items():
            self._lane(level).restore(part, pager)

    def withdraw(self, message: Message) -> bool:
        """Remove one message that waits here; False when it is not here any more."""
        lane = self.lanes.get(self.level_of(message.priority))
        return lane is not None and lane.withdraw(message)

    def spill(self, pager: Pager, bytes_held: int) -> None:
        """Turn what is too much for memory into positions, the least urgent first."""
        if all(lane.fits_memory(bytes_held) for lane in self._from_top):
            return
        waiting = len(self)
        for _, lane in self.by_level(highest_first=False):
            # A level's share by its newest messages, if those are bigger than the queue's are on average.
            newest = [len(message.body) for message in islice(reversed(lane.inbox), _SAMPLE)]
            mean = max(bytes_held // waiting, sum(newest) // (len(newest) or 1))
            lane.spill(pager, mean * len(lane))

    def adopt(self, level: int, positions: Iterable[int]) -> None:
        """Append positions known from the journal to a level (recovery)."""
        self._lane(level).adopt(positions)

    def clear(self) -> None:
        """Forget everything that waits. The lanes stay: publishers know them."""
        for lane in self._from_top:
            lane.clear()

    def positions(self) -> Iterator[array[int]]:
        """Runs of the positions of every waiting message the journal holds."""
        for lane in self.lanes.values():
            yield from lane.positions()

    def drain(self, pager: Pager) -> Iterator[list[Message]]:
        """Take everything, run by run."""
        while len(self):
            yield self.take(RUN, pager)
