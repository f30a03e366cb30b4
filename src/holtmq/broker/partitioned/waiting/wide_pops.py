"""The queues of a namespace or task in which a group may find messages, so that the others need no check.

Owns: for every (namespace, task, group) that has popped, the line of candidate queues, higher priorities
first and FIFO among equals, and the times at which others join it. A queue in line may turn out empty, so
the pop verifies it; but every queue with claimable messages is in line or has a deadline. Must not touch:
claims, clocks.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.waiting.ready_partitions import ReadyPartitions

_DEADLINES_AT_ONCE: Final = 2_000

_Scope = tuple[str, str]  # namespace, task; blank: any


def matches(namespace: str, task: str, queue: PartitionedQueue) -> bool:
    """Whether a queue belongs to this namespace and task."""
    return (not namespace or queue.namespace == namespace) and (not task or queue.task == task)


class WideLine:
    """One group over the queues of one namespace and task; queues are identified by number."""

    def __init__(self, namespace: str, task: str, group: str, queues: Mapping[int, PartitionedQueue]) -> None:
        self._namespace = namespace
        self._task = task
        self._group = group
        self._queues = queues
        self._levels: dict[int, ReadyPartitions] = {}  # by ``priority_order``
        self._later = ReadyPartitions()  # deadlines only
        levels: dict[int, list[int]] = {}
        for number, queue in queues.items():  # there may be 100,000
            if matches(namespace, task, queue):
                levels.setdefault(queue.config.priority_order, []).append(number)
        for order, numbers in levels.items():
            self._levels[order] = ReadyPartitions()
            self._levels[order].rebuild(numbers, {})

    def offer(self, queue: PartitionedQueue) -> None:
        """Add a queue that may have messages for the group."""
        level = self._levels.get(queue.config.priority_order)
        if level is None:
            level = self._levels[queue.config.priority_order] = ReadyPartitions()
        level.offer(queue.number)

    def take(self, now: float) -> Iterator[PartitionedQueue]:
        """The queues in line. The caller must ``offer`` each again or report it ``empty``."""
        has_more = True
        while has_more:
            passed = self._later.due(now, _DEADLINES_AT_ONCE)
            has_more = len(passed) == _DEADLINES_AT_ONCE
            for number in passed:
                due = self._queues.get(number)
                if due is not None:
                    self.offer(due)
            for order in sorted(self._levels):
                yield from self._take_level(order, self._levels[order])

    def _take_level(self, order: int, level: ReadyPartitions) -> Iterator[PartitionedQueue]:
        for _ in range(len(level)):
            first = level.take()
            queue = self._queues.get(first) if first is not None else None
            if queue is None or not matches(self._namespace, self._task, queue):
                continue  # deleted, or moved to another namespace or task
            if queue.config.priority_order == order:
                yield queue
            else:
                self.offer(queue)

    def empty(self, queue: PartitionedQueue) -> None:
        """Nothing is claimable until the next event, or until a lease, delay or window ends."""
        reader = queue.groups.get(self._group)
        due = reader.ready.next_deadline() if reader is not None else None
        if due is not None:
            self._later.wake_at(queue.number, due)

    def next_deadline(self) -> float | None:
        return self._later.next_deadline()


class WideLines:
    """The lines of all (namespace, task, group)."""

    def __init__(self, queues: Mapping[int, PartitionedQueue]) -> None:
        self._queues = queues
        self._scopes: dict[_Scope, dict[str, WideLine]] = {}

    def has_line(self, namespace: str, task: str, group: str) -> bool:
        """Whether the group's line is made; to make it takes long."""
        return group in self._scopes.get((namespace, task), ())

    def line(self, namespace: str, task: str, group: str) -> WideLine:
        """The group's line; a new line contains every matching queue."""
        groups = self._scopes.setdefault((namespace, task), {})
        found = groups.get(group)
        if found is None:
            found = groups[group] = WideLine(namespace, task, group, self._queues)
        return found

    def hear(self, queue: PartitionedQueue, woken: set[str]) -> None:
        """Handle an event of a queue: offer it to these groups, and to groups that do not read it yet."""
        if not self._scopes:
            return
        namespace, task = queue.namespace, queue.task
        for scope in {(namespace, task), (namespace, ""), ("", task), ("", "")}:
            for group, line in self._scopes.get(scope, {}).items():
                if group in woken or group not in queue.groups:
                    line.offer(queue)

    def clear(self) -> None:
        """Drop all lines, after groups or their records were deleted; the next pops check every queue."""
        self._scopes.clear()
