"""Counters: sums never fall, and nothing is counted for ever under the name of what is gone."""

from collections import deque

from holtmq.broker.broker import Broker
from holtmq.broker.message import make_address
from holtmq.broker.partitioned.commands.admin import delete_queue
from holtmq.broker.partitioned.counters import QueueCounters, QueueCounts
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.journal import MemoryJournal
from holtmq.wire.properties import Properties, encode_header, encode_properties

NOW = 1_800_000_000.0


def total(counters: QueueCounters) -> QueueCounts:
    deque(counters.readings(), maxlen=0)
    return counters.total


def test_what_happened_on_a_deleted_queue_stays_in_the_sums() -> None:
    service = PartitionedService(MemoryJournal())
    for name in ("kept", "gone"):
        service.push([PushItem(name, "p", Body("t", b"1"))], NOW)

    delete_queue(service, "gone")

    assert set(service.counters.queues) == {"kept"}
    assert total(service.counters).push_messages == 2


def test_a_stream_deleted_over_amqp_takes_its_counters_along() -> None:
    journal = MemoryJournal()
    broker, service = Broker(journal), PartitionedService(journal)
    broker.attach(service).follow()
    broker.put_vhost("/")
    vhost = broker.vhost("/")
    broker.declare_queue(vhost, "s", durable=True, arguments={"x-queue-type": "stream"})
    header = encode_header(1, encode_properties(Properties(delivery_mode=2)))
    route = broker.resolve(vhost, "", "s", make_address("", "s"))
    broker.flow.publishing.publish(route, broker.flow.publish_properties.of(header), header, b"1")
    assert set(service.counters.queues) == {"s"}

    broker.delete_queue(vhost, "s")

    assert service.counters.queues == {}
    assert total(service.counters).push_messages == 1


def test_a_queue_that_is_made_again_while_its_counters_are_read_is_counted_once() -> None:
    counters = QueueCounters()
    counters.of("a").pushed(1, 2, 0)
    counters.of("b").pushed(1, 3, 0)
    first, second = counters.readings(), counters.readings()
    next(first)
    for name in ("a", "b"):
        counters.forget(name)
        counters.of(name).pushed(1, 10, 0)
    deque(second, maxlen=0)
    deque(first, maxlen=0)

    assert total(counters).push_messages == 2 + 3 + 10 + 10
    assert total(counters).push_messages == 25


def test_a_reading_that_is_given_up_loses_no_count() -> None:
    counters = QueueCounters()
    for name in "abc":
        counters.of(name).pushed(1, 1, 0)
    counters.take_used()
    given_up = counters.readings()
    next(given_up)
    del given_up

    assert total(counters).push_messages == 3
