"""Ephemeral queues: partitions of messages in memory alone, for what may be lost with the process.

Owns: their bounds, leases per message, redelivery. Nothing here is journalled. Must not touch: clocks, wire
names. Time comes in as ``now``.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from holtmq.broker.errors import LimitReached

_COST: Final = 200  # bytes a message takes beside its payload


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

    @property
    def unsettled(self) -> int:
        """The oldest number this group is not done with."""
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
    """A message in a worker's hands."""

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
    groups: dict[str, tuple[int, int]]  # waiting, out with workers


class EphemeralQueue:
    """See the module. Numbers begin anew with each ``incarnation``: one of an earlier means nothing now."""

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

    def push(self, partition: str, payloads: list[bytes], now: float) -> None:
        """Take messages, all or none when the queue refuses at its bound."""
        config = self.config
        more = sum(len(payload) + _COST for payload in payloads)
        over_length = self.length + len(payloads) > config.max_length
        if (over_length or self.size + more > config.max_bytes) and not config.drops_oldest:
            raise LimitReached(f"ephemeral queue {self.name} is full")
        where = self._partitions.setdefault(partition, _Partition())
        for payload in payloads:
            where.ring.append(Fleeting(where.next_number, payload, now))
            where.next_number += 1
        self.length += len(payloads)
        self.size += more
        while self.length and (self.length > config.max_length or self.size > config.max_bytes):
            self._drop_oldest()
        for wake in list(self.wakes):
            wake()

    def pop(self, group: str, partition: str | None, limit: int, auto_ack: bool, now: float) -> list[Handed]:
        """The next messages for a group, in partition order; returned ones come first."""
        found: list[Handed] = []
        names = list(self._partitions) if partition is None else [partition]
        for name in names:
            where = self._partitions.get(name)
            if where is None:
                continue
            self._age(where, now)
            reader = where.readers.get(group)
            if reader is None:
                first = where.ring[0].number if where.ring else where.next_number
                reader = where.readers[group] = _Reader(first)
            self._take_back(reader, now)
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
        """Made by being named, and empty, with nobody waiting: making it again would give the same."""
        return not (self.declared or self.length or self.wakes)

    def ack(self, group: str, partition: str, number: int, completed: bool, now: float) -> str:
        """``acked``, ``redelivered``, ``stale`` or ``unknown``."""
        where = self._partitions.get(partition)
        reader = where.readers.get(group) if where is not None else None
        if where is None or reader is None or number >= where.next_number:
            return "unknown"
        self._take_back(reader, now)
        out = reader.out.pop(number, None)
        if out is None:
            return "stale"
        if completed:
            self._trim(where)
            return "acked"
        if out.attempts > self.config.retry_limit:
            self.dropped += 1
            self._trim(where)
            return "acked"
        reader.again.append((out.message, out.attempts))
        for wake in list(self.wakes):
            wake()
        return "redelivered"

    def reset(self) -> int:
        """Throw the contents away; how many."""
        gone = self.length
        self.incarnation = secrets.token_hex(6)
        self._partitions.clear()
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
        """When a lease or window of a group next ends, for whoever waits."""
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

    def _take_back(self, reader: _Reader, now: float) -> None:
        for number in [number for number, out in reader.out.items() if out.expires_at <= now]:
            out = reader.out.pop(number)
            reader.again.append((out.message, out.attempts))

    def _age(self, where: _Partition, now: float) -> None:
        ttl = self.config.ttl_seconds
        while ttl and where.ring and now - where.ring[0].created_at >= ttl:
            self._forget(where)
            self.dropped += 1

    def _trim(self, where: _Partition) -> None:
        """What every group has settled leaves the ring."""
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
