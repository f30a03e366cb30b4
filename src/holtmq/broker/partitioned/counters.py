"""Counters of the partitioned queues. They only go up; readers derive rates from them.

Owns: one set of counters per queue name, and what was counted since the last reading. Must not touch: clocks,
wire names.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final


class QueueCounts:
    """What happened on one queue since the node started."""

    __slots__ = (
        "_read",
        "ack_failed",
        "ack_requests",
        "ack_success",
        "dead_letters",
        "evicted",
        "lag_max_us",
        "lag_sum_us",
        "partitions_created",
        "partitions_deleted",
        "pop_empty",
        "pop_messages",
        "pop_requests",
        "push_messages",
        "push_requests",
        "retained",
        "retained_completed",
        "transactions",
    )

    def __init__(self) -> None:
        self.push_requests = self.push_messages = 0
        self.pop_requests = self.pop_messages = self.pop_empty = 0
        self.ack_requests = self.ack_success = self.ack_failed = 0
        self.transactions = self.dead_letters = 0
        self.retained = self.evicted = 0  # messages removed by retention and by eviction
        self.retained_completed = 0  # removed by completed retention; not counted in ``retained``
        self.partitions_created = self.partitions_deleted = 0
        self.lag_sum_us = self.lag_max_us = 0  # age of the oldest message of each delivery
        self._read = _NOTHING  # the sums at the last ``take``

    def pushed(self, requests: int, messages: int, new_partitions: int) -> None:
        self.push_requests += requests
        self.push_messages += messages
        self.partitions_created += new_partitions

    def popped(self, count: int, lag_us: int) -> None:
        self.pop_requests += 1
        self.pop_messages += count
        self.lag_sum_us += lag_us
        if lag_us > self.lag_max_us:
            self.lag_max_us = lag_us

    def acked(self, success: int, failed: int) -> None:
        self.ack_requests += 1
        self.ack_success += success
        self.ack_failed += failed

    def add(self, more: "QueueCounts") -> None:
        """Add what was counted elsewhere."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.lag_max_us = max(self.lag_max_us, more.lag_max_us)

    def take(self) -> "QueueCounts | None":
        """What was counted since the last call; None: nothing."""
        sums = _sums(self)
        if sums == self._read:
            return None
        more = QueueCounts()
        for name, now, before in zip(_SUMS, sums, self._read, strict=True):
            setattr(more, name, now - before)
        self._read = sums
        more.lag_max_us, self.lag_max_us = self.lag_max_us, 0
        return more


_SUMS: Final = tuple(name for name in QueueCounts.__slots__ if name not in ("_read", "lag_max_us"))
_NOTHING: Final = (0,) * len(_SUMS)
_sums: Final = attrgetter(*_SUMS)


class QueueCounters:
    """The counters of all queues. A deleted queue's counters are removed but stay in the totals."""

    __slots__ = ("_ended", "_unread", "_used", "queues", "total")

    def __init__(self) -> None:
        self.queues: dict[str, QueueCounts] = {}
        self.total = QueueCounts()  # of all queues, also of deleted ones, as of the last ``readings``
        self._used: set[str] = set()
        self._unread: set[str] = set()
        self._ended: list[tuple[str, QueueCounts]] = []  # of deleted queues, not read yet

    def of(self, queue: str) -> QueueCounts:
        """The counters of one queue, for the caller to change."""
        self._used.add(queue)
        found = self.queues.get(queue)
        if found is None:
            found = self.queues[queue] = QueueCounts()
        return found

    def take_used(self) -> set[str]:
        """The queues whose counters were requested since the last call."""
        used, self._used = self._used, set()
        self._unread |= used
        return used

    def forget(self, queue: str) -> None:
        self._used.add(queue)
        counters = self.queues.pop(queue, None)
        if counters is not None:
            self._ended.append((queue, counters))

    def readings(self) -> Iterator[tuple[str, QueueCounts | None]]:
        """What each queue counted since it was last read, if anything.

        Very many can be read in steps. Of several that read at once, each gets a part.
        """
        self._unread |= self._used
        while self._ended or self._unread:
            if self._ended:
                name, counters = self._ended.pop()
            else:
                name = self._unread.pop()
                found = self.queues.get(name)
                if found is None:
                    continue
                counters = found
            more = counters.take()
            if more is not None:
                self.total.add(more)
            yield name, more
