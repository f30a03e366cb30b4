"""The queue against a plain, slow model, over random histories."""

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.extras.ephemeral import EphemeralQueue
from holtmq.broker.partitioned.extras.ephemeral_values import EphemeralConfig
from holtmq.broker.partitioned.steps import finish

GROUPS = ("a", "b", "c")
PARTITIONS = ("p", "q", "r", "s")


@dataclass
class Out:
    message: "Message"
    expires_at: float
    attempts: int


@dataclass
class Message:
    number: int
    payload: bytes
    created_at: float


@dataclass
class Reader:
    next_number: int
    out: dict[int, Out] = field(default_factory=dict)
    again: list[tuple[Message, int]] = field(default_factory=list)

    @property
    def unsettled(self) -> int:
        numbers = [self.next_number, *self.out, *(message.number for message, _ in self.again)]
        return min(numbers)


@dataclass
class Partition:
    ring: deque[Message] = field(default_factory=deque)
    next_number: int = 0
    readers: dict[str, Reader] = field(default_factory=dict)


class Model:
    """Looks at everything each time."""

    def __init__(self, config: EphemeralConfig) -> None:
        self.config = config
        self.dropped = 0
        self.partitions: dict[str, Partition] = {}
        self.groups: set[str] = set()

    @property
    def length(self) -> int:
        return sum(len(where.ring) for where in self.partitions.values())

    @property
    def size(self) -> int:
        return sum(len(one.payload) + 200 for where in self.partitions.values() for one in where.ring)

    def is_full(self, count: int, size: int) -> bool:
        return self.length + count > self.config.max_length or self.size + size > self.config.max_bytes

    def tidy(self, now: float) -> None:
        for where in self.partitions.values():
            for reader in where.readers.values():
                for number, out in list(reader.out.items()):
                    if out.expires_at <= now:
                        del reader.out[number]
                        if out.attempts > self.config.retry_limit:
                            self.dropped += 1
                        else:
                            reader.again.append((out.message, out.attempts))
                reader.again.sort(key=lambda row: row[0].number)
            ttl = self.config.ttl_seconds
            while ttl and where.ring and now - where.ring[0].created_at >= ttl:
                where.ring.popleft()
                self.dropped += 1
        self.trim()

    def trim(self) -> None:
        for where in self.partitions.values():
            done = min((reader.unsettled for reader in where.readers.values()), default=0)
            while where.ring and where.ring[0].number < done:
                where.ring.popleft()

    def partition(self, name: str) -> Partition:
        if name not in self.partitions:
            self.partitions[name] = Partition(readers={group: Reader(0) for group in self.groups})
        return self.partitions[name]

    def reader(self, group: str, where: Partition) -> Reader:
        if group not in where.readers:
            where.readers[group] = Reader(where.ring[0].number if where.ring else where.next_number)
        return where.readers[group]

    def push(self, name: str, payloads: list[bytes], now: float) -> bool:
        more = sum(len(payload) + 200 for payload in payloads)
        if self.is_full(len(payloads), more):
            self.tidy(now)
            if self.is_full(len(payloads), more) and not self.config.drops_oldest:
                return False
        where = self.partition(name)
        for payload in payloads:
            where.ring.append(Message(where.next_number, payload, now))
            where.next_number += 1
        while self.length and self.is_full(0, 0):
            full = [one for one in self.partitions.values() if one.ring]
            min(full, key=lambda one: one.ring[0].created_at).ring.popleft()
            self.dropped += 1
        return True

    def ask(self, group: str) -> None:
        self.groups.add(group)
        for where in self.partitions.values():
            self.reader(group, where)

    def pop(self, group: str, name: str, limit: int, auto_ack: bool, now: float) -> list[tuple[bytes, int]]:
        where = self.partition(name)
        reader = self.reader(group, where)
        rows = [(message, attempts + 1) for message, attempts in reader.again[:limit]]
        del reader.again[:limit]
        unread = [message for message in where.ring if message.number >= reader.next_number]
        fresh = unread[: limit - len(rows)]
        if fresh and self.is_open(len(unread), fresh[0], now):
            reader.next_number = fresh[-1].number + 1
            rows += [(message, 1) for message in fresh]
        if not auto_ack:
            for message, attempts in rows:
                reader.out[message.number] = Out(message, now + self.config.lease_seconds, attempts)
        self.trim()
        return [(message.payload, attempts) for message, attempts in rows]

    def is_open(self, waiting: int, oldest: Message, now: float) -> bool:
        config = self.config
        if not config.window_ms and not config.window_count:
            return True
        full = bool(config.window_count) and waiting >= config.window_count
        age_us = round(now * 1e6) - round(oldest.created_at * 1e6)
        return full or bool(config.window_ms and age_us >= config.window_ms * 1000)

    def settle(self, group: str, name: str, payload: bytes, completed: bool) -> str:
        where = self.partitions.get(name)
        reader = None if where is None else where.readers.get(group)
        found = (
            [] if reader is None else [one for one in reader.out.values() if one.message.payload == payload]
        )
        if reader is None or not found:
            return "unknown"
        out = reader.out.pop(found[0].message.number)
        if completed or out.attempts > self.config.retry_limit:
            self.dropped += not completed
            self.trim()
            return "acked"
        reader.again.append((out.message, out.attempts))
        reader.again.sort(key=lambda row: row[0].number)
        return "redelivered"

    def reset(self) -> int:
        gone = self.length
        for where in self.partitions.values():
            where.ring.clear()
            for group in where.readers:
                where.readers[group] = Reader(where.next_number)
        return gone

    def gauges(self) -> dict[str, tuple[int, int]]:
        groups: dict[str, tuple[int, int]] = {}
        for where in self.partitions.values():
            for name, reader in where.readers.items():
                waiting, out = groups.get(name, (0, 0))
                behind = sum(message.number >= reader.next_number for message in where.ring)
                groups[name] = (waiting + behind + len(reader.again), out + len(reader.out))
        return groups


