"""Retention and eviction over all queues, in steps: there may be very many, and each may have much to drop.

Owns: which queue comes next, and how much is done in a step. Must not touch: what is too old
(``retention.py`` and ``stream_limits.py``), clocks.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Final

from holtmq.broker.partitioned.commands.retention import decide_retention
from holtmq.broker.partitioned.commands.stream_limits import StreamLimits
from holtmq.broker.partitioned.counters import QueueCounters
from holtmq.broker.partitioned.events import Acked, QueueEvent, Trimmed
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.store import PartitionedStore

# Work of a step, in queues without anything to drop: about 5 ms. One queue may exceed it.
_WORK: Final = 2_000
_EVENTS: Final = 20
_MESSAGES: Final = 5  # dropped in the time of one unit
_MEASURED: Final = 500  # a queue whose sizes are being measured


class RetentionPass:
    """One pass over the queues after the other."""

    def __init__(self, store: PartitionedStore, counters: QueueCounters, limits: StreamLimits) -> None:
        self._store = store
        self._counters = counters
        self._limits = limits
        self._left: Iterator[int] | None = None  # numbers of queues
        self._kinds = (False, False)
        self._found = False  # something was dropped in this pass: there may be more

    def step(self, now: float, *, eviction: bool, retention: bool) -> bool:
        """One bounded step; return whether there may be more. Another choice begins a new pass."""
        if self._left is None or self._kinds != (eviction, retention):
            self._left, self._kinds, self._found = self._queues(retention), (eviction, retention), False
        work = _WORK
        for number in self._left:
            queue = self._store.by_number.get(number)
            if queue is not None:
                work -= self._visit(queue, now, eviction=eviction, retention=retention)
            if work <= 0:
                return True
        self._left = None
        return self._found

    def _queues(self, retention: bool) -> Iterator[int]:
        """An array: the garbage collector would look at the items of a list, again and again."""
        aging, queues = self._store.aging, self._store.queues
        numbers = array("Q", aging)
        if retention and self._limits:
            named = (queues.get(name) for name in self._limits.names())
            numbers.extend(queue.number for queue in named if queue is not None and queue.number not in aging)
            self._limits.drop_scales(self._store.by_number.__contains__)
        return iter(numbers)

    def _visit(self, queue: PartitionedQueue, now: float, *, eviction: bool, retention: bool) -> int:
        """Drop what is too old; return how much work it was."""
        config = queue.config
        floor, busy = self._limits.floor(queue, now) if retention else (0, False)
        work = _MEASURED if busy else 1
        if floor or (eviction and config.max_wait_seconds) or (retention and config.retention_enabled):
            events = decide_retention(queue, now, floor=floor)
            if events:
                work += _EVENTS + self._count(queue, events) // _MESSAGES
                self._store.commit([(queue.number, event) for event in events])
                self._found = True
        self._found = self._found or busy
        return work

    def _count(self, queue: PartitionedQueue, events: Sequence[QueueEvent]) -> int:
        """Count the messages that leave; return how many."""
        counters, count = self._counters.of(queue.name), 0
        for event in events:
            if isinstance(event, Acked):
                counters.dead_letters += len(event.dead_letters)
                counters.evicted += len(event.dead_letters)
                count += len(event.dead_letters)
            elif isinstance(event, Trimmed):
                partitions = zip(event.partitions, event.firsts, strict=True)
                wheres = [(queue.partitions[index], first) for index, first in partitions]
                gone = sum(where.count(where.first, first) for where, first in wheres)
                counters.retained += gone - event.completed - event.overdue
                counters.retained_completed += event.completed
                counters.evicted += event.overdue
                count += gone
        return count
