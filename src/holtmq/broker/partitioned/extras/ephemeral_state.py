"""What an ephemeral queue consists of, and what follows from each change of it.

Owns: its partitions and groups, who is ready for what, the ends of leases and windows, removal of what nobody
needs. Must not touch: clocks, wire names. Each method costs the same whatever is there, except those that are
generators, which yield between steps.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.extras.ephemeral_partitions import Fleeting, Lease, Partition, Reader
from holtmq.broker.partitioned.extras.ephemeral_values import EphemeralConfig, Handed
from holtmq.broker.partitioned.extras.ephemeral_waiting import WaitingPops
from holtmq.broker.partitioned.extras.sorted_keys import SortedKeys
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.steps import Steps

COST: Final = 200  # bytes per message beside its payload
_GROUPS_MAX: Final = 256  # that read the whole queue, or one partition by its name
_IDLE_MAX: Final = 1_000  # empty partitions kept for groups that read them by name


@dataclass(slots=True, eq=False)
class Group:
    """A group that reads the whole queue.

    A partition that it has not looked at is read from its oldest message on. Until then it has no reader
    there: one of each group in each partition would be very many.
    """

    seen: tuple[int, str, str] = (-1, "", "")  # the last partition that it looked at
    line: OrderedDict[str, Reader] = field(default_factory=OrderedDict)  # ready, by partition


class EphemeralState:
    """The state of one queue."""

    def __init__(self, name: str, config: EphemeralConfig) -> None:
        self._name = name
        self._config = config
        self.dropped = 0
        self.alarm: Callable[[float], object] | None = None  # asks for ``tidying`` while pops wait
        self.waiting = WaitingPops()
        self.order = 0  # of the next message
        self._born = 0  # partitions so far
        self._leased = 0  # leases so far
        self._first_number = 0  # of new partitions: above all numbers of those that were removed
        self.clear()

    def clear(self) -> None:
        """Start with nothing. Numbers go on."""
        self.length = self.size = 0
        self.partitions: dict[str, Partition] = {}
        self._places: OrderedDict[int, Partition] = OrderedDict()  # where each message is, by its order
        self._new: SortedKeys[tuple[int, str, str]] = SortedKeys()  # partitions, by age
        self.idle: OrderedDict[str, None] = OrderedDict()  # kept for their readers; the longest idle first
        self.groups: dict[str, Group] = {}
        self._moments: SortedKeys[tuple[int, str, str]] = SortedKeys()  # ends of leases and windows
        self._leases: dict[str, Lease] = {}
        self._closed: dict[Reader, Partition] = {}  # unread messages, but their window is not over
        self._reopened: dict[Reader, Partition] = {}  # of these, which the configuration has changed
        self._settled: OrderedDict[Partition, None] = OrderedDict()  # groups may have settled the oldest

    @property
    def config(self) -> EphemeralConfig:
        return self._config

    @config.setter
    def config(self, config: EphemeralConfig) -> None:
        self._config = config
        self._reopened.update(self._closed)
        self._closed = {}

    def discarding(self) -> Iterator[None]:
        """The queue was deleted: free what it has, in steps. Pops that wait see an empty one."""
        partitions, groups, moments = self.partitions, self.groups, (self._moments, self._new)
        rows: list[dict[int, Partition] | dict[str, Lease] | dict[Reader, Partition]]
        rows = [self._places, self._leases, self._closed, self._reopened]
        self.clear()
        while partitions:
            _, where = partitions.popitem()
            while where.readers:
                _, reader = where.readers.popitem()
                while reader.held:
                    reader.held.popitem()
                    yield
                yield
            while where.messages:
                where.messages.popitem()
                yield
            yield
        for one in rows:
            while one:
                one.popitem()
                yield
        for group in groups.values():
            while group.line:
                group.line.popitem()
                yield
        for line in moments:
            while (first := line.first) is not None:
                line.discard(first)
                yield

    def store(self, where: Partition, payloads: list[bytes], now: float) -> None:
        """Append messages."""
        for payload in payloads:
            where.add(payload, self.order, now)
            self._places[self.order] = where
            self.order += 1
            self.length += 1
            self.size += len(payload) + COST
        self.idle.pop(where.name, None)
        for reader in where.readers.values():
            self.see(where, reader, now)

    def is_here(self, where: Partition) -> bool:
        """Whether the partition was not removed, nor the queue deleted."""
        return self.partitions.get(where.name) is where

    def is_full(self, count: int, size: int) -> bool:
        """Whether the queue would exceed a bound with so much more."""
        return self.length + count > self._config.max_length or self.size + size > self._config.max_bytes

    def has(self, group: str, partition: str | None) -> bool:
        """Whether a pop might find something."""
        if partition is None:
            reading = self.groups.get(group)
            return reading is not None and bool(reading.line or next(self._new.behind(reading.seen), None))
        where = self.partitions.get(partition)
        reader = None if where is None else where.readers.get(group)
        return bool(where and where.messages) if reader is None else reader.is_ready

    def due(self) -> float | None:
        """When the next lease or window ends."""
        first = self._moments.first
        return None if first is None else first[0] / 1e6

    def tidying(self, now: float) -> Steps[None]:
        """Redeliver messages whose lease expired, open windows that are over, remove messages that aged."""
        while self._reopened:
            reader, where = self._reopened.popitem()
            self.see_and_wake(where, reader, now)
            yield
        while (moment := self._moments.first) is not None and moment[0] <= micros(now):
            self._come(moment, now)
            yield
        ttl = self._config.ttl_seconds
        while ttl and self._places and now - self._first().oldest.created_at >= ttl:
            self.drop_oldest()
            yield
        yield from self.trimming()

    def plan(self) -> None:
        """Have ``alarm`` called for the next end of a lease or window, if pops wait."""
        if self.alarm is not None and self.waiting and (first := self._moments.first) is not None:
            self.alarm(first[0] / 1e6)

    def partition(self, name: str) -> Partition:
        """The partition of this name, created on first use."""
        where = self.partitions.get(name)
        if where is None:
            place = (self._born, name, "")
            self._born += 1
            where = self.partitions[name] = Partition(name, self._first_number, place)
            self._new.add(place)
        return where

    def group(self, name: str) -> Group:
        """A group that reads the whole queue; from now on each message waits for it."""
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= _GROUPS_MAX:
                raise LimitReached(f"more than {_GROUPS_MAX} groups read ephemeral queue {self._name}")
            group = self.groups[name] = Group()
        return group

    def reader(self, where: Partition, group: str) -> Reader:
        """The group's reader in a partition; from now on each message there waits for it."""
        reader = where.readers.get(group)
        if reader is None:
            if len(where.readers) >= _GROUPS_MAX and group not in self.groups:
                by_name = sum(name not in self.groups for name in where.readers)
                if by_name >= _GROUPS_MAX:
                    text = f"more than {_GROUPS_MAX} groups read partition {where.name} of {self._name}"
                    raise LimitReached(text)
            reader = where.add_reader(group)
        return reader

    def look(self, group: str, reading: Group, count: int, now: float) -> bool:
        """Let a group read partitions that it has not looked at; whether there may be more of them."""
        places = list(islice(self._new.behind(reading.seen), count))
        for place in places:
            where = self.partitions[place[1]]
            self.see(where, self.reader(where, group), now)
            reading.seen = place
        return len(places) == count

    def take(
        self, where: Partition, reader: Reader, limit: int, auto_ack: bool, now: float, found: list[Handed]
    ) -> None:
        """Deliver the next messages of a partition to ``found``; redeliveries come first."""
        unread = where.unread(reader)
        is_open = unread > 0 and self._is_open(unread, where.oldest_unread(reader), now)
        rows = list(where.redeliver(reader, limit))
        if is_open and len(rows) < limit:
            rows += [(message, 1) for message in where.read(reader, limit - len(rows))]
        if rows and not auto_ack:
            lease = self._lease(where, reader, now)
            for message, attempts in rows:
                where.hold(reader, message, attempts, lease)
        name = where.name
        found += [Handed(name, message.number, attempts, message.payload) for message, attempts in rows]
        where.settle(reader)
        self.see(where, reader, now)
        self.note(where)

    def _is_open(self, unread: int, oldest: Fleeting, now: float) -> bool:
        config = self._config
        if not config.window_ms and not config.window_count:
            return True
        full = bool(config.window_count) and unread >= config.window_count
        return full or bool(config.window_ms and micros(now) >= self._opens(oldest))

    def _opens(self, oldest: Fleeting) -> int:
        return _moment(oldest.created_at, self._config.window_ms / 1000)

    def see(self, where: Partition, reader: Reader, now: float) -> None:
        """Put a reader where it belongs: ready, or waiting for its window, or neither."""
        unread = where.unread(reader)
        is_ready = bool(reader.again) or (
            unread > 0 and self._is_open(unread, where.oldest_unread(reader), now)
        )
        self._unwindow(reader)
        reader.is_ready = is_ready
        reading = self.groups.get(reader.group)
        if is_ready:
            if reading is not None:
                reading.line[where.name] = reader
            return
        if reading is not None:
            reading.line.pop(where.name, None)
        if unread > 0:
            self._closed[reader] = where
            if self._config.window_ms:
                reader.window = (self._opens(where.oldest_unread(reader)), where.name, reader.group)
                self._moments.add(reader.window)
                self.plan()

    def see_and_wake(self, where: Partition, reader: Reader, now: float) -> None:
        """The same, after something may have become ready."""
        was_ready = reader.is_ready
        self.see(where, reader, now)
        if reader.is_ready and not was_ready:
            self.waiting.wake(where.name, reader.group)
            self.waiting.wake(None, reader.group)

    def _unwindow(self, reader: Reader) -> None:
        if reader in self._closed:
            del self._closed[reader]
        else:
            self._reopened.pop(reader, None)
        if reader.window is not None:
            self._moments.discard(reader.window)
            reader.window = None

    def _lease(self, where: Partition, reader: Reader, now: float) -> Lease:
        self._leased += 1
        entry = (_moment(now, self._config.lease_seconds), str(self._leased), "")
        lease = self._leases[entry[1]] = Lease(entry, where.name, reader.group)
        self._moments.add(entry)
        self.plan()
        return lease

    def unlease(self, lease: Lease, number: int) -> None:
        """A message is no longer under its lease."""
        lease.numbers.pop(number, None)
        if not lease.numbers:
            self._moments.discard(lease.entry)
            self._leases.pop(lease.entry[1], None)

    def _come(self, moment: tuple[int, str, str], now: float) -> None:
        """A window is over; or a lease, of which one message is given back at a time."""
        _, name, group = moment
        if group:
            where = self.partitions[name]
            self.see_and_wake(where, where.readers[group], now)
            return
        lease = self._leases[name]
        where = self.partitions[lease.partition]
        number, _ = lease.numbers.popitem()
        self.unlease(lease, number)
        self.end(where, where.readers[lease.group], number, False, now)

    def end(self, where: Partition, reader: Reader, number: int, completed: bool, now: float) -> bool:
        """A message's lease has ended; whether it will be delivered again."""
        is_spent = reader.held[number].attempts > self._config.retry_limit
        if completed or is_spent:
            self.dropped += not completed
            where.release(reader, number)
            where.settle(reader)
            self.note(where)
            return False
        where.give_back(reader, number)
        self.see_and_wake(where, reader, now)
        return True

    def note(self, where: Partition) -> None:
        """Something was settled: messages may be removed, or the partition."""
        if where.is_settled:
            self._settled[where] = None
        else:
            self.rest(where)

    def trimming(self) -> Steps[None]:
        """Remove messages that every group has settled."""
        while self._settled:
            where = next(iter(self._settled))
            while self.is_here(where) and where.is_settled and self.groups.keys() <= where.readers.keys():
                self.forget(where)
                yield
            self._settled.pop(where, None)
            self.rest(where)

    def rest(self, where: Partition) -> None:
        """Remove a partition if it is empty, unless groups that read it by name need its readers.

        What is pushed to it later must wait for them. They are kept for some partitions, those that were used
        last; of groups that read the whole queue this is known anyway.
        """
        name = where.name
        if not where.is_idle or not self.is_here(where):
            return
        if where.readers.keys() <= self.groups.keys():
            self._remove(where)
        elif not self.waiting.at(name):
            self.idle[name] = None
            self.idle.move_to_end(name)
            if len(self.idle) > _IDLE_MAX:
                self._remove(self.partitions[next(iter(self.idle))])

    def _remove(self, where: Partition) -> None:
        for reader in where.readers.values():
            self._unwindow(reader)
            if reader.group in self.groups:
                self.groups[reader.group].line.pop(where.name, None)
        where.readers.clear()
        self._first_number = max(self._first_number, where.next_number)
        self.idle.pop(where.name, None)
        self._settled.pop(where, None)
        self._new.discard(where.place)
        del self.partitions[where.name]

    def _first(self) -> Partition:
        return self._places[next(iter(self._places))]

    def drop_oldest(self) -> None:
        """Remove the oldest message of the queue, whoever has not read it."""
        where = self._first()
        self.forget(where)
        self.dropped += 1
        self.rest(where)

    def forget(self, where: Partition) -> None:
        """Remove a partition's oldest message."""
        message = where.remove_oldest()
        del self._places[message.order]
        self.length -= 1
        self.size -= len(message.payload) + COST


def _moment(start: float, seconds: float) -> int:
    """A time in microseconds; the longest span is thirty years."""
    return micros(start + min(seconds, 1e9))
