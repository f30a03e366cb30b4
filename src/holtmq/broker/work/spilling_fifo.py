"""A first-in-first-out run of messages that stays small in memory however deep it gets.

Owns: the head in memory, the middle as journal positions (8 bytes a message), the tail in memory.
Must not touch: files; a ``Pager`` reads positions back and finds a position for a message.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from holtmq.broker.message import TRANSIENT, Message
from holtmq.journal.interface import RecordUnreadable

HEAD_MAX: Final = 16_384  # messages kept in memory before the rest becomes positions
HEAD_KEEP: Final = 4_096
HEAD_MAX_BYTES: Final = 32 * 1024 * 1024
RUN: Final = 1_024  # messages read back at once, if they are small
RUN_BYTES: Final = 4 * 1024 * 1024  # bodies read back at once, as far as the last run tells
_FIRST_RUN: Final = 64  # before anything is known about the size of the bodies
TAIL_MAX: Final = 256
TAIL_MAX_BYTES: Final = 8 * 1024 * 1024
_CHUNK: Final = 65_536


class Pager(Protocol):
    """Where messages go when they leave memory."""

    def read(self, positions: Sequence[int]) -> list[Message]:
        """The messages at these positions, in this order."""
        ...

    def unreadable(self) -> list[RecordUnreadable]:
        """Why ``read`` returned fewer than it was asked for; told once."""
        ...

    def store(self, message: Message) -> int:
        """A position for a message, tagged when it is transient; writes one the journal does not hold."""
        ...


_BROWSE_RUN: Final = 64


class PositionRun(NamedTuple):
    """Journal positions of messages that wait one behind the other."""

    positions: array[int]
    tagged: bool  # whether there may be transient ones among them, which carry the tag

    def plain(self) -> array[int]:
        """All of them without tags."""
        if not self.tagged:
            return self.positions
        return array("Q", [position & ~TRANSIENT for position in self.positions])

    def persistent(self) -> array[int]:
        """Those of messages that a restart keeps."""
        if not self.tagged:
            return self.positions
        return array("Q", [position for position in self.positions if position < TRANSIENT])


class SpillingFifo:
    """One order of messages: ``ready`` (head), positions, ``inbox`` (tail).

    ``inbox`` is ``ready`` itself while nothing is paged, so that a push is one append.
    """

    __slots__ = (
        "_paged",
        "_paged_count",
        "_paged_from",
        "_run",
        "_tagged",
        "_withdrawn",
        "aside",
        "inbox",
        "paged_transient_bytes",
        "ready",
        "unreadable",
    )

    def __init__(self) -> None:
        self.ready: deque[Message] = deque()
        self.aside: array[int] = array("Q")  # of messages that cannot be read: kept, and passed over
        self.unreadable: list[RecordUnreadable] = []  # met since the flow last looked
        self.inbox: deque[Message] = self.ready
        self._paged: deque[array[int]] = deque()
        self._paged_count = 0
        self._paged_from = 0  # no paged message has a seq below this
        self._run = _FIRST_RUN
        self._withdrawn: set[int] = set()  # positions settled while they were paged
        self._tagged = False  # some of the paged positions are tagged as transient
        self.paged_transient_bytes = 0  # bodies behind tagged positions: a restart forgets them

    def __len__(self) -> int:
        count = len(self.ready) + self._paged_count - len(self._withdrawn)
        return count if self.inbox is self.ready else count + len(self.inbox)

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
        if seq < self._paged_from or not message.position:  # without this a deep queue is searched in vain
            return False
        position = message.position
        tagged = position if message.persistent else position | TRANSIENT
        if position in self._withdrawn or not any(tagged in chunk for chunk in self._paged):
            return False
        self._withdrawn.add(position)
        if tagged & TRANSIENT:
            self.paged_transient_bytes -= len(message.body)
        return True

    def fits_memory(self, bytes_held: int) -> bool:
        """Whether all of it is in memory and may stay there."""
        return self.inbox is self.ready and len(self.ready) <= HEAD_MAX and bytes_held <= HEAD_MAX_BYTES

    def spill(self, pager: Pager, bytes_held: int) -> None:
        """Turn what is too much for memory into positions; ``bytes_held``: bodies of all that waits."""
        ready, inbox = self.ready, self.inbox
        if inbox is not ready:
            if len(inbox) > TAIL_MAX or sum([len(m.body) for m in inbox]) > TAIL_MAX_BYTES:
                self._append_positions([self._store(message, pager) for message in inbox])
                inbox.clear()
            if len(ready) > HEAD_MAX:  # a burst of returned messages
                self._page_out_head(pager, HEAD_KEEP)
        elif len(ready) > HEAD_MAX or (bytes_held > HEAD_MAX_BYTES and len(ready) > 1):
            keep = HEAD_KEEP
            if bytes_held > HEAD_MAX_BYTES:
                keep = max(1, min(keep, len(ready) * HEAD_MAX_BYTES // (4 * bytes_held)))
            if keep < len(ready):
                self._page_out_head(pager, keep)
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
        self._tagged = False
        self.paged_transient_bytes = 0

    def positions(self) -> Iterator[PositionRun]:
        """Every message the journal holds: those set aside, the head, what is paged, the tail."""
        if self.aside:
            yield PositionRun(self.aside[:], tagged=False)
        yield _positions_of(self.ready)
        for chunk in self._paged:
            if self._withdrawn:
                kept = array("Q", [p for p in chunk if p & ~TRANSIENT not in self._withdrawn])
                yield PositionRun(kept, self._tagged)
            else:
                yield PositionRun(chunk[:], self._tagged)
        if self.inbox is not self.ready:
            yield _positions_of(self.inbox)

    def browse(self, pager: Pager) -> Iterator[Message]:
        """Every waiting message in order, left in place and not kept in memory."""
        yield from list(self.ready)
        for chunk in list(self._paged):
            for start in range(0, len(chunk), _BROWSE_RUN):
                run = chunk[start : start + _BROWSE_RUN]
                if self._withdrawn:
                    run = array("Q", [p for p in run if p & ~TRANSIENT not in self._withdrawn])
                yield from pager.read(run)
        if self.inbox is not self.ready:
            yield from list(self.inbox)

    def transient_bytes(self) -> int:
        """Bodies that a restart forgets."""
        held = sum([len(m.body) for m in self.ready if not m.persistent])
        if self.inbox is not self.ready:
            held += sum([len(m.body) for m in self.inbox if not m.persistent])
        return held + self.paged_transient_bytes

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
        chunk = self._paged[0]
        run = chunk[: self._run]
        wanted = run
        if self._withdrawn:
            wanted = array("Q", [p for p in run if p & ~TRANSIENT not in self._withdrawn])
        messages = pager.read(wanted)  # first: if this fails, the positions must still be here
        if len(messages) < len(wanted):
            self._set_aside(wanted, pager.unreadable())
        if len(run) == len(chunk):
            self._paged.popleft()
        else:
            self._paged[0] = chunk[len(run) :]
        self._paged_count -= len(run)
        if len(wanted) < len(run):
            self._withdrawn.difference_update(p & ~TRANSIENT for p in run)
        if messages:
            self._paged_from = messages[-1].seq + 1
            size = sum([len(message.body) for message in messages])
            self._run = max(1, min(RUN, RUN_BYTES * len(messages) // (size + 1)))
            if self.paged_transient_bytes:
                self.paged_transient_bytes -= sum(len(m.body) for m in messages if not m.persistent)
        ready.extend(messages)
        if not self._paged_count and self.inbox is not ready:
            ready.extend(self.inbox)
            self.inbox = ready

    def _set_aside(self, wanted: array[int], errors: list[RecordUnreadable]) -> None:
        persistent = set(wanted)  # a transient one's carries the tag
        self.aside.extend(e.position for e in errors if not e.dropped and e.position in persistent)
        self.unreadable += errors

    def _page_out_head(self, pager: Pager, keep: int) -> None:
        ready = self.ready
        leaving = [ready.pop() for _ in range(len(ready) - keep)]
        leaving.reverse()
        # Written in their order, so that reading them back is one sweep.
        positions = array("Q", [self._store(message, pager) for message in leaving])
        for start in reversed(range(0, len(positions), _CHUNK)):
            self._paged.appendleft(positions[start : start + _CHUNK])
        self._paged_count += len(positions)
        self._paged_from = leaving[0].seq

    def _store(self, message: Message, pager: Pager) -> int:
        position = pager.store(message)
        if position & TRANSIENT:
            self._tagged = True
            self.paged_transient_bytes += len(message.body)
        return position

    def _append_positions(self, positions: Iterable[int]) -> None:
        paged = self._paged
        before = 0
        if not paged:
            paged.append(array("Q"))
        else:
            before = len(paged[-1])
        chunk = paged[-1]
        for position in positions:
            if len(chunk) >= _CHUNK:
                self._paged_count += len(chunk) - before
                chunk, before = array("Q"), 0
                paged.append(chunk)
            chunk.append(position)
        self._paged_count += len(chunk) - before
        if not chunk:
            paged.pop()


def _seq(message: Message) -> int:
    return message.seq


def _positions_of(messages: Iterable[Message]) -> PositionRun:
    positions = [m.position if m.persistent else m.position | TRANSIENT for m in messages if m.position]
    return PositionRun(array("Q", positions), tagged=True)
