"""kombu over py-amqp: what Celery and many others stand on."""

import socket
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from e2e_support import DEADLINE
from kombu.pools import producers

from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e


@pytest.fixture
def kombu_connection(broker: TestBroker) -> Iterator[kombu.Connection]:
    with kombu.Connection(
        broker.amqp_url, connect_timeout=DEADLINE, transport_options={"confirm_publish": True}
    ) as connection:
        yield connection


def drain_events(connection: kombu.Connection, until: Any) -> None:
    while not until():
        connection.drain_events(timeout=DEADLINE)


def test_produce_and_consume_json(kombu_connection: kombu.Connection, name: str) -> None:
    exchange = kombu.Exchange(name, "topic", durable=False, auto_delete=True)
    queue = kombu.Queue(name, exchange, routing_key="a.#", durable=False, auto_delete=True)
    got: list[Any] = []

    def take(body: Any, message: kombu.Message) -> None:
        got.append(body)
        message.ack()

    with kombu_connection.Consumer(queue, callbacks=[take], prefetch_count=5):
        producer = kombu_connection.Producer(serializer="json")
        for n in range(10):
            producer.publish({"n": n}, exchange=exchange, routing_key=f"a.{n}", retry=True)
        drain_events(kombu_connection, lambda: len(got) == 10)

    assert got == [{"n": n} for n in range(10)]


def test_simple_queues(kombu_connection: kombu.Connection, name: str) -> None:
    options = {"queue_opts": {"auto_delete": True, "durable": False}, "exchange_opts": {"auto_delete": True}}
    queue = kombu_connection.SimpleQueue(name, **options)
    queue.put({"a": 1})

    message = queue.get(timeout=DEADLINE)
    assert message.payload == {"a": 1}
    message.requeue()
    again = queue.get(timeout=DEADLINE)
    assert again.delivery_info["redelivered"]
    again.ack()
    assert queue.qsize() == 0
    queue.close()


def test_rejected_messages_reach_the_dead_letter_queue(kombu_connection: kombu.Connection, name: str) -> None:
    channel = kombu_connection.channel()
    dead = kombu.Queue(name + ".dead", exclusive=True, durable=False)(channel)
    dead.declare()
    queue = kombu.Queue(
        name,
        exclusive=True,
        durable=False,
        message_ttl=60,
        queue_arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + ".dead"},
    )(channel)
    queue.declare()
    kombu.Producer(channel).publish("x", routing_key=name)

    queue.get().reject()

    letter = dead.get(no_ack=True)
    assert letter is not None
    assert letter.headers["x-death"][0]["reason"] == "rejected"


def test_a_pool_of_producers(broker: TestBroker, name: str) -> None:
    kombu.pools.reset()  # Celery's tests leave connections here, to brokers that had this one's port
    connection = kombu.Connection(broker.amqp_url, connect_timeout=DEADLINE)
    with producers[connection].acquire(block=True) as producer:
        channel = producer.channel
        queue = kombu.Queue(name, exclusive=True, durable=False)(channel)
        queue.declare()
        producer.publish("pooled", routing_key=name)
        assert queue.get(no_ack=True).payload == "pooled"
    kombu.pools.reset()
    connection.release()


def test_a_passive_declare_of_nothing_is_a_channel_error(
    kombu_connection: kombu.Connection, name: str
) -> None:
    with pytest.raises(kombu_connection.channel_errors, match="NOT_FOUND"):
        kombu_connection.default_channel.queue_declare(name, passive=True)


def test_heartbeats_are_kept(broker: TestBroker) -> None:
    with kombu.Connection(broker.amqp_url, connect_timeout=DEADLINE, heartbeat=60) as connection:
        connection.connect()
        connection.heartbeat_check()
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)
        assert connection.connected
