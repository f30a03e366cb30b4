"""Partitioned queues behind exchanges: messages arrive there with whatever their publishers wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holtmq.broker.broker import Broker
from holtmq.broker.errors import Conflict
from holtmq.broker.message import Message, make_address
from holtmq.broker.partitioned.log.bodies import BodyCache
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.streams import serving
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Holder, Lease
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties, encode_header, encode_properties

UNREADABLE = "a\udcff"  # the byte 0xFF, as names that are not UTF-8 are kept


class Reader(Holder):
    """A consumer that takes all there is."""

    def __init__(self, **arguments: object) -> None:
        super().__init__()
        self.arguments = arguments
        self.priority = 0
        self.got: list[Message] = []

    def room(self) -> int:
        return 100

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        self.got += messages

    def cancelled(self, queue: Queue) -> None: ...


@pytest.fixture
def service() -> PartitionedService:
    return PartitionedService(MemoryJournal())


@pytest.fixture
def broker(service: PartitionedService) -> Broker:
    """Exchange "all" leads to stream "log"; what dies in "dying" is published there."""
    broker = Broker(service.journal)
    broker.attach(service).follow()
    broker.put_vhost("/")
    vhost = broker.vhost("/")
    broker.flow.now_ms = 1_700_000_000_000
    for name in ("all", "in"):
        broker.exchanges.declare(vhost, name, "fanout", durable=True)
    broker.declare_queue(vhost, "log", durable=True, arguments={"x-queue-type": "stream"})
    broker.declare_queue(vhost, "dying", durable=True, arguments={"x-dead-letter-exchange": "all"})
    broker.bind(vhost, "all", "log", "")
    broker.bind(vhost, "in", "dying", "")
    return broker


def publish(broker: Broker, exchange: str, key: str) -> None:
    header = encode_header(1, encode_properties(Properties(delivery_mode=2)))
    route = broker.resolve(broker.vhost("/"), exchange, key, make_address(exchange, key))
    broker.flow.publishing.publish(route, broker.flow.publish_properties.of(header), header, b"1")
    broker.journal.flush()
    broker.flow.turn()


def consume(broker: Broker, queue: str, **arguments: object) -> Reader:
    reader = Reader(**arguments)
    broker.consume(broker.vhost("/").queues[queue], reader)
    broker.flow.turn()
    return reader


def test_a_key_that_is_not_utf_8_reaches_a_stream_and_comes_back_as_it_was(
    broker: Broker, service: PartitionedService
) -> None:
    publish(broker, "all", UNREADABLE)
    service.store.cache = BodyCache(1 << 20)  # so that it comes from the journal

    (message,) = consume(broker, "log", **{"x-stream-offset": "first"}).got

    assert (message.routing_key, message.body) == (UNREADABLE, b"1")
    assert list(service.store.queues["log"].indexes) == ["a\\xff"]


def test_a_message_with_such_a_key_dies_into_a_stream_and_is_not_lost(broker: Broker) -> None:
    publish(broker, "in", UNREADABLE)
    reader = consume(broker, "dying")
    (message,) = reader.got

    broker.flow.reject([Lease(1, broker.vhost("/").queues["dying"], message, reader)])
    broker.flow.turn()
    broker.journal.flush()

    assert [letter.body for letter in consume(broker, "log", **{"x-stream-offset": "first"}).got] == [b"1"]


def test_a_consumer_gets_what_is_durable_and_is_woken_when_the_rest_is(broker: Broker) -> None:
    publish(broker, "all", "k")
    header = encode_header(1, encode_properties(Properties(delivery_mode=2)))
    route = broker.resolve(broker.vhost("/"), "all", "k", make_address("all", "k"))
    broker.flow.publishing.publish(route, broker.flow.publish_properties.of(header), header, b"2")

    reader = consume(broker, "log", **{"x-stream-offset": "first"})

    assert [message.body for message in reader.got] == [b"1"]
    broker.journal.flush()
    broker.flow.turn()
    assert [message.body for message in reader.got] == [b"1", b"2"]


def test_a_group_whose_name_is_not_utf_8_is_refused(broker: Broker) -> None:
    with pytest.raises(Conflict):
        consume(broker, "log", **{"x-consumer-group": UNREADABLE})


def test_of_very_many_readers_some_are_served_in_a_turn_and_those_who_wait_come_first(
    broker: Broker, service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Callable[[], None]] = []
    service.line.at = lambda at, action: later.append(action)
    readers = [consume(broker, "log") for _ in range(10)]

    def got() -> list[int]:
        return [len(reader.got) for reader in readers]

    monkeypatch.setattr(serving, "SERVED_AT_ONCE", 42)  # two readers: a read with a message, one without
    broker.flow.now_ms += 1
    publish(broker, "all", "a")
    first = got()
    publish(broker, "all", "b")
    second = got()
    steps = 0
    while later:
        later.pop(0)()
        steps += 1

    assert first == [1, 1] + [0] * 8
    assert second == first  # the next step is planned
    assert (got(), steps) == ([2] * 10, 5)
    assert [message.seq for message in readers[0].got] == [message.seq for message in readers[9].got]


def test_a_reader_that_leaves_before_its_turn_gets_nothing(
    broker: Broker, service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Callable[[], None]] = []
    service.line.at = lambda at, action: later.append(action)
    stays, leaves = consume(broker, "log"), consume(broker, "log")
    monkeypatch.setattr(serving, "SERVED_AT_ONCE", 1)
    broker.flow.now_ms += 1
    publish(broker, "all", "a")

    broker.cancel(broker.vhost("/").queues["log"], leaves)
    while later:
        later.pop(0)()

    assert (len(stays.got), leaves.got) == (1, [])
