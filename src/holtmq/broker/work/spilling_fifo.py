"""A first-in-first-out sequence of messages with bounded memory at any depth.

Owns: the head in memory, the middle paged out (8 bytes per message), the tail in memory. Must not touch:
files; a ``Pager`` reads journal positions back, and spills messages that are not in the journal.

Over 400 lines: every operation has to know all three parts, and most are on the path of each message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from typing import Final

from holtmq.broker.message import Message
from holtmq.broker.work.fifo_contents import FifoContents
from holtmq.broker.work.paging import Pager
from holtmq.broker.work.spilled_run import LostRun, Missing, SpilledRun, positions_of
from holtmq.broker.work.stretches import behind, cut, seq_of
from holtmq.journal.interface import RecordUnreadable

# Limits when the node's memory is short (``memory_budget.py``):
HEAD_MAX: Final = 4_096  # messages kept in memory before the rest is paged out
HEAD_KEEP: Final = 1_024
HEAD_MAX_BYTES: Final = 4 * 1024 * 1024
RUN: Final = 1_024  # small messages paged out or read back at once
RUN_BYTES: Final = 4 * 1024 * 1024  # bodies paged out or read back at once, estimated from the last run
_FEW: Final = 16  # messages that find their places faster one by one than together
_FIRST_RUN: Final = 64  # before the body size is known
TAIL_MAX: Final = 1_024
TAIL_MAX_BYTES: Final = 4 * 1024 * 1024
_CHUNK: Final = 65_536
_BROWSE_RUN: Final = 64
NOTHING_ASIDE: Final = array("Q")  # of all fifos; never changed

Place = tuple[int, int]  # seq and journal position of a message; (0, 0): before the first


class SpillingFifo:
    """One sequence of messages: ``ready`` (head), the paged-out middle, ``inbox`` (tail).

    ``inbox`` is ``ready`` itself while nothing is paged out, so that a push is one append.
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
        self.aside = NOTHING_ASIDE  # positions of unreadable messages: kept, and skipped
        self.unreadable: list[Missing] = []  # for ``take_unreadable``
        self.inbox: deque[Message] = self.ready
        self._paged: deque[array[int] | SpilledRun] = deque()  # journal positions, or a spilled run
        self._paged_count = 0
        self._paged_from = 0  # no paged-out message has a lower seq
        self._run = _FIRST_RUN
        self._withdrawn: set[int] = set()  # positions settled while paged out
        self._withdrawn_spilled: set[int] = set()  # seqs settled while spilled

    def __len__(self) -> int:
        count = len(self.ready)
        if self.inbox is self.ready:
            return count
        gone = len(self._withdrawn) + len(self._withdrawn_spilled)
        return count + self._paged_count - gone + len(self.inbox)

    @property
    def in_memory(self) -> int:
        """Messages that are in memory."""
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
        """Remove and return the message to drop when there are too many: the oldest."""
        taken = self.take(1, pager)
        return taken[0] if taken else None

    def peek(self, pager: Pager) -> Message | None:
        """The next message, without removing it."""
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
        """When the head expires; 0 if never."""
        head = self.peek(pager)
        return deadline(head) if head is not None else 0

    def take_unreadable(self) -> list[Missing]:
        """Read errors since the last call; their messages were skipped."""
        found, self.unreadable = self.unreadable, []
        return found

    def push(self, message: Message) -> None:
        """Append at the tail. (The publish path inlines this.)"""
        self.inbox.append(message)

    def restore(self, messages: list[Message], pager: Pager) -> None:
        """Put taken messages back at their old place; ``messages`` is in order."""
        ready = self.ready
        last = messages[-1].seq
        while self._paged_count and self._paged_from <= last:
            # After a burst of returns, later messages were paged out; these belong before or among them.
            self._page_in_run(pager)
        if ready and ready[0].seq < last:
            if len(messages) <= _FEW:  # else each of 100,000 that return one by one moves those before it
                for message in messages:
                    ready.insert(bisect_left(ready, message.seq, key=seq_of), message)
                return
            merged = list(messages)
            while ready and ready[0].seq < last:
                merged.append(ready.popleft())
            merged.sort(key=seq_of)
            messages = merged
        ready.extendleft(reversed(messages))

    def withdraw(self, message: Message) -> bool:
        """Remove one message; False when it is no longer here."""
        seq, position = message.seq, message.position
        for held in (self.ready, self.inbox):
            # By seq, not by identity: a message that was paged out and read back is another object.
            at = bisect_left(held, seq, key=seq_of)
            if at < len(held) and held[at].seq == seq:
                del held[at]
                return True
        if seq < self._paged_from:  # avoids a useless search of a deep queue
            return False
        for block in self._paged:
            if isinstance(block, SpilledRun):
                if seq in block.seqs:
                    return self._withdraw_spilled(message, block)
            elif 0 < position <= block[-1]:
                at = bisect_left(block, position)
                if at < len(block) and block[at] == position and position not in self._withdrawn:
                    self._withdrawn.add(position)
                    return True
        return False

    def following(self, after: Place, limit: int, most_bytes: int, pager: Pager) -> list[Message]:
        """The next messages behind a place, without removing them or keeping them in memory.

        About ``limit`` messages or ``most_bytes`` of bodies; none means that there are no more.
        """
        seq, position = after
        found = behind(self.ready, seq, limit, most_bytes)
        for block in self._paged:
            size = sum([len(message.body) for message in found])
            if len(found) >= limit or size >= most_bytes:
                return found
            if isinstance(block, SpilledRun):
                if block.seqs[-1] > seq:
                    found += [message for message in self._browse_run(block, pager) if message.seq > seq]
                continue
            start = bisect_right(block, position)
            while start < len(block) and len(found) < limit and size < most_bytes:
                run = block[start : start + min(_BROWSE_RUN, limit - len(found))]
                start += len(run)
                read = pager.read([place for place in run if place not in self._withdrawn])
                pager.unreadable()  # reported when a consumer's turn comes
                found += [message for message in read if message.seq > seq]
                size += sum([len(message.body) for message in read])
        if self.inbox is not self.ready and len(found) < limit:
            found += behind(self.inbox, seq, limit - len(found), most_bytes)
        return found

    def remove(self, messages: list[Message]) -> None:
        """Remove messages that ``following`` has just returned, or some of them, in the same order."""
        left = cut(self.ready, messages)
        for at, block in enumerate(self._paged):
            if not left:
                break
            if isinstance(block, SpilledRun):
                mine = set(block.seqs).intersection([message.seq for message in left])
                for message in left[: len(mine)]:
                    self._withdraw_spilled(message, block)
                left = left[len(mine) :]
                continue
            here = [m.position for m in takewhile(lambda m: 0 < m.position <= block[-1], left)]  # noqa: B023
            if here:
                first, end, gone = bisect_left(block, here[0]), bisect_right(block, here[-1]), set(here)
                kept = array("Q", [place for place in block[first:end] if place not in gone])
                self._paged[at] = block[:first] + kept + block[end:]
                self._paged_count -= end - first - len(kept)
                left = left[len(here) :]
        if left:
            cut(self.inbox, left)
        self._paged = deque(block for block in self._paged if len(block))
        if not self._paged_count and self.inbox is not self.ready:
            self.ready.extend(self.inbox)
            self.inbox = self.ready

    def _withdraw_spilled(self, message: Message, run: SpilledRun) -> bool:
        if message.seq in self._withdrawn_spilled:
            return False
        self._withdrawn_spilled.add(message.seq)
        if not message.persistent:
            run.transient_bytes -= len(message.body)
        elif message.position in run.positions:
            run.positions.remove(message.position)
        return True

    def fits_memory(self, bytes_held: int) -> bool:
        """Whether everything is in memory and may stay there even if memory is short."""
        return self.inbox is self.ready and len(self.ready) <= HEAD_MAX and bytes_held <= HEAD_MAX_BYTES

    def spill(self, pager: Pager, bytes_held: int, is_short: bool = True) -> None:
        """Page out what exceeds the memory limits; ``bytes_held``: bodies of all messages here.

        Unless memory ``is_short``, only messages behind paged-out ones are paged out.
        """
        ready, inbox = self.ready, self.inbox
        if inbox is not ready:
            if len(inbox) > TAIL_MAX or sum([len(m.body) for m in inbox]) > TAIL_MAX_BYTES:
                self._page_out_tail(pager)
            if is_short and len(ready) > HEAD_MAX:  # after a burst of returned messages
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
        """Delete all messages."""
        self.aside = NOTHING_ASIDE
        self.ready.clear()
        self.inbox = self.ready
        self._paged.clear()
        self._paged_count = 0
        self._paged_from = 0
        self._withdrawn.clear()
        self._withdrawn_spilled.clear()

    def contents(self) -> FifoContents:
        """All messages as they are now; later changes of the fifo do not change the result."""
        runs: list[tuple[array[int], int]] = []
        spilled_bytes = 0
        for block in self._paged:
            if isinstance(block, SpilledRun):
                spilled_bytes += block.transient_bytes
                block = block.positions[:]
            runs.append((block, len(block)))
        return FifoContents(
            self.aside,
            list(self.ready),
            runs,
            frozenset(self._withdrawn),
            spilled_bytes,
            [] if self.inbox is self.ready else list(self.inbox),
        )

    def only_run(self) -> array[int] | None:
        """The positions of all messages if they are paged out together; later messages may be appended."""
        if len(self._paged) != 1 or self.ready or self.inbox or self._withdrawn:
            return None
        run = self._paged[0]
        return None if isinstance(run, SpilledRun) else run

    def positions(self) -> Iterator[array[int]]:
        """Journal positions of all messages in the journal: unreadable ones, head, paged-out middle, tail."""
        return self.contents().positions()

    def transient_bytes(self) -> int:
        """Size of the bodies that do not survive a restart."""
        return self.contents().transient_bytes()

    def browse(self, pager: Pager) -> Iterator[Message]:
        """All messages in order, without removing them or keeping them in memory."""
        yield from list(self.ready)
        for block in list(self._paged):
            if isinstance(block, SpilledRun):
                yield from self._browse_run(block, pager)
                continue
            for start in range(0, len(block), _BROWSE_RUN):
                run = block[start : start + _BROWSE_RUN]
                yield from pager.read([position for position in run if position not in self._withdrawn])
        if self.inbox is not self.ready:
            yield from list(self.inbox)

    def drain(self, pager: Pager) -> Iterator[list[Message]]:
        """Take all messages, run by run."""
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
        # Read first: if that fails, the messages must still be here.
        if isinstance(block, SpilledRun):
            messages = self._read_run(block, pager)
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

    def _read_run(self, run: SpilledRun, pager: Pager) -> list[Message]:
        """The messages of a spilled run. Without the spill, those in the journal: the others are lost."""
        try:
            messages = pager.read_back(run.spilled)
        except OSError as error:
            messages = pager.read(run.positions)
            self._set_aside(pager.unreadable())
            gone = len(self._withdrawn_spilled.intersection(run.seqs))
            transient = len(run) - gone - len(run.positions)
            if transient:
                self.unreadable.append(LostRun(transient, run.transient_bytes, str(error)))
        return self._live(messages)

    def _browse_run(self, run: SpilledRun, pager: Pager) -> list[Message]:
        """The messages of a run that stays here. What is lost is reported when a consumer's turn comes."""
        try:
            return self._live(pager.read_back(run.spilled))
        except OSError:
            messages = pager.read(run.positions)
            pager.unreadable()
            return messages

    def _live(self, messages: list[Message]) -> list[Message]:
        withdrawn = self._withdrawn_spilled
        return [m for m in messages if m.seq not in withdrawn] if withdrawn else messages

    def _set_aside(self, errors: list[RecordUnreadable]) -> None:
        """Keep the positions of unreadable messages and report the errors; the messages are skipped."""
        kept = [error.position for error in errors if not error.dropped]
        if kept:
            self.aside = self.aside + array("Q", kept)
        self.unreadable += errors

    def _page_out_head(self, pager: Pager, keep: int) -> bool:
        """Page out all but the first ``keep`` messages; False when that failed."""
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
            if isinstance(block, SpilledRun):
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


def _blocks(messages: list[Message], pager: Pager) -> list[array[int] | SpilledRun] | None:
    """The paged-out form of these messages; None when they could not be spilled."""
    positions = positions_of(messages)
    if len(positions) == len(messages):
        return [positions[start : start + _CHUNK] for start in range(0, len(positions), _CHUNK)]
    blocks: list[array[int] | SpilledRun] = []
    try:
        for part in _parts(messages):
            blocks.append(SpilledRun(part, pager.spill(part)))
    except OSError:
        return None
    return blocks


def _parts(messages: list[Message]) -> Iterator[list[Message]]:
    """Split into runs."""
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
