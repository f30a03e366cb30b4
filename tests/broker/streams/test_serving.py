"""Readers of streams are served in turns, measured in work: filters and large messages take longer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holtmq.broker.broker import Broker
from holtmq.broker.message import Message
from holtmq.broker.partitioned.log.bodies import AmqpMetadata, Body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.streams import serving
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Holder
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties, encode_properties
from holtmq.wire.tables import FieldTable

NOW_MS = 1_700_000_000_000


class Reader(Holder):
    """A consumer with room for so many messages."""

    def __init__(self, room: int, arguments: Mapping[str, object]) -> None:
        super().__init__()
        self.arguments = {"x-stream-offset": "first", **arguments}
        self.priority = 0
        self.free = room
        self.got: list[Message] = []

    def room(self) -> int:
        return self.free

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        self.free -= len(messages)
        self.got += messages

    def cancelled(self, queue: Queue) -> None: ...


class World:
    """A broker with streams; the steps that are planned run one by one."""

    def __init__(self, *streams: str) -> None:
        self.service = PartitionedService(MemoryJournal())
        self.broker = Broker(self.service.journal)
        self.broker.attach(self.service).follow()
        self.broker.put_vhost("/")
        self.broker.flow.now_ms = NOW_MS
        for name in streams:
            self.broker.declare_queue(
                self.broker.vhost("/"), name, durable=True, arguments={"x-queue-type": "stream"}
            )
        self.planned: list[Callable[[], None]] = []
        self.service.line.at = lambda at, action: self.planned.append(action)

    def put(self, stream: str, *bodies: Body) -> None:
        self.service.push([PushItem(stream, "p", body) for body in bodies], NOW_MS / 1000)
        self.broker.journal.flush()

    def read(self, stream: str, room: int = 100_000, **arguments: object) -> Reader:
        named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        reader = Reader(room, named)
        self.broker.consume(self.broker.vhost("/").queues[stream], reader)
        return reader

    def turn(self) -> None:
        self.broker.flow.now_ms += 1
        self.broker.flow.turn()

    def step(self) -> bool:
        """Run what is planned; whether there was something."""
        planned, self.planned[:] = self.planned[:], []
        for action in planned:
            action()
        return bool(planned)


def small(number: int, headers: FieldTable | None = None, size: int = 1) -> Body:
    properties = encode_properties(Properties(headers={"n": number, **(headers or {})}))
    return Body(f"t-{number}", b"m" * size, metadata=AmqpMetadata("", "log", properties))


def numbers(reader: Reader) -> list[int]:
    return [message.seq for message in reader.got]


def test_streams_of_one_turn_share_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SERVED_AT_ONCE", 300)
    world = World("a", "b", "c")
    for name in "abc":
        world.put(name, *map(small, range(256)))
    readers = [world.read(name) for name in "abc"]

    world.turn()
    first = [len(reader.got) for reader in readers]
    world.step()
    second = [len(reader.got) for reader in readers]
    while world.step():
        pass

    assert first == [256, 256, 0]  # the last one may exceed it
    assert second == [256, 256, 256]
    assert [numbers(reader) for reader in readers] == [list(range(256))] * 3


def test_of_large_messages_few_are_delivered_in_a_turn() -> None:
    world = World("log")
    world.put("log", *[small(number, size=1 << 20) for number in range(40)])
    plain, member = world.read("log"), world.read("log", consumer_group="g")
    bytes_got = [0]

    world.turn()
    more = True
    while more:
        bytes_got.append(sum(len(message.body) for message in plain.got + member.got))
        more = world.step()

    assert numbers(plain) == list(range(40))
    assert max(after - before for before, after in pairwise(bytes_got)) <= 12 << 20


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"stream_filter": "none"}, {"x": "y" * 6_400}),
        ({"stream_sql_filter": " OR ".join(["n < 0"] * 120)}, {}),
        ({"stream_sql_filter": " OR ".join(["x LIKE '%ab%'"] * 100)}, {"x": "a" * 3_000}),
    ],
)
def test_a_costly_filter_gives_way_after_fewer_messages(
    arguments: dict[str, object], headers: FieldTable
) -> None:
    def steps(*, costly: bool) -> int:
        world = World("log")
        more = headers if costly else {}
        world.put("log", *[small(number, more) for number in range(2_000)])
        world.read("log", **(arguments if costly else {"stream_filter": "none"}))
        world.turn()
        taken = 0
        while world.step():
            taken += 1
        return taken

    assert steps(costly=False) <= 1
    assert steps(costly=True) >= 10


def test_other_streams_are_served_between_the_steps_of_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SERVED_AT_ONCE", 100)
    world = World("searched", "log")
    world.put("searched", *map(small, range(5_000)))
    world.read("searched", stream_filter="none")
    world.turn()
    reader = world.read("log")
    world.put("log", small(1))

    world.turn()
    world.step()
    world.step()

    assert numbers(reader) == [0]
    assert world.planned


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0, 700, 20_000])), min_size=1, max_size=60),
    st.sampled_from([1, 3, 100_000]),
    st.sampled_from([1, 40, 3_000]),
)
def test_a_filter_passes_over_no_message_and_none_twice(
    messages: list[tuple[bool, int]], room: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "SERVED_AT_ONCE", at_once)
        world = World("log")
        world.put(
            "log",
            *[
                small(number, {"x-stream-filter-value": "yes" if chosen else "no", "x": "y" * size})
                for number, (chosen, size) in enumerate(messages)
            ],
        )
        reader = world.read("log", room, stream_filter="yes")
        queue = world.broker.vhost("/").queues["log"]

        for _ in range(len(messages) + 1):
            world.turn()
            while world.step():
                pass
            reader.free = room  # it has settled what it got
            world.broker.flow.touch(queue)

        assert numbers(reader) == [number for number, (chosen, _) in enumerate(messages) if chosen]
