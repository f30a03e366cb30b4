"""Which queues of a namespace or task a group may find something in, without looking at the others.

Owns: for every (namespace, task, group) that has popped, the line of queues worth a look, higher priorities
first and fair among equals, and the times at which others join it. A queue in line is a hint that the pop
verifies; the promise is the reverse: a queue with something to claim is in line or has a deadline. Must not
touch: claims, clocks.
"""

from collections.abc import Iterator, Mapping

from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.waiting.ready_partitions import ReadyPartitions

_Scope = tuple[str, str]  # namespace, task; blank: any


def matches(namespace: str, task: str, queue: PartitionedQueue) -> bool:
    """Whether a queue is of this namespace and task."""
    return (not namespace or queue.namespace == namespace) and (not task or queue.task == task)


class WideLine:
    """One group over the queues of one namespace and task; queues go by their numbers."""

    def __init__(self, namespace: str, task: str, group: str, queues: Mapping[int, PartitionedQueue]) -> None:
        self._namespace = namespace
        self._task = task
        self._group = group
        self._queues = queues
        self._levels: dict[int, ReadyPartitions] = {}  # by what a queue's priority sorts as
        self._later = ReadyPartitions()  # deadlines only
        for queue in queues.values():
            if matches(namespace, task, queue):
                self.offer(queue)

    def offer(self, queue: PartitionedQueue) -> None:
        """The queue may have something for the group."""
        level = self._levels.get(queue.config.priority_order)
        if level is None:
            level = self._levels[queue.config.priority_order] = ReadyPartitions()
        level.offer(queue.number)

    def take(self, now: float) -> Iterator[PartitionedQueue]:
        """The queues in line, each once. Who takes one offers it again, or says that it was ``empty``."""
        for number in self._later.due(now):
            due = self._queues.get(number)
            if due is not None:
                self.offer(due)
        for order in sorted(self._levels):
            level = self._levels[order]
            for _ in range(len(level)):
                first = level.take()
                queue = self._queues.get(first) if first is not None else None
                if queue is None or not matches(self._namespace, self._task, queue):
                    continue  # deleted, or moved away
                if queue.config.priority_order == order:
                    yield queue
                else:
                    self.offer(queue)

    def empty(self, queue: PartitionedQueue) -> None:
        """Nothing to claim there before something happens, or a lease, delay or window ends."""
        reader = queue.groups.get(self._group)
        due = reader.ready.next_deadline() if reader is not None else None
        if due is not None:
            self._later.wake_at(queue.number, due)

    def next_deadline(self) -> float | None:
        return self._later.next_deadline()


class WideLines:
    """See the module."""

    def __init__(self, queues: Mapping[int, PartitionedQueue]) -> None:
        self._queues = queues
        self._scopes: dict[_Scope, dict[str, WideLine]] = {}

    def line(self, namespace: str, task: str, group: str) -> WideLine:
        """The group's line; at its first pop every queue is worth a look."""
        groups = self._scopes.setdefault((namespace, task), {})
        found = groups.get(group)
        if found is None:
            found = groups[group] = WideLine(namespace, task, group, self._queues)
        return found

    def hear(self, queue: PartitionedQueue, woken: set[str]) -> None:
        """Something happened to a queue that may help these groups, and any that does not read it yet."""
        if not self._scopes:
            return
        namespace, task = queue.namespace, queue.task
        for scope in {(namespace, task), (namespace, ""), ("", task), ("", "")}:
            for group, line in self._scopes.get(scope, {}).items():
                if group in woken or group not in queue.groups:
                    line.offer(queue)

    def clear(self) -> None:
        """Groups or their records went away: the next pops look at everything again."""
        self._scopes.clear()
