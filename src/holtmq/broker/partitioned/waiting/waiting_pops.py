"""Waiting pops: which event wakes which pop, and in which order, without polling.

Owns: the waiters by (queue, group, partition) and by (namespace, task, group), and the wake-ups planned for
the end of a lease, delay or window. Must not touch: clocks (``at`` and ``now`` are passed in), answers.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final

from holtmq.broker.partitioned.events import Acked, Pushed, QueueConfigured, QueueEvent
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import Popped, PopRequest, Waiter
from holtmq.broker.partitioned.waiting.wide_pops import WideLines, matches
from holtmq.journal.interface import JournalFailed

TRIES_AT_ONCE: Final = 300  # pops for waiters in one turn: about 13 ms
_LONG_TRY: Final = 100  # a pop that looks at very many partitions or queues takes as long as so many
_ANY = ""
_Line = OrderedDict[Waiter, None]  # in order of arrival; removal takes constant time
_Key = tuple[str, str, str]  # queue, group, partition (blank: any)
_Wide = tuple[str, str, str, str]  # namespace, task, group, and the reader if it may not read every queue


class WaitingLine:
    """All waiting pops of a node. ``pop`` is the service's; ``on_dirty`` asks the node for a turn."""

    def __init__(
        self,
        queues: Mapping[str, PartitionedQueue],
        wide: WideLines,
        pop: Callable[[PopRequest, float, bool], Popped | None],
    ) -> None:
        self._queues = queues
        self._wide_lines = wide
        self._pop = pop
        self.on_dirty: Callable[[], None] = _nothing
        self.at: Callable[[float, Callable[[], None]], object] = _never
        self._lines: dict[_Key, _Line] = {}
        self._groups: dict[str, dict[str, int]] = {}  # queue -> group -> how many wait
        self._wide: dict[_Wide, _Line] = {}
        self._dirty: dict[_Key, None] = {}
        self._dirty_wide: dict[_Wide, None] = {}
        # Planned wake-ups, each earlier than the one before. All are kept, so that none is planned twice.
        self._planned: dict[tuple[str, str], list[float]] = {}
        self._planned_wide: dict[_Wide, list[float]] = {}
        self._watchers: dict[str, list[Callable[[], None]]] = {}  # by queue: readers without a group
        self._members: dict[tuple[str, str], dict[Callable[[], None], None]] = {}  # queue, group: ``enlist``

    def __len__(self) -> int:
        return sum(map(len, self._lines.values())) + sum(map(len, self._wide.values()))

    def waiting_on(self, queue: str) -> int:
        return sum(self._groups.get(queue, {}).values())

    def add(self, waiter: Waiter, now: float) -> None:
        request = waiter.request
        if not request.queue:
            self._wide.setdefault(_wide_key(request), OrderedDict())[waiter] = None
            self._plan_wide(_wide_key(request))
            return
        self._lines.setdefault(_key(request), OrderedDict())[waiter] = None
        groups = self._groups.setdefault(request.queue, {})
        groups[request.group] = groups.get(request.group, 0) + 1
        found = self._queues.get(request.queue)
        if found is not None:
            self.plan(found, request.group)

    def remove(self, waiter: Waiter) -> None:
        """Withdraw a waiter; does nothing if it was served already."""
        if waiter.done:
            return
        waiter.end()
        request = waiter.request
        if not request.queue:
            wide = self._wide.get(_wide_key(request))
            if wide is not None and waiter in wide:
                del wide[waiter]
                if not wide:
                    del self._wide[_wide_key(request)]
            return
        line = self._lines.get(_key(request))
        if line is not None and waiter in line:
            del line[waiter]
            self._left(request)

    def _left(self, request: PopRequest) -> None:
        if not self._lines[_key(request)]:
            del self._lines[_key(request)]
        groups = self._groups[request.queue]
        groups[request.group] -= 1
        if not groups[request.group]:
            del groups[request.group]
            if not groups:
                del self._groups[request.queue]

    def drain(self) -> None:
        """The node stops: all waiters give up."""
        waiters = [w for line in (*self._lines.values(), *self._wide.values()) for w in line]
        self._lines.clear()
        self._groups.clear()
        self._wide.clear()
        for waiter in waiters:
            self._give_up(waiter)

    def _give_up(self, waiter: Waiter) -> None:
        give_up = waiter.give_up
        self.remove(waiter)
        give_up()

    def hear(self, queue: PartitionedQueue, event: QueueEvent) -> None:
        """Handle an event of a queue: mark the waiters that it may help."""
        if isinstance(event, QueueConfigured):
            self.on_dirty()  # retention may have been enabled
        if self._watchers and isinstance(event, Pushed):
            for tell in self._watchers.get(queue.name, ()):
                tell()
        groups = self._groups.get(queue.name)
        woken = queue.take_woken()
        self._wide_lines.hear(queue, woken)
        if groups is None and not self._wide:
            return
        partitions: set[str] | None = None
        if isinstance(event, Pushed):
            partitions = {queue.partitions[index].name for index in set(event.partitions)}
        elif isinstance(event, Acked):
            partitions = {queue.partitions[event.partition].name}
        self._mark_woken(queue, woken, partitions)

    def given_back(self, queue: PartitionedQueue) -> None:
        """A lease was released without an event: other consumers may claim its partition."""
        woken = queue.take_woken()
        self._wide_lines.hear(queue, woken)
        self._mark_woken(queue, woken, None)
        for group in woken:
            self._tell_members((queue.name, group))

    def _mark_woken(self, queue: PartitionedQueue, woken: set[str], partitions: set[str] | None) -> None:
        for group in self._groups.get(queue.name, ()):
            if group in woken or group not in queue.groups:
                self._mark(queue.name, group, partitions)
        for key in self._wide:
            if (key[2] in woken or key[2] not in queue.groups) and matches(key[0], key[1], queue):
                self._mark_wide(key)

    def watch(self, queues: Iterable[str], tell: Callable[[], None]) -> None:
        """Call ``tell`` at every push to these queues, until ``unwatch``."""
        for name in queues:
            self._watchers.setdefault(name, []).append(tell)

    def unwatch(self, queues: Iterable[str], tell: Callable[[], None]) -> None:
        for name in queues:
            self._watchers[name].remove(tell)
            if not self._watchers[name]:
                del self._watchers[name]

    def enlist(self, queue: str, group: str, tell: Callable[[], None]) -> None:
        """Register a group member that pops by itself at every event of its queue. ``tell`` reports what is
        no event: a lease was released, a planned deadline has passed, or pops are no longer paused."""
        self._members.setdefault((queue, group), {})[tell] = None

    def discharge(self, queue: str, group: str, tell: Callable[[], None]) -> None:
        del self._members[queue, group][tell]
        if not self._members[queue, group]:
            del self._members[queue, group]

    def _tell_members(self, key: tuple[str, str]) -> None:
        for tell in self._members.get(key, ()):
            tell()

    def wake_all(self) -> None:
        """Wake every waiter: pops are no longer paused."""
        for member in self._members:
            self._tell_members(member)
        for key in self._lines:
            self._dirty[key] = None
        for wide in self._wide:
            self._dirty_wide[wide] = None
        self.on_dirty()

    def _mark(self, queue: str, group: str, partitions: set[str] | None) -> None:
        if not self._dirty and not self._dirty_wide:
            self.on_dirty()
        if partitions is None:
            for key in self._lines:
                if key[0] == queue and key[1] == group:
                    self._dirty[key] = None
            return
        if (queue, group, _ANY) in self._lines:
            self._dirty[queue, group, _ANY] = None
        for partition in partitions:
            if (queue, group, partition) in self._lines:
                self._dirty[queue, group, partition] = None

    def _mark_wide(self, key: _Wide) -> None:
        if not self._dirty and not self._dirty_wide:
            self.on_dirty()
        self._dirty_wide[key] = None

    def plan(self, queue: PartitionedQueue, group: str) -> None:
        """Wake the group's waiters when its next lease, delay or window ends."""
        if group in self._groups.get(queue.name, ()):
            self._plan(queue, group, 0.0, inf)

    def plan_for_member(
        self, queue: PartitionedQueue, group: str, not_before: float, not_after: float
    ) -> None:
        """The same for members, at ``not_before`` or later; ignores deadlines after ``not_after``."""
        self._plan(queue, group, not_before, not_after)

    def _plan(self, queue: PartitionedQueue, group: str, not_before: float, not_after: float) -> None:
        reader = queue.groups.get(group)
        due = reader.ready.next_deadline() if reader is not None else None
        if due is None or due > not_after:
            return
        due = max(due, not_before)
        key = (queue.name, group)
        planned = self._planned.setdefault(key, [])
        if not planned or due < planned[-1]:
            planned.append(due)
            self.at(due, lambda: self._deadline(key, due))

    def _deadline(self, key: tuple[str, str], due: float) -> None:
        planned = self._planned[key]
        planned.remove(due)
        if not planned:
            del self._planned[key]
        name, group = key
        if group in self._groups.get(name, ()):
            self._mark(name, group, None)
        self._tell_members(key)

    def _plan_wide(self, key: _Wide) -> None:
        due = self._wide_lines.line(*key[:3]).next_deadline()
        if due is None:
            return
        planned = self._planned_wide.setdefault(key, [])
        if not planned or due < planned[-1]:
            planned.append(due)
            self.at(due, lambda: self._wide_deadline(key, due))

    def _wide_deadline(self, key: _Wide, due: float) -> None:
        planned = self._planned_wide[key]
        planned.remove(due)
        if not planned:
            del self._planned_wide[key]
        if key in self._wide:
            self._mark_wide(key)

    def serve(self, now: float) -> None:
        """Serve the woken waiters, in order of arrival; of very many only some, the next turn goes on."""
        tries = TRIES_AT_ONCE
        while tries > 0 and (self._dirty or self._dirty_wide):
            narrow, wide = deque(self._dirty), deque(self._dirty_wide)
            self._dirty.clear()
            self._dirty_wide.clear()
            try:
                while narrow and tries > 0:
                    key = narrow.popleft()
                    if line := self._lines.get(key):
                        tries = self._serve_line(line, now, tries)
                        if tries == 0:
                            narrow.appendleft(key)
                while wide and tries > 0:
                    wide_key = wide.popleft()
                    if line := self._wide.get(wide_key):
                        tries = self._serve_wide(wide_key, line, now, tries)
                        if tries == 0:
                            wide.appendleft(wide_key)
            finally:
                if narrow or wide:  # also after an error: one queue must not block the others
                    self._dirty = dict.fromkeys(narrow) | self._dirty
                    self._dirty_wide = dict.fromkeys(wide) | self._dirty_wide
                    self.on_dirty()

    def _serve_line(self, line: _Line, now: float, tries: int) -> int:
        """Serve at most so many; return how many tries are left, 0 if some may still wait for their turn.

        It is negative if the line is to wait behind others: its first pop has more places to look at.
        """
        while line and tries:
            tries -= 1
            waiter = next(iter(line))
            popped = self._try(waiter, now)
            if waiter.done:
                continue
            if popped is None:
                queue = self._queues.get(waiter.request.queue)
                if queue is not None:
                    self.plan(queue, waiter.request.group)
                return tries
            if not popped.runs:
                waiter.wrote = popped.waits
                self._mark(waiter.request.queue, waiter.request.group, set())
                return tries - _LONG_TRY or -1
            del line[waiter]
            self._left(waiter.request)
            _deliver(waiter, popped)
        return tries

    def _serve_wide(self, key: _Wide, line: _Line, now: float, tries: int) -> int:
        while line and tries:
            tries -= 1
            waiter = next(iter(line))
            popped = self._try(waiter, now)
            if waiter.done:
                continue
            if popped is None:
                self._plan_wide(key)
                return tries
            if not popped.runs:
                waiter.wrote = popped.waits
                self._mark_wide(key)
                return tries - _LONG_TRY or -1
            del line[waiter]
            if not line:
                del self._wide[key]
            _deliver(waiter, popped)
        return tries

    def _try(self, waiter: Waiter, now: float) -> Popped | None:
        """Pop for a waiter; if that fails, the waiter gives up and does not block the others."""
        try:
            return self._pop(waiter.request, now, waiter.wrote)
        except JournalFailed:  # an auto-ack must be written
            self._give_up(waiter)
            return None
        except BaseException:
            self._give_up(waiter)
            raise


def _deliver(waiter: Waiter, popped: Popped) -> None:
    deliver = waiter.deliver
    waiter.end()
    deliver(popped)


def _key(request: PopRequest) -> _Key:
    return request.queue, request.group, request.partition


def _wide_key(request: PopRequest) -> _Wide:
    return request.namespace, request.task, request.group, request.reader


def _nothing() -> None:
    return None


def _never(_at: float, _action: Callable[[], None]) -> None:
    return None
