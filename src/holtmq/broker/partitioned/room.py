"""How many messages a queue with a limit may take: those that some group has not settled count.

Owns: the count, and when it is repeated. Must not touch: the queue, which calls ``outdated`` when more
messages may be unsettled than were counted.

A count looks at each partition for each group, so it is reused until a push does not fit, and a large one
goes on with each push that asks. Until then the one before it holds, or, if the limit is new, none.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holtmq.broker.partitioned.queue import PartitionedQueue

_AT_ONCE: Final = 20_000  # partitions times groups: about 7 ms


class Room:
    """The room in one queue."""

    __slots__ = ("_counting", "_is_outdated", "_progress", "_until")

    def __init__(self) -> None:
        self._until: int | None = None  # the offset up to which pushes fit; so pushes need not update it
        self._progress = 0  # of the queue, when it was counted
        self._is_outdated = True
        self._counting: _Count | None = None

    def outdated(self) -> None:
        """Count again: more messages may be unsettled now."""
        self._is_outdated, self._counting = True, None

    def fits(self, queue: PartitionedQueue, count: int) -> bool:
        """Whether so many messages fit."""
        end = queue.log.next_offset + count
        is_full = self._until is not None and self._until < end and self._progress != queue.progress
        if is_full or self._is_outdated:
            self._count(queue, _AT_ONCE)
        return self._until is None or self._until >= end

    def left(self, queue: PartitionedQueue) -> int:
        """A lower bound of how many messages fit; ``fits`` may allow more after that."""
        self.fits(queue, 1)
        return sys.maxsize if self._until is None else self._until - queue.log.next_offset

    def count_all(self, queue: PartitionedQueue) -> None:
        """Complete the count, however long it takes: the node starts."""
        self._count(queue, sys.maxsize)

    def _count(self, queue: PartitionedQueue, most_work: int) -> None:
        counting = self._counting = self._counting or _Count(queue)
        if counting.is_done(queue, most_work):
            self._until = counting.base + queue.config.max_size - counting.unsettled
            self._progress = counting.progress
            self._is_outdated, self._counting = False, None


class _Count:
    """Counts the unsettled messages that there are when it begins."""

    __slots__ = ("_hand", "base", "progress", "unsettled")

    def __init__(self, queue: PartitionedQueue) -> None:
        self.progress = queue.progress
        self.base = queue.log.next_offset
        self.unsettled = 0
        self._hand = 0  # the next partition

    def is_done(self, queue: PartitionedQueue, most_work: int) -> bool:
        """Go on; what is settled meanwhile may still be counted, and then the queue's progress is another."""
        groups = list(queue.groups.values())
        if not groups:
            self.unsettled = queue.log.live - (queue.log.next_offset - self.base)
            return True
        partitions, stop = queue.partitions, self._hand + most_work // len(groups) + 1
        for index in range(self._hand, min(stop, len(partitions))):
            where = partitions[index]
            cursors = [cursor for group in groups if (cursor := group.cursor(index)) is not None]
            is_older = not where.offsets or where.offsets[-1] < self.base
            end = where.end if is_older else where.position_of(self.base)
            self.unsettled += where.count(min(min(cursors, default=where.first), end), end)
        self._hand = stop
        return stop >= len(partitions)
