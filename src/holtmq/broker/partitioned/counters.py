"""Counters of the partitioned queues. They only go up; readers derive rates from them.

Owns: one set of counters per queue name. Must not touch: clocks, wire names.
"""


class QueueCounts:
    """What happened on one queue since the node started."""

    __slots__ = (
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


class QueueCounters:
    """The counters of all queues. A deleted queue's counters are removed but stay in the totals."""

    __slots__ = ("_gone", "_used", "queues")

    def __init__(self) -> None:
        self.queues: dict[str, QueueCounts] = {}
        self._used: set[str] = set()
        self._gone = QueueCounts()  # sum over deleted queues: a total that falls would look like a restart

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
        return used

    def forget(self, queue: str) -> None:
        self._used.add(queue)
        counters = self.queues.pop(queue, None)
        if counters is not None:
            _add(self._gone, counters)
            self._gone.lag_max_us = 0

    def total(self) -> QueueCounts:
        """All queues together."""
        total = QueueCounts()
        for counters in (self._gone, *self.queues.values()):
            _add(total, counters)
        return total


def _add(total: QueueCounts, counters: QueueCounts) -> None:
    for name in QueueCounts.__slots__:
        if name != "lag_max_us":
            setattr(total, name, getattr(total, name) + getattr(counters, name))
    total.lag_max_us = max(total.lag_max_us, counters.lag_max_us)