CONFIGS = (
    EphemeralConfig(lease_seconds=5, retry_limit=2),
    EphemeralConfig(lease_seconds=5, ttl_seconds=9),
    EphemeralConfig(lease_seconds=7, max_length=8, drops_oldest=True),
    EphemeralConfig(lease_seconds=3, max_length=10, ttl_seconds=20),
    EphemeralConfig(lease_seconds=3, max_bytes=2_000, drops_oldest=True, retry_limit=0),
    EphemeralConfig(lease_seconds=6, window_ms=4_000),
    EphemeralConfig(lease_seconds=6, window_count=3),
    EphemeralConfig(lease_seconds=6, window_ms=6_000, window_count=4, ttl_seconds=30),
)


class History:
    """The same calls to the queue and the model."""

    def __init__(self, seed: int, config: EphemeralConfig) -> None:
        self.random = Random(seed)
        self.queue, self.model = EphemeralQueue("e", config), Model(config)
        self.now = 100.0
        self.pushed = 0
        self.handed: list[tuple[str, str, int, bytes]] = []  # (group, partition, number, payload)

    def step(self) -> None:
        random, queue, model = self.random, self.queue, self.model
        self.now += random.choice(
            (0.001, 0.001, 0.5, 1, 3)
        )  # never twice the same: the oldest is one message
        self.tidy()
        match random.randrange(16):
            case 0 | 1 | 2 | 3 | 4:
                self.push(random.choice(PARTITIONS))
            case 5 | 6 | 7:
                self.pop(random.choice(GROUPS), None)
            case 8 | 9:
                self.pop(random.choice(GROUPS), random.choice(PARTITIONS))
            case 10 | 11 | 12 | 13:
                self.settle()
            case 14 if random.random() < 0.2:
                assert queue.reset() == model.reset()
            case 15 if random.random() < 0.2:
                config = random.choice(CONFIGS)
                config = replace(config, lease_seconds=random.choice((1, 4, 9)))
                queue.config = model.config = config
        self.tidy()
        self.compare()

    def tidy(self) -> None:
        finish(self.queue.tidying(self.now))
        self.model.tidy(self.now)

    def push(self, partition: str) -> None:
        payloads = [b"%d" % (self.pushed + at) for at in range(self.random.randrange(1, 5))]
        self.pushed += len(payloads)
        accepted = True
        try:
            self.queue.push(partition, payloads, self.now)
        except LimitReached:
            accepted = False
        assert self.model.push(partition, payloads, self.now) == accepted

    def pop(self, group: str, partition: str | None) -> None:
        limit, auto_ack = self.random.randrange(1, 7), self.random.random() < 0.3
        found = self.queue.pop(group, partition, limit, auto_ack, self.now)
        names = list(dict.fromkeys(one.partition for one in found))
        if partition is None:
            self.model.ask(group)
        elif not names:
            names = [partition]
        for name in names:
            rows = [(one.payload, one.attempts) for one in found if one.partition == name]
            left = limit - sum(one.partition in names[: names.index(name)] for one in found)
            assert self.model.pop(group, name, left, auto_ack, self.now) == rows
        if partition is None and len(found) < limit:
            for name in list(self.model.partitions):
                assert self.model.pop(group, name, 1, True, self.now) == [], "it overlooked a message"
        if not auto_ack:
            self.handed += [(group, one.partition, one.number, one.payload) for one in found]

    def settle(self) -> None:
        for _ in range(min(len(self.handed), self.random.randrange(1, 5))):
            one = self.random.choice(self.handed)
            if self.random.random() < 0.7:
                self.handed.remove(one)
            group, partition, number, payload = one
            completed = self.random.random() < 0.6
            outcome = self.queue.settle(group, [(partition, number, completed)], self.now)
            assert outcome == [self.model.settle(group, partition, payload, completed)]

    def compare(self) -> None:
        queue, model = self.queue, self.model
        gauges = finish(queue.gauges(self.now))
        assert (queue.length, queue.size, queue.dropped) == (model.length, model.size, model.dropped)
        assert (gauges.length, gauges.size) == (model.length, model.size)
        assert {name: row for name, row in gauges.groups.items() if any(row)} == {
            name: row for name, row in model.gauges().items() if any(row)
        }


@pytest.mark.parametrize("config", CONFIGS)
def test_the_queue_does_what_the_model_does(config: EphemeralConfig) -> None:
    for seed in range(75):
        history = History(seed, config)
        for _ in range(80):
            history.step()
