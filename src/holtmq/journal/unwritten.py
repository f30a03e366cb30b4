"""Records that were appended and are not written to files yet.

Owns: the bytes of the open group and of groups handed to the writer, by position, and their callbacks. Must
not touch: files, threads, when a group is closed. Used only in the event loop's thread.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

from .interface import DurableCallback, JournalCorrupt, JournalFailed
from .records import AS_THEY_ARE, FRAME_SIZE, BadRecord, record_at
from .writer import Group

log = logging.getLogger(__name__)

ReadMany = Callable[[Sequence[int]], list[tuple[int, bytes]]]


@dataclass(slots=True)
class InFlight:
    """A group that was handed to the writer."""

    group: Group
    starts: list[int]  # position of each part, for reads before it is written
    callbacks: list[DurableCallback]


class Unwritten:
    """The open group and the groups in flight."""

    __slots__ = ("_parts", "_starts", "in_flight")

    def __init__(self) -> None:
        self.in_flight: deque[InFlight] = deque()
        self._parts: list[bytes] = []  # of the open group, after its SYNC record
        self._starts: list[int] = []

    def add(self, chunks: list[bytes], end: int) -> None:
        """Add frame, payload, frame, payload... to the open group; they end at position ``end``."""
        size = sum(map(len, chunks))
        start = end - size
        if size < AS_THEY_ARE * len(chunks):
            self._starts.append(start)
            self._parts.append(b"".join(chunks))
        else:
            self._starts += accumulate(map(len, chunks[:-1]), initial=start)
            self._parts += chunks

    def close_group(
        self,
        base: int,
        capacity: int,
        start: int,
        end: int,
        callbacks: list[DurableCallback],
        checkpoint: int,
    ) -> Group:
        """Turn what was added into a group for the writer, and open the next group."""
        group = Group(base, capacity, start, end, tuple(self._parts), checkpoint)
        self.in_flight.append(InFlight(group, self._starts, callbacks))
        self._parts, self._starts = [], []
        return group

    def written(self, groups: int) -> list[DurableCallback]:
        """The oldest groups are in files now; return their callbacks, in order."""
        done = [self.in_flight.popleft() for _ in range(groups)]
        return [callback for waiting in done for callback in waiting.callbacks]

    def failed(self) -> list[DurableCallback]:
        """None of it will be written; return all callbacks. The records can still be read."""
        waiting = [callback for in_flight in self.in_flight for callback in in_flight.callbacks]
        for in_flight in self.in_flight:
            in_flight.callbacks = []
        return waiting

    def read(self, position: int) -> tuple[int, bytes]:
        """Kind and payload of the record at a position that is not in files."""
        parts: Sequence[bytes] = self._parts
        starts = self._starts
        for waiting in self.in_flight:
            if position < waiting.group.end:
                parts, starts = waiting.group.parts, waiting.starts
                break
        at = bisect_right(starts, position) - 1
        if at >= 0:
            part = parts[at]
            if len(part) == FRAME_SIZE and at + 1 < len(parts):  # not joined: its payload comes next
                part += parts[at + 1]
            with suppress(BadRecord):
                return record_at(part, position - starts[at])
        raise JournalCorrupt(f"no record was appended at position {position}")

    def read_mixed(
        self, positions: Sequence[int], written: int, read_files: ReadMany
    ) -> list[tuple[int, bytes]]:
        """The records at these positions, in this order; those below ``written`` are read from files."""
        found: list[tuple[int, bytes]] = []
        run: list[int] = []
        for position in positions:
            if position < written:
                run.append(position)
                continue
            if run:
                found += read_files(run)
                run = []
            found.append(self.read(position))
        return found + read_files(run)


def tell(callbacks: Sequence[DurableCallback], error: JournalFailed | None) -> None:
    """Run the callbacks: what they wait for is durable (None), or never will be (the error)."""
    for callback in callbacks:
        try:
            callback(error)
        except Exception:  # a bug in one callback must not keep the others from running
            log.exception("a durable callback failed")
