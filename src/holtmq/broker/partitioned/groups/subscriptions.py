"""Where a named group starts: recorded at its first pop, and used for every later partition.

Owns: the records by (group, queue, partition, namespace, task), blank meaning "any", and which of them
wins. Must not touch: cursors, queues, clocks. A start is a time; a queue turns it into an offset.

A record is deleted with its group or its queue, but not with its partition: if the partition is created
again, a pop in mode ``new`` would otherwise skip messages pushed before that pop. So each (group, partition)
pair that was popped by name costs half a kilobyte permanently.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.events import (
    Subscribed,
    SubscriptionEvent,
    SubscriptionMoved,
    SubscriptionsForgotten,
)
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.queue_config import US

_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A later time, converted to another zone or rounded up, could exceed the last year of ``datetime``.
_LAST_US: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _FIRST).days * 86_400 * US


class StartMode(Enum):
    """Where a group starts."""

    ALL = "all"
    NEW = "new"
    TIMESTAMP = "timestamp"


class StartRequest(NamedTuple):
    """The start that a pop requests; the time is used by ``TIMESTAMP`` only."""

    mode: StartMode = StartMode.ALL
    timestamp_us: int = 0
    explicit: bool = True  # False: the pop named no start, so a wider record applies


class Scope(NamedTuple):
    """What a pop reads: a queue or one partition of it, or every queue of a namespace and/or task."""

    queue: str = ""
    partition: str = ""
    namespace: str = ""
    task: str = ""


class Subscription(NamedTuple):
    """A recorded start. For ``NEW`` the look-back is already subtracted from the time."""

    mode: StartMode
    timestamp_us: int
    created_us: int


def read_start(mode: str | None, start: str | None, default_mode: str = "") -> StartRequest:
    """Parse a pop's parameters. ``start`` wins over ``mode``; without both, the server's default applies."""
    if start:
        if start == "now":
            return StartRequest(StartMode.NEW)
        return StartRequest(StartMode.TIMESTAMP, read_timestamp(start))
    word = mode or default_mode
    return StartRequest(StartMode.NEW if word in ("new", "new-only") else StartMode.ALL, explicit=bool(mode))


def read_timestamp(text: str) -> int:
    """ISO-8601 to microseconds; without a zone it is UTC. A bad time is refused: "all" would replay a queue.

    Times outside the supported range are clamped to it.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Conflict(f"not an ISO-8601 time: {text[:64]!r}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _FIRST
    return min(max(0, (since.days * 86_400 + since.seconds) * US + since.microseconds), _LAST_US)


class _Records:
    """The records of one group. To move all of them is one operation, however many there are.

    A capture shares them: they change only if they are younger (``Subscriptions.capture``).
    """

    __slots__ = ("_later", "_moved", "_moved_us", "age")

    def __init__(self, age: int = 0) -> None:
        self.age = age  # how many captures there were before it
        self._moved: dict[Scope, Subscription] = {}  # these start at ``_moved_us``, whatever they say
        self._moved_us = 0
        self._later: dict[Scope, Subscription] = {}  # recorded since

    def __len__(self) -> int:
        return len(self._moved) + len(self._later)

    def __contains__(self, scope: Scope) -> bool:
        return scope in self._moved or scope in self._later

    def get(self, scope: Scope) -> Subscription | None:
        old = self._moved.get(scope)
        return self._later.get(scope) if old is None else self._as_moved(old)

    def _as_moved(self, old: Subscription) -> Subscription:
        return Subscription(StartMode.TIMESTAMP, self._moved_us, old.created_us)

    def add(self, scope: Scope, subscription: Subscription) -> None:
        """Add a record, unless there is one for this scope."""
        if scope not in self._moved:
            self._later.setdefault(scope, subscription)

    def move(self, timestamp_us: int) -> None:
        """Move all starts to this time."""
        if self._moved:
            self._moved.update(self._later)
        else:
            self._moved = self._later
        self._moved_us, self._later = timestamp_us, {}

    def discard(self, scope: Scope) -> None:
        self._moved.pop(scope, None)
        self._later.pop(scope, None)

    def copy(self, age: int) -> _Records:
        copied = _Records(age)
        copied._moved, copied._moved_us = self._moved.copy(), self._moved_us
        copied._later = self._later.copy()
        return copied

    def scopes(self) -> list[Scope]:
        return [*self._moved, *self._later]

    def items(self) -> Iterator[tuple[Scope, Subscription]]:
        for scope, old in self._moved.items():
            yield scope, self._as_moved(old)
        yield from self._later.items()

    def taken_out(self) -> Iterator[Scope]:
        """Free everything, one record in each step."""
        for records in (self._moved, self._later):
            while records:
                yield records.popitem()[0]


_NO_RECORDS: Final = _Records()


class Subscriptions:
    """All records of the node, by group."""

    __slots__ = ("_captures", "_forgotten", "_groups", "_of_queues")

    def __init__(self) -> None:
        self._captures = 0
        self._groups: dict[str, _Records] = {}
        # The groups with a record for a queue, and the partitions that have one of their own. They may still
        # be here when the whole group is forgotten, until ``free``.
        self._of_queues: dict[str, dict[str, set[str]]] = {}
        self._forgotten: list[tuple[str, _Records]] = []  # of whole groups, for ``free``

    def record(self, group: str, scope: Scope) -> Subscription | None:
        """The record of exactly this scope."""
        return self._groups.get(group, _NO_RECORDS).get(scope)

    def records(self, group: str | None = None) -> Iterator[tuple[str, Scope, Subscription]]:
        for name in list(self._groups) if group is None else [group]:
            for scope, subscription in self._groups.get(name, _NO_RECORDS).items():
                yield name, scope, subscription

    def scopes(self, group: str) -> list[Scope]:
        """What the group has records for."""
        return self._groups.get(group, _NO_RECORDS).scopes()

    def capture(self) -> Iterator[Subscribed]:
        """The events that recreate the records of this moment, for a checkpoint. They may be made later.

        Nothing is copied: there may be 100,000 groups. A group's records are, before they change.
        """
        self._captures += 1
        return _as_events(list(self._groups.items()))

    def lookup(self, group: str, where: Scope) -> Subscription | None:
        """The most specific record for a partition: of the partition, the queue, then namespace and task."""
        records = self._groups.get(group)
        if not records:
            return None
        queue, partition, namespace, task = where
        for scope in (
            Scope(queue, partition),
            Scope(queue),
            Scope("", "", namespace, task),
            Scope("", "", namespace),
            Scope("", "", "", task),
            Scope(),
        ):
            found = records.get(scope)
            if found is not None:
                return found
        return None

    def decide(
        self, group: str, scope: Scope, request: StartRequest, now: float, lookback: float
    ) -> Subscribed | None:
        """The record of a first start; None when the scope has one, even if the request differs."""
        if self.record(group, scope) is not None:
            return None
        match request.mode:
            case StartMode.ALL:
                timestamp_us = 0
            case StartMode.NEW:
                timestamp_us = max(0, micros(now - lookback))
            case StartMode.TIMESTAMP:
                timestamp_us = request.timestamp_us
        return Subscribed(group, *scope, request.mode.value, timestamp_us, micros(now))

    def count(self, group: str) -> int:
        return len(self._groups.get(group, ()))

    def apply(self, event: SubscriptionEvent) -> None:
        match event:
            case Subscribed():
                scope = Scope(event.queue, event.partition, event.namespace, event.task)
                subscription = Subscription(StartMode(event.mode), event.timestamp_us, event.created_us)
                if event.group not in self._groups:
                    self._groups[event.group] = _Records(self._captures)
                self._own(event.group).add(scope, subscription)
                if event.queue:
                    partitions = self._of_queues.setdefault(event.queue, {}).setdefault(event.group, set())
                    if event.partition:
                        partitions.add(event.partition)
            case SubscriptionMoved():
                if event.group in self._groups:
                    self._own(event.group).move(event.timestamp_us)
            case SubscriptionsForgotten():
                if not event.queue:
                    if event.group in self._groups:
                        self._forgotten.append((event.group, self._groups.pop(event.group)))
                elif not event.group:
                    for group, partitions in self._of_queues.pop(event.queue, {}).items():
                        self._forget(group, event.queue, partitions)
                elif event.group in (groups := self._of_queues.get(event.queue, {})):
                    self._forget(event.group, event.queue, groups.pop(event.group))
                    if not groups:
                        del self._of_queues[event.queue]

    def _forget(self, group: str, queue: str, partitions: set[str]) -> None:
        if group not in self._groups:
            return
        records = self._own(group)
        records.discard(Scope(queue))
        for partition in partitions:
            records.discard(Scope(queue, partition))
        if not records:
            del self._groups[group]

    def _own(self, group: str) -> _Records:
        """The group's records, which may be changed: no capture has them."""
        records = self._groups[group]
        if records.age != self._captures:
            records = self._groups[group] = records.copy(self._captures)
        return records

    def free(self) -> Iterator[None]:
        """Free the records of forgotten groups, one in each step: all of 100,000 take 55 ms."""
        while self._forgotten:
            entry = group, records = self._forgotten[-1]
            for scope in records.taken_out() if records.age == self._captures else records.scopes():
                if scope.queue:
                    self._forget_place(group, scope)
                yield
            if self._forgotten and self._forgotten[-1] is entry:  # else it is empty, and met again
                self._forgotten.pop()

    def _forget_place(self, group: str, scope: Scope) -> None:
        records = self._groups.get(group, _NO_RECORDS)
        groups = self._of_queues.get(scope.queue, {})
        partitions = groups.get(group)
        if partitions is None or scope in records:  # it was recorded again
            return
        partitions.discard(scope.partition)
        if not partitions and Scope(scope.queue) not in records:
            del groups[group]
            if not groups:
                del self._of_queues[scope.queue]


def _as_events(groups: list[tuple[str, _Records]]) -> Iterator[Subscribed]:
    for group, records in groups:
        for scope, record in records.items():
            yield Subscribed(group, *scope, record.mode.value, record.timestamp_us, record.created_us)
