"""The partitions in which a group may find messages, so that the others need no check.

Owns: the line of candidate partitions, and the deadlines at which others join it. A partition in line may
turn out empty, so the caller verifies it; but every claimable partition is in line or has a deadline. Must
not touch: cursors, leases, clocks.
"""

import sys
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush


class ReadyPartitions:
    """A FIFO line of partitions, and a heap with at most one valid deadline per partition."""

    __slots__ = ("_deadlines", "_due", "_in_line", "_line")

    def __init__(self) -> None:
        self._line: deque[int] = deque()
        self._in_line = bytearray()
        self._due: dict[int, float] = {}
        self._deadlines: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._line)

    def offer(self, partition: int) -> bool:
        """Add a partition to the line; False when it is already there."""
        if partition >= len(self._in_line):
            self._in_line.extend(bytes(partition + 1 - len(self._in_line) + 256))
        if self._in_line[partition]:
            return False
        self._in_line[partition] = 1
        self._line.append(partition)
        return True

    def take(self) -> int | None:
        """Remove and return the first partition in line."""
        if not self._line:
            return None
        partition = self._line.popleft()
        self._in_line[partition] = 0
        return partition

    def wake_at(self, partition: int, at: float) -> None:
        """Check the partition again at this time, unless an earlier check is planned.

        The earlier check plans the next one, so acked leases leave no outdated heap entries.
        """
        planned = self._due.get(partition)
        if planned is None or at < planned:
            self._due[partition] = at
            heappush(self._deadlines, (at, partition))
            if len(self._deadlines) > 2 * len(self._due) + 1024:  # mostly outdated: rebuild
                self._deadlines = [(when, waiting) for waiting, when in self._due.items()]
                heapify(self._deadlines)

    def due(self, now: float, most: int = sys.maxsize) -> list[int]:
        """At most so many partitions whose deadline has passed; the caller must offer or plan each again."""
        passed: list[int] = []
        while self._deadlines and self._deadlines[0][0] <= now and len(passed) < most:
            at, partition = heappop(self._deadlines)
            if self._due.get(partition) == at:
                del self._due[partition]
                passed.append(partition)
        return passed

    def next_deadline(self) -> float | None:
        while self._deadlines:
            at, partition = self._deadlines[0]
            if self._due.get(partition) == at:
                return at
            heappop(self._deadlines)  # outdated
        return None

    def rebuild(self, line: Sequence[int], deadlines: dict[int, float]) -> None:
        """Start again with this line and these deadlines by partition; there may be 100,000 of each."""
        self._line = deque(line)
        self._in_line = bytearray(max(line, default=0) + 256)
        for partition in line:
            self._in_line[partition] = 1
        self._due = deadlines
        self._deadlines = [(at, partition) for partition, at in deadlines.items()]
        heapify(self._deadlines)
