"""Looking into a broker without changing anything."""

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.broker.work import spilling_fifo
from holtmq.testing import TestBroker
from holtmq.testing.views import work_queue

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connect: Connect, holt_broker: TestBroker) -> BlockingChannel:
    return connect(holt_broker, "looked-at").channel()


def test_messages_show_body_properties_and_address(holt_broker: TestBroker, channel: BlockingChannel) -> None:
    channel.exchange_declare("events", "topic")
    channel.queue_declare("work")
    channel.queue_bind("work", "events", "#")
    properties = pika.BasicProperties(content_type="text/plain", headers={"shop": "north"}, delivery_mode=2)
    channel.basic_publish("events", "order.paid", "grüße".encode(), properties)

    (message,) = holt_broker.messages("work")

    assert (message.text, message.exchange, message.routing_key) == ("grüße", "events", "order.paid")
    assert (message.properties.content_type, message.headers) == ("text/plain", {"shop": "north"})
    assert (message.persistent, message.redelivered, message.queue) == (True, False, "work")


def test_looking_does_not_consume(holt_broker: TestBroker, channel: BlockingChannel) -> None:
    channel.queue_declare("work")
    channel.basic_publish("", "work", b"x")

    looks = [len(holt_broker.messages("work")) for _ in range(3)]
    method, _, body = channel.basic_get("work", auto_ack=True)

    assert looks == [1, 1, 1]
    assert (body, method.redelivered) == (b"x", False)


def test_priorities_are_shown_in_order_of_delivery(holt_broker: TestBroker, channel: BlockingChannel) -> None:
    channel.queue_declare("work", arguments={"x-max-priority": 5})
    for priority in (1, 5, 3, 5):
        channel.basic_publish("", "work", b"%d" % priority, pika.BasicProperties(priority=priority))

    assert [message.text for message in holt_broker.messages("work")] == ["5", "5", "3", "1"]


def test_messages_that_left_memory_are_shown_too(
    holt_broker: TestBroker, channel: BlockingChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilling_fifo, "HEAD_MAX", 20)
    monkeypatch.setattr(spilling_fifo, "HEAD_KEEP", 5)
    monkeypatch.setattr(spilling_fifo, "TAIL_MAX", 10)
    holt_broker.call(lambda node: setattr(node.broker.flow.memory, "limit", -1))
    channel.queue_declare("work")
    for number in range(95):
        channel.basic_publish("", "work", b"%d" % number)

    shown = [int(message.body) for message in holt_broker.messages("work")]

    in_memory = holt_broker.call(lambda node: work_queue(node.broker, "work").store.in_memory)
    assert in_memory < 95
    assert shown == list(range(95))


def test_leases_show_who_holds_what(holt_broker: TestBroker, channel: BlockingChannel) -> None:
    channel.queue_declare("work")
    for body in (b"one", b"two", b"three"):
        channel.basic_publish("", "work", body)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("work", lambda *_: None, consumer_tag="worker")
    channel.basic_get("work")

    held = [(lease.message.body, lease.consumer_tag, lease.delivery_tag) for lease in holt_broker.leases()]

    assert held == [(b"one", "worker", 1), (b"two", "", 2)]
    assert {lease.connection for lease in holt_broker.leases("work")} == {"looked-at"}
    assert [message.body for message in holt_broker.unacked("work")] == [b"one", b"two"]
    assert holt_broker.leases("other") == []


def test_consumers_and_connections_are_shown(holt_broker: TestBroker, channel: BlockingChannel) -> None:
    channel.queue_declare("work")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("work", lambda *_: None, consumer_tag="worker", arguments={"x-priority": 3})

    (consumer,) = holt_broker.consumers("work")
    (connection,) = holt_broker.connections()

    assert (consumer.tag, consumer.prefetch, consumer.priority, consumer.no_ack) == ("worker", 7, 3, False)
    assert (connection.name, connection.user, connection.channels) == ("looked-at", "guest", 1)


def test_exchanges_show_where_they_lead(holt_broker: TestBroker, channel: BlockingChannel) -> None:
    channel.exchange_declare("events", "direct", durable=True)
    channel.queue_declare("work")
    channel.queue_bind("work", "events", "paid")

    found = holt_broker.exchanges()

    assert (found["events"].kind, found["events"].durable) == ("direct", True)
    assert found["events"].bindings == (("work", "paid"),)
    assert "amq.topic" in found


def test_dead_letters_are_found_wherever_they_wait(holt_broker: TestBroker, channel: BlockingChannel) -> None:
    channel.queue_declare("morgue")
    channel.queue_declare(
        "work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "morgue"}
    )
    channel.basic_publish("", "work", b"bad")
    channel.basic_publish("", "morgue", b"not dead")
    method, _, _ = channel.basic_get("work")
    channel.basic_reject(method.delivery_tag, requeue=False)

    (letter,) = holt_broker.dead_letters("work")

    assert (letter.body, letter.queue, letter.deaths[0]["reason"]) == (b"bad", "morgue", "rejected")
    assert [message.body for message in holt_broker.dead_letters()] == [b"bad"]
    assert holt_broker.dead_letters("morgue") == []


def test_a_queue_that_does_not_exist_is_named_in_the_error(holt_broker: TestBroker) -> None:
    with pytest.raises(KeyError, match="no queue 'typo'"):
        holt_broker.queue_depth("typo")
