"""A first-in-first-out run of messages that stays small in memory however deep it gets.

Owns: the head in memory, the middle out of it (8 bytes a message), the tail in memory. Must not touch:
files; a ``Pager`` reads journal positions back, and keeps runs of messages that the journal does not hold.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

from holtmq.broker.message import Message
from holtmq.broker.work.paging import SpilledBytes
from holtmq.journal.interface import RecordUnreadable

# Where the node's memory is short (``memory_budget.py``):
HEAD_MAX: Final = 4_096  # messages kept in memory before the rest is paged out
HEAD_KEEP: Final = 1_024
HEAD_MAX_BYTES: Final = 4 * 1024 * 1024
RUN: Final = 1_024  # messages paged out and read back at once, if they are small
RUN_BYTES: Final = 4 * 1024 * 1024  # bodies paged out or read back at once, as far as the last run tells
_FIRST_RUN: Final = 64  # before anything is known about the size of the bodies
TAIL_MAX: Final = 1_024
TAIL_MAX_BYTES: Final = 4 * 1024 * 1024
_CHUNK: Final = 65_536
_BROWSE_RUN: Final = 64


class Pager(Protocol):
    """Where messages go when they leave memory."""

    def read(self, positions: Sequence[int]) -> list[Message]:
        """The messages at these positions of the journal, in this order."""
        ...

    def unreadable(self) -> list[RecordUnreadable]:
        """Why ``read`` returned fewer than it was asked for; told once."""
        ...

    def spill(self, messages: list[Message]) -> SpilledBytes:
        """Write messages that are to come back together. OSError where that is not possible."""
        ...

    def read_back(self, spilled: SpilledBytes) -> list[Message]:
        """What was spilled together."""
        ...


class _SpilledRun:
    """Messages of which the journal does not hold all, out of memory together."""

    __slots__ = ("positions", "seqs", "spilled", "transient_bytes")

    def __init__(self, messages: list[Message], spilled: SpilledBytes) -> None:
        self.spilled = spilled
        self.seqs = array("Q", [message.seq for message in messages])
        self.positions = _positions_of(messages)  # of those that the journal holds
        self.transient_bytes = sum([len(m.body) for m in messages if not m.persistent])

    def __len__(self) -> int:
        return len(self.seqs)


class SpillingFifo:
    """One order of messages: ``ready`` (head), what is paged out, ``inbox`` (tail).

    ``inbox`` is ``ready`` itself while nothing is paged, so that a push is one append.
    """

    __slots__ = (
        "_paged",
        "_paged_count",
        "_paged_from",
        "_run",
        "_withdrawn",
        "_withdrawn_spilled",
        "aside",
        "inbox",
        "ready",
        "unreadable",
    )

    def __init__(self) -> None:
        self.ready: deque[Message] = deque()
        self.aside: array[int] = array("Q")  # of messages that cannot be read: kept, and passed over
        self.unreadable: list[RecordUnreadable] = []  # met since the flow last looked
        self.inbox: deque[Message] = self.ready
        self._paged: deque[array[int] | _SpilledRun] = deque()  # positions in the journal, or a spilled run
        self._paged_count = 0
        self._paged_from = 0  # no paged message has a seq below this
        self._run = _FIRST_RUN
        self._withdrawn: set[int] = set()  # positions settled while they were paged
        self._withdrawn_spilled: set[int] = set()  # seqs settled while they were spilled

    def __len__(self) -> int:
        count = len(self.ready)
        if self.inbox is self.ready:
            return count
        gone = len(self._withdrawn) + len(self._withdrawn_spilled)
        return count + self._paged_count - gone + len(self.inbox)

    @property
    def in_memory(self) -> int:
        """Messages whose bytes are held."""
        return len(self.ready) if self.inbox is self.ready else len(self.ready) + len(self.inbox)

    def take(self, limit: int, pager: Pager) -> list[Message]:
        """Remove and return up to ``limit`` messages from the head."""
        ready = self.ready
        if len(ready) <= limit and self._paged_count:
            self._page_in(pager)
        if len(ready) <= limit:
            taken = list(ready)
            ready.clear()
            return taken
        popleft = ready.popleft
        return [popleft() for _ in range(limit)]

    def shed(self, pager: Pager) -> Message | None:
        """Remove and return the message that goes first when there are too many: the oldest."""
        taken = self.take(1, pager)
        return taken[0] if taken else None

    def peek(self, pager: Pager) -> Message | None:
        """The next message, left in place."""
        if not self.ready and self._paged_count:
            self._page_in(pager)
        return self.ready[0] if self.ready else None

    def expired(
        self, deadline: Callable[[Message], int], now_ms: int, pager: Pager, limit: int
    ) -> list[Message]:
        """Remove and return up to ``limit`` messages from the head whose deadline has passed."""
        gone: list[Message] = []
        while len(gone) < limit and (head := self.peek(pager)) is not None and 0 < deadline(head) <= now_ms:
            gone.append(self.ready.popleft())
        return gone

    def next_deadline(self, deadline: Callable[[Message], int], pager: Pager) -> int:
        """When the head expires; 0: never."""
        head = self.peek(pager)
        return deadline(head) if head is not None else 0

    def push(self, message: Message) -> None:
        """Append at the tail. (The publish path inlines this.)"""
        self.inbox.append(message)

    def restore(self, messages: list[Message], pager: Pager) -> None:
        """Put messages that were taken back at their old place; ``messages`` is in order."""
        ready = self.ready
        last = messages[-1].seq
        while self._paged_count and self._paged_from <= last:
            # After a burst of returns what lay behind these was paged out: their place is in there.
            self._page_in_run(pager)
        if ready and ready[0].seq < last:
            merged = list(messages)
            while ready and ready[0].seq < last:
                merged.append(ready.popleft())
            merged.sort(key=_seq)
            messages = merged
        ready.extendleft(reversed(messages))

    def withdraw(self, message: Message) -> bool:
        """Remove one message that waits here; False when it is not here any more."""
        seq = message.seq
        for held in (self.ready, self.inbox):
            # Not by identity: what was paged out and read back is another object.
            for at, waiting in enumerate(held):
                if waiting.seq == seq:
                    del held[at]
                    return True
        if seq < self._paged_from:  # without this a deep queue is searched in vain
            return False
        for block in self._paged:
            if isinstance(block, _SpilledRun):
                if seq in block.seqs:
                    return self._withdraw_spilled(message, block)
            elif message.position and message.position in block and message.position not in self._withdrawn:
                self._withdrawn.add(message.position)
                return True
        return False

    def _withdraw_spilled(self, message: Message, run: _SpilledRun) -> bool:
        if message.seq in self._withdrawn_spilled:
            return False
        self._withdrawn_spilled.add(message.seq)
        if not message.persistent:
            run.transient_bytes -= len(message.body)
        elif message.position in run.positions:
            run.positions.remove(message.position)
        return True

    def fits_memory(self, bytes_held: int) -> bool:
        """Whether all of it is in memory and may stay there, even if memory is short."""
        return self.inbox is self.ready and len(self.ready) <= HEAD_MAX and bytes_held <= HEAD_MAX_BYTES

    def spill(self, pager: Pager, bytes_held: int, is_short: bool = True) -> None:
        """Page out what is too much for memory; ``bytes_held``: bodies of all that waits.

        Unless memory ``is_short``, only what arrives behind messages that are paged already.
        """
        ready, inbox = self.ready, self.inbox
        if inbox is not ready:
            if len(inbox) > TAIL_MAX or sum([len(m.body) for m in inbox]) > TAIL_MAX_BYTES:
                self._page_out_tail(pager)
            if is_short and len(ready) > HEAD_MAX:  # a burst of returned messages
                self._page_out_head(pager, HEAD_KEEP)
        elif is_short and (len(ready) > HEAD_MAX or (bytes_held > HEAD_MAX_BYTES and len(ready) > 1)):
            keep = HEAD_KEEP
            if bytes_held > HEAD_MAX_BYTES:
                keep = max(1, min(keep, len(ready) * HEAD_MAX_BYTES // (4 * bytes_held)))
            if keep < len(ready) and self._page_out_head(pager, keep):
                self.inbox = deque()

    def adopt(self, positions: Iterable[int]) -> None:
        """Append positions known from the journal (recovery)."""
        self._append_positions(positions)
        if self._paged_count and self.inbox is self.ready:
            self.inbox = deque()

    def clear(self) -> None:
        """Forget everything that waits."""
        self.aside = array("Q")
        self.ready.clear()
        self.inbox = self.ready
        self._paged.clear()
        self._paged_count = 0
        self._paged_from = 0
        self._withdrawn.clear()
        self._withdrawn_spilled.clear()

    def positions(self) -> Iterator[array[int]]:
        """Of every message the journal holds: those set aside, the head, what is paged, the tail."""
        if self.aside:
            yield self.aside[:]
        yield _positions_of(self.ready)
        for block in self._paged:
            if isinstance(block, _SpilledRun):
                yield block.positions
            elif self._withdrawn:
                yield array("Q", [position for position in block if position not in self._withdrawn])
            else:
                yield block[:]
        if self.inbox is not self.ready:
            yield _positions_of(self.inbox)

    def transient_bytes(self) -> int:
        """Bodies that a restart forgets."""
        held = sum([len(m.body) for m in self.ready if not m.persistent])
        if self.inbox is not self.ready:
            held += sum([len(m.body) for m in self.inbox if not m.persistent])
        return held + sum([block.transient_bytes for block in self._paged if isinstance(block, _SpilledRun)])

    def browse(self, pager: Pager) -> Iterator[Message]:
        """Every waiting message in order, left in place and not kept in memory."""
        yield from list(self.ready)
        for block in list(self._paged):
            if isinstance(block, _SpilledRun):
                yield from self._live(pager.read_back(block.spilled))
                continue
            for start in range(0, len(block), _BROWSE_RUN):
                run = block[start : start + _BROWSE_RUN]
                yield from pager.read([position for position in run if position not in self._withdrawn])
        if self.inbox is not self.ready:
            yield from list(self.inbox)

    def drain(self, pager: Pager) -> Iterator[list[Message]]:
        """Take everything, run by run."""
        while len(self):
            yield self.take(RUN, pager)

    def _page_in(self, pager: Pager) -> None:
        ready = self.ready
        while self._paged_count and not ready:
            self._page_in_run(pager)
        if self._paged_count and len(ready) < self._run:
            self._page_in_run(pager)

    def _page_in_run(self, pager: Pager) -> None:
        ready = self.ready
        block = self._paged[0]
        # What is read comes first: if this fails, the messages must still be here.
        if isinstance(block, _SpilledRun):
            messages = self._live(pager.read_back(block.spilled))
            self._paged.popleft()
            self._paged_count -= len(block)
            self._withdrawn_spilled.difference_update(block.seqs)
            last = block.seqs[-1]
        else:
            run = block[: self._run]
            wanted = run
            if self._withdrawn:
                wanted = array("Q", [position for position in run if position not in self._withdrawn])
            messages = pager.read(wanted)
            if len(messages) < len(wanted):
                self._set_aside(pager.unreadable())
            if len(run) == len(block):
                self._paged.popleft()
            else:
                self._paged[0] = block[len(run) :]
            self._paged_count -= len(run)
            if len(wanted) < len(run):
                self._withdrawn.difference_update(run)
            if messages:
                size = sum([len(message.body) for message in messages])
                self._run = max(1, min(RUN, RUN_BYTES * len(messages) // (size + 1)))
            last = messages[-1].seq if messages else 0
        self._paged_from = max(self._paged_from, last + 1)
        ready.extend(messages)
        if not self._paged_count and self.inbox is not ready:
            ready.extend(self.inbox)
            self.inbox = ready

    def _live(self, messages: list[Message]) -> list[Message]:
        withdrawn = self._withdrawn_spilled
        return [m for m in messages if m.seq not in withdrawn] if withdrawn else messages

    def _set_aside(self, errors: list[RecordUnreadable]) -> None:
        """Messages of the journal that cannot be read: kept, told, and passed over."""
        self.aside.extend(error.position for error in errors if not error.dropped)
        self.unreadable += errors

    def _page_out_head(self, pager: Pager, keep: int) -> bool:
        """All but the first so many leave; whether they could."""
        ready = self.ready
        leaving = list(islice(ready, keep, None))
        blocks = _blocks(leaving, pager)
        if blocks is None:
            return False
        for _ in range(len(leaving)):
            ready.pop()
        self._paged.extendleft(reversed(blocks))
        self._paged_count += len(leaving)
        self._paged_from = leaving[0].seq
        return True

    def _page_out_tail(self, pager: Pager) -> None:
        inbox = self.inbox
        blocks = _blocks(list(inbox), pager)
        if blocks is None:
            return
        inbox.clear()
        for block in blocks:
            if isinstance(block, _SpilledRun):
                self._paged.append(block)
                self._paged_count += len(block)
            else:
                self._append_positions(block)

    def _append_positions(self, positions: Iterable[int]) -> None:
        paged = self._paged
        last = paged[-1] if paged else None
        chunk = last if isinstance(last, array) else array("Q")
        before = len(chunk)
        if chunk is not last:
            paged.append(chunk)
        for position in positions:
            if len(chunk) >= _CHUNK:
                self._paged_count += len(chunk) - before
                chunk, before = array("Q"), 0
                paged.append(chunk)
            chunk.append(position)
        self._paged_count += len(chunk) - before
        if not chunk:
            paged.pop()


def _blocks(messages: list[Message], pager: Pager) -> list[array[int] | _SpilledRun] | None:
    """These messages out of memory; None when there is no room for them elsewhere."""
    positions = _positions_of(messages)
    if len(positions) == len(messages):
        return [positions[start : start + _CHUNK] for start in range(0, len(positions), _CHUNK)]
    blocks: list[array[int] | _SpilledRun] = []
    try:
        for part in _parts(messages):
            blocks.append(_SpilledRun(part, pager.spill(part)))
    except OSError:
        return None
    return blocks


def _parts(messages: list[Message]) -> Iterator[list[Message]]:
    """Cut into runs."""
    part: list[Message] = []
    size = 0
    for message in messages:
        if part and (len(part) >= RUN or size + len(message.body) > RUN_BYTES):
            yield part
            part, size = [], 0
        part.append(message)
        size += len(message.body)
    if part:
        yield part


def _seq(message: Message) -> int:
    return message.seq


def _positions_of(messages: Iterable[Message]) -> array[int]:
    return array("Q", [message.position for message in messages if message.position and message.persistent])
