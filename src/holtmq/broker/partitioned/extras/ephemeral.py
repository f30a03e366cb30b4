"""Ephemeral queues: partitions of messages in memory only, which are lost when the process ends.

Owns: their bounds, leases per message, redelivery. Nothing here is journalled. Must not touch: clocks, wire
names. Time is passed in as ``now``.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from holtmq.broker.errors import LimitReached

NAMELESS: Final = "__QUEUE_MODE__"  # the group of consumers that name none
_COST: Final = 200  # bytes per message beside its payload
_GROUPS_MAX: Final = 256  # groups that get a reader in new partitions


@dataclass(frozen=True, slots=True)
class EphemeralConfig:
    max_bytes: int = 64 << 20
    max_length: int = 100_000
    drops_oldest: bool = False
    ttl_seconds: float = 0
    lease_seconds: float = 60
    retry_limit: int = 3
    window_ms: float = 0
    window_count: int = 0


@dataclass(slots=True)
class Fleeting:
    """One message. ``number`` rises within its partition."""

    number: int
    payload: bytes
    created_at: float


@dataclass(slots=True)
class _Out:
    message: Fleeting
    expires_at: float
    attempts: int


@dataclass(slots=True)
class _Reader:
    """One group in one partition."""

    next_number: int
    out: dict[int, _Out] = field(default_factory=dict)
    again: deque[tuple[Fleeting, int]] = field(default_factory=deque)  # (message, attempts so far)

    def take_back(self, outs: list[_Out]) -> None:
        """Queue messages for redelivery, in order, before new ones."""
        rows = [*self.again, *((out.message, out.attempts) for out in outs)]
        self.again = deque(sorted(rows, key=lambda row: row[0].number))

    @property
    def unsettled(self) -> int:
        """The oldest number that this group has not settled."""
        again = (message.number for message, _ in self.again)
        return min(
            self.next_number, min(self.out, default=self.next_number), min(again, default=self.next_number)
        )


@dataclass(slots=True)
class _Partition:
    ring: deque[Fleeting] = field(default_factory=deque)
    next_number: int = 0
    readers: dict[str, _Reader] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Handed:
    """A message delivered to a worker."""

    partition: str
    number: int
    attempts: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Gauges:
    length: int
    size: int
    partitions: int
    dropped: int
    groups: dict[str, tuple[int, int]]  # (waiting, delivered and unsettled)

    @property
    def pending(self) -> int:
        """Messages waiting for the group with the largest backlog; named groups take precedence."""
        named = [waiting for name, (waiting, _) in self.groups.items() if name != NAMELESS]
        return max(named) if named else self.groups.get(NAMELESS, (self.length, 0))[0]


class EphemeralQueue:
    """One queue. Message numbers restart with each ``incarnation``; those of an earlier one are invalid."""

    def __init__(self, name: str, config: EphemeralConfig) -> None:
        self.name = name
        self.config = config
        self.declared = False
        self.incarnation = secrets.token_hex(6)
        self.dropped = 0
        self.length = 0
        self.size = 0
        self.wakes: list[Callable[[], None]] = []
        self._partitions: dict[str, _Partition] = {}
        # Groups that read the whole queue. A new partition starts with a reader for each: otherwise the first
        # group to settle a message would remove it before the others have read it.
        self._groups: dict[str, None] = {}

    def push(self, partition: str, payloads: list[bytes], now: float) -> None:
        """Store messages; refuse them all if they exceed the bound and the queue does not drop old ones."""
        config = self.config
        more = sum(len(payload) + _COST for payload in payloads)
        if self._full(len(payloads), more):
            for one in self._partitions.values():
                self._age(one, now)
            if self._full(len(payloads), more) and not config.drops_oldest:
                raise LimitReached(f"ephemeral queue {self.name} is full")
        where = self._partition(partition)
        for payload in payloads:
            where.ring.append(Fleeting(where.next_number, payload, now))
            where.next_number += 1
        self.length += len(payloads)
        self.size += more
        while self.length and (self.length > config.max_length or self.size > config.max_bytes):
            self._drop_oldest()
        for wake in list(self.wakes):
            wake()

    def _full(self, count: int, size: int) -> bool:
        return self.length + count > self.config.max_length or self.size + size > self.config.max_bytes

    def _partition(self, name: str) -> _Partition:
        where = self._partitions.get(name)
        if where is None:
            readers = {group: _Reader(0) for group in self._groups}
            where = self._partitions[name] = _Partition(readers=readers)
        return where

    def _readers(self, group: str, partition: str | None) -> list[tuple[str, _Partition, _Reader]]:
        """The (name, partition, reader) that a group pops from; missing readers are created."""
        if partition is not None:
            places = [(partition, self._partition(partition))]
        else:
            places = list(self._partitions.items())
            if len(self._groups) < _GROUPS_MAX:
                self._groups[group] = None
        for _, where in places:
            if group not in where.readers:
                first = where.ring[0].number if where.ring else where.next_number
                where.readers[group] = _Reader(first)
        return [(name, where, where.readers[group]) for name, where in places]

    def pop(self, group: str, partition: str | None, limit: int, auto_ack: bool, now: float) -> list[Handed]:
        """The next messages for a group, partition by partition; redeliveries come first."""
        found: list[Handed] = []
        for name, where, reader in self._readers(group, partition):
            self._age(where, now)
            self._take_back(where, reader, now)
            for message, attempts in self._next(where, reader, limit - len(found), now):
                if not auto_ack:
                    expires_at = now + self.config.lease_seconds
                    reader.out[message.number] = _Out(message, expires_at, attempts)
                found.append(Handed(name, message.number, attempts, message.payload))
            if auto_ack:
                self._trim(where)
            if len(found) >= limit:
                break
        return found

    def _next(
        self, where: _Partition, reader: _Reader, limit: int, now: float
    ) -> Iterator[tuple[Fleeting, int]]:
        while limit > 0 and reader.again:
            message, attempts = reader.again.popleft()
            yield message, attempts + 1
            limit -= 1
        if not where.ring or limit <= 0:
            return
        skip = max(0, reader.next_number - where.ring[0].number)
        waiting = [where.ring[at] for at in range(skip, min(len(where.ring), skip + limit))]
        if waiting and self._window_open(len(where.ring) - skip, waiting[0], now):
            reader.next_number = waiting[-1].number + 1
            for message in waiting:
                yield message, 1

    def _window_open(self, waiting: int, oldest: Fleeting, now: float) -> bool:
        config = self.config
        if not config.window_ms and not config.window_count:
            return True
        full = bool(config.window_count) and waiting >= config.window_count
        return full or bool(config.window_ms and now - oldest.created_at >= config.window_ms / 1000)

    @property
    def unused(self) -> bool:
        """Whether it can be dropped: not declared, empty, no waiting pop and no named group."""
        readers = {NAMELESS, *self._groups}.union(*(where.readers for where in self._partitions.values()))
        return not (self.declared or self.length or self.wakes) and len(readers) == 1

    def settle(self, group: str, acks: Iterable[tuple[str, int, bool]], now: float) -> list[str]:
        """Settle (partition, number, completed) items: ``acked``, ``redelivered`` or ``unknown`` for each.

        Unknown: the group does not hold the message, because it was settled before or its lease expired.
        """
        outcomes: list[str] = []
        places: dict[str, tuple[_Partition, _Reader, list[_Out]]] = {}
        for partition, number, completed in acks:
            where = self._partitions.get(partition)
            reader = None if where is None else where.readers.get(group)
            if where is None or reader is None:
                outcomes.append("unknown")
                continue
            if partition not in places:
                self._take_back(where, reader, now)
                places[partition] = where, reader, []
            out = reader.out.pop(number, None)
            if out is None:
                outcomes.append("unknown")
            elif completed or self._spent(out):
                outcomes.append("acked")
            else:
                places[partition][2].append(out)
                outcomes.append("redelivered")
        for where, reader, back in places.values():
            reader.take_back(back)
            self._trim(where)
        if "redelivered" in outcomes:
            for wake in list(self.wakes):
                wake()
        return outcomes

    def reset(self) -> int:
        """Delete all messages; return how many. Groups continue with the next push."""
        gone = self.length
        for name, where in list(self._partitions.items()):
            if not where.readers:
                del self._partitions[name]
            where.ring.clear()
            for group in where.readers:
                where.readers[group] = _Reader(where.next_number)
        self.length = self.size = 0
        return gone

    def gauges(self, now: float) -> Gauges:
        groups: dict[str, tuple[int, int]] = {}
        for where in self._partitions.values():
            self._age(where, now)
            for name, reader in where.readers.items():
                waiting, out = groups.get(name, (0, 0))
                behind = where.next_number - max(reader.next_number, where.next_number - len(where.ring))
                groups[name] = (waiting + behind + len(reader.again), out + len(reader.out))
        return Gauges(self.length, self.size, len(self._partitions), self.dropped, groups)

    def next_change(self, group: str, partition: str | None, now: float) -> float | None:
        """When the next lease or window of a group ends, for waiting pops."""
        names = list(self._partitions) if partition is None else [partition]
        moments: list[float] = []
        for where in (self._partitions[name] for name in names if name in self._partitions):
            reader = where.readers.get(group)
            if reader is None:
                continue
            moments += (out.expires_at for out in reader.out.values())
            unread = max(0, reader.next_number - where.ring[0].number) if where.ring else 0
            if self.config.window_ms and unread < len(where.ring):
                moments.append(where.ring[unread].created_at + self.config.window_ms / 1000)
        return min((moment for moment in moments if moment > now), default=None)

    def _take_back(self, where: _Partition, reader: _Reader, now: float) -> None:
        """Redeliver messages whose lease expired, like failed ones, until their retries are exhausted."""
        expired = [number for number, out in reader.out.items() if out.expires_at <= now]
        if expired:
            outs = [reader.out.pop(number) for number in expired]
            reader.take_back([out for out in outs if not self._spent(out)])
            self._trim(where)

    def _spent(self, out: _Out) -> bool:
        if out.attempts <= self.config.retry_limit:
            return False
        self.dropped += 1
        return True

    def _age(self, where: _Partition, now: float) -> None:
        ttl = self.config.ttl_seconds
        while ttl and where.ring and now - where.ring[0].created_at >= ttl:
            self._forget(where)
            self.dropped += 1

    def _trim(self, where: _Partition) -> None:
        """Remove messages that every group has settled."""
        done = min((reader.unsettled for reader in where.readers.values()), default=0)
        while where.ring and where.ring[0].number < done:
            self._forget(where)

    def _drop_oldest(self) -> None:
        full = [where for where in self._partitions.values() if where.ring]
        self._forget(min(full, key=lambda where: where.ring[0].created_at))
        self.dropped += 1

    def _forget(self, where: _Partition) -> None:
        message = where.ring.popleft()
        self.length -= 1
        self.size -= len(message.payload) + _COST
