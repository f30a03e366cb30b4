"""A group's place in each partition: the columns to sort by, and the row that they make.

Owns: both. Must not touch: state, how a lag is counted. A group may read 100,000 partitions: the list is
sorted by one column, and only the partitions of the page become rows.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from holtmq.broker.partitioned.groups.group import Group, micros
from holtmq.broker.partitioned.groups.partition_leases import PartitionLease
from holtmq.broker.partitioned.log.message_log import NO_PARTITION
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.statistics import group_partition

_US: Final = 1_000_000


class PlaceRow(msgspec.Struct, kw_only=True):
    """A group's place in one partition."""

    partition: str
    cursor: int
    messages: int
    seconds: float
    retries: int
    consumed: int
    last_consumed: int | None  # milliseconds
    lease: str | None
    lease_size: int
    lease_left: float | None  # seconds


PLACE_COLUMNS: Final = frozenset(PlaceRow.__struct_fields__)


class Places:
    """The places of one group now. Methods named as a column of ``PlaceRow`` give what to sort by: an order
    as that of its values, read faster. Unknown values come before all others."""

    def __init__(self, queue: PartitionedQueue, group: Group, now: float) -> None:
        self._queue = queue
        self._group = group
        self._now = now
        self._now_us = micros(now)

    def sort_key(self, column: str) -> Callable[[int], tuple[object, str]]:
        """How to sort partitions by this column, one of ``PLACE_COLUMNS``, and by name where it is equal."""
        value: Callable[[int], object] = getattr(self, column)
        partitions = self._queue.partitions
        return lambda index: (value(index), partitions[index].name)

    def row(self, index: int) -> PlaceRow | None:
        """The row; None when the partition was deleted meanwhile."""
        where = self._queue.partitions[index]
        place = None if where is NO_PARTITION else group_partition(self._queue, self._group, index, self._now)
        if place is None:
            return None
        behind = 0.0 if place.oldest_us is None else (self._now_us - place.oldest_us) / _US
        until = place.lease_expires_at
        return PlaceRow(
            partition=where.name,
            cursor=place.cursor,
            messages=place.lag,
            seconds=max(0.0, round(behind, 1)),
            retries=place.retry_count,
            consumed=place.consumed,
            last_consumed=place.last_consumed_us // 1000 or None,
            lease=place.lease_id,
            lease_size=place.lease_size,
            lease_left=None if until is None else round(until - self._now, 1),
        )

    def partition(self, index: int) -> str:
        return self._queue.partitions[index].name

    def cursor(self, index: int) -> int:
        cursor = self._group.cursor(index)
        return -1 if cursor is None else cursor

    def messages(self, index: int) -> int:
        return self._group.lag(index)

    def seconds(self, index: int) -> int:
        cursor, where = self._group.cursor(index), self._queue.partitions[index]
        if cursor is None or where.count(cursor) <= 0:  # also of a partition that was deleted meanwhile
            return 0
        head = where.live_from(cursor) - where.first
        return max(0, self._now_us - self._queue.log.created_us(where.offsets[head]))

    def retries(self, index: int) -> int:
        return self._group.leases.retries.get(index, 0)

    def consumed(self, index: int) -> int:
        leases = self._group.leases
        return 0 if leases.cursor(index) is None else leases.consumed[index]

    def last_consumed(self, index: int) -> int:
        leases = self._group.leases
        return 0 if leases.cursor(index) is None else leases.settled_at[index]

    def lease(self, index: int) -> str:
        lease = self._lease(index)
        return "" if lease is None else lease.id

    def lease_size(self, index: int) -> int:
        lease = self._lease(index)
        return 0 if lease is None else lease.size

    def lease_left(self, index: int) -> float:
        lease = self._lease(index)
        return -1.0 if lease is None else lease.expires_at

    def _lease(self, index: int) -> PartitionLease | None:
        return self._group.leases.lease(index, self._now)
