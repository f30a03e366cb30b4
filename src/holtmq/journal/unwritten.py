"""What was appended and the files do not have yet.

Owns: the bytes of the open group and of groups on their way to the disk, by position, and who waits for
them. Must not touch: files, threads, when a group is closed. All of it belongs to the event loop's thread.
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
    starts: list[int]  # position of each part, for reads that overtake the write
    callbacks: list[DurableCallback]


class Unwritten:
    """See the module."""

    __slots__ = ("_parts", "_starts", "in_flight")

    def __init__(self) -> None:
        self.in_flight: deque[InFlight] = deque()
        self._parts: list[bytes] = []  # of the open group, after its SYNC record
        self._starts: list[int] = []

    def add(self, chunks: list[bytes], end: int) -> None:
        """More of the open group: frame, payload, frame, payload, up to this position."""
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
        """What was added becomes a group for the writer; the next one is open."""
        group = Group(base, capacity, start, end, tuple(self._parts), checkpoint)
        self.in_flight.append(InFlight(group, self._starts, callbacks))
        self._parts, self._starts = [], []
        return group

    def written(self, groups: int) -> list[DurableCallback]:
        """The files have the oldest groups now; who waited for them, in order."""
        done = [self.in_flight.popleft() for _ in range(groups)]
        return [callback for waiting in done for callback in waiting.callbacks]

    def failed(self) -> list[DurableCallback]:
        """The files will never have any of it; who waited. The records can still be read."""
        waiting = [callback for in_flight in self.in_flight for callback in in_flight.callbacks]
        for in_flight in self.in_flight:
            in_flight.callbacks = []
        return waiting

    def read(self, position: int) -> tuple[int, bytes]:
        """Kind and payload of the record at a position that the files do not have."""
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
        """The records at these positions, in this order; the files answer for those below ``written``."""
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
    """What they waited for is durable, or never will be."""
    for callback in callbacks:
        try:
            callback(error)
        except Exception:  # one waiter's bug must not leave the others waiting
            log.exception("a durable callback failed")
