"""Finds the messages of one partition by their transaction ids.

Owns: where it looks. For an id inside the dedup window that is one lookup. Others are compared with the ids
of messages around a cursor, which takes a millisecond for the first of them. Must not touch: groups, leases.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holtmq.broker.partitioned.queue import PartitionedQueue

SCAN_MAX: Final = 4_096  # messages on each side of a cursor


class IdSearch:
    """For one partition. Between two ids messages may come and go."""

    __slots__ = ("_index", "_near", "_nearby", "_positions", "_queue")

    def __init__(self, queue: PartitionedQueue, partition: int, near: int | None = None) -> None:
        self._queue = queue
        self._index = partition
        self._near = near  # None: the newest message
        self._nearby: dict[int, int] | None = None  # fingerprint -> position
        self._positions: list[
            tuple[int, int]
        ] = []  # (fingerprint, position), those that count first at the end

    def find(self, transaction_id: str) -> int | None:
        """Position of the message; None when it is not stored or not visible yet."""
        position = self.find_recent(transaction_id)
        if position is None:
            if self._nearby is None:
                self._nearby = self._look_around()
            print_ = self._queue.fingerprint(self._index, transaction_id)
            position = self._nearby.get(print_)
            if position is not None and not self._carries(position, transaction_id):
                return self._find_twin(print_, transaction_id)
        return position

    def _carries(self, position: int, transaction_id: str) -> bool:
        offset = self._offset(position, transaction_id)
        return offset is not None and self._queue.carries(offset, transaction_id)

    def _find_twin(self, print_: int, transaction_id: str) -> int | None:
        """Another message has the fingerprint of this id, or it has left since: look at all with it."""
        for other, position in reversed(self._positions):
            if other == print_ and self._carries(position, transaction_id):
                return position
        return None

    def find_recent(self, transaction_id: str) -> int | None:
        """Likewise, of messages inside the dedup window."""
        queue = self._queue
        durable_end = queue.log.durable_end
        for offset in queue.dedup.candidates(queue.fingerprint(self._index, transaction_id)):
            if (
                offset < durable_end
                and queue.log.partition(offset) == self._index
                and queue.carries(offset, transaction_id)
            ):
                return queue.partitions[self._index].position_of(offset)
        return None

    def confirmed(self, position: int | None, transaction_id: str) -> int | None:
        """What was found in an earlier turn, if the message is still there."""
        if position is None:
            return self.find_recent(transaction_id)
        return None if self._offset(position, transaction_id) is None else position

    def _offset(self, position: int, transaction_id: str) -> int | None:
        """Of a message that was found; None if it is not there any more."""
        queue, where = self._queue, self._queue.partitions[self._index]
        if not where.first <= position < where.end:
            return None
        offset = where.offsets[position - where.first]
        print_ = queue.log.fingerprint(offset)
        return offset if print_ == queue.fingerprint(self._index, transaction_id) else None

    def _look_around(self) -> dict[int, int]:
        """Of two messages with one id, one behind the cursor counts, or else the nearest."""
        where = self._queue.partitions[self._index]
        shown = where.position_of(self._queue.log.durable_end) - where.first
        middle = shown if self._near is None else min(max(self._near - where.first, 0), shown)
        low, high = max(0, middle - SCAN_MAX), min(shown, middle + SCAN_MAX)
        prints = self._queue.log.fingerprints(where.offsets[low:high])  # a hole's matches no id
        rows = chain(range(low, middle), range(high - 1, middle - 1, -1))
        first = where.first
        self._positions = [(prints[row - low], first + row) for row in rows]
        return dict(self._positions)
