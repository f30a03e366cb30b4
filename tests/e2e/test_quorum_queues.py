"""Quorum queues keep every message that was confirmed, whatever delivery mode its publisher gave it."""

from collections.abc import Callable

import pika
import pytest
from e2e_support import ProcessBroker, drain
from pika.adapters.blocking_connection import BlockingChannel

pytestmark = pytest.mark.e2e
Connect = Callable[..., pika.BlockingConnection]
QUORUM = {"x-queue-type": "quorum"}


def confirming(connect: Connect, broker: ProcessBroker) -> BlockingChannel:
    channel = connect(broker.amqp_port).channel()
    channel.confirm_delivery()
    return channel


@pytest.mark.parametrize(("end", "mode"), [("kill", None), ("stop", 1)])
def test_what_a_quorum_queue_confirmed_survives_whatever_its_delivery_mode(
    broker_process: ProcessBroker, connect: Connect, end: str, mode: int | None
) -> None:
    channel = confirming(connect, broker_process)
    channel.queue_declare("safe", durable=True, arguments=QUORUM)

    for number in range(20):  # the later ones take the way of messages that repeat
        channel.basic_publish("", "safe", b"%02d" % number, pika.BasicProperties(delivery_mode=mode))
    getattr(broker_process, end)()
    broker_process.start()

    after = connect(broker_process.amqp_port).channel()
    assert drain(after, "safe") == [b"%02d" % number for number in range(20)]


def test_the_ways_into_a_quorum_queue_all_keep_transient_messages(
    broker_process: ProcessBroker, connect: Connect
) -> None:
    channel = confirming(connect, broker_process)
    channel.queue_declare("safe", durable=True, arguments=QUORUM)
    channel.queue_declare("short", arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "fan"})
    channel.exchange_declare("fan", "fanout", durable=True)
    channel.exchange_declare("match", "headers", durable=True)
    channel.queue_bind("safe", "fan")
    channel.queue_bind("safe", "match", arguments={"to": "safe"})
    channel.queue_declare("beside", durable=True)
    channel.queue_bind("beside", "fan", "")

    channel.basic_publish("fan", "", b"fanout")
    channel.basic_publish("match", "", b"headers", pika.BasicProperties(headers={"to": "safe"}))
    channel.basic_publish("", "nowhere", b"copy", pika.BasicProperties(headers={"CC": ["safe"]}))
    channel.basic_publish("", "short", b"dead letter")
    while channel.queue_declare("safe", passive=True).method.message_count < 4:
        channel.connection.process_data_events(0.01)
    transaction = connect(broker_process.amqp_port).channel()
    transaction.tx_select()
    transaction.basic_publish("", "safe", b"transaction")
    transaction.tx_commit()
    broker_process.kill()
    broker_process.start()

    after = connect(broker_process.amqp_port).channel()
    kept = drain(after, "safe")
    assert sorted(kept) == [b"copy", b"dead letter", b"fanout", b"headers", b"transaction"]


def test_a_settled_transient_message_does_not_come_back(
    broker_process: ProcessBroker, connect: Connect
) -> None:
    channel = confirming(connect, broker_process)
    channel.queue_declare("safe", durable=True, arguments=QUORUM)
    for body in (b"done", b"open"):
        channel.basic_publish("", "safe", body)

    method, _, body = channel.basic_get("safe")
    assert body == b"done"
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", "safe", b"after")  # its confirm comes after the ack's record
    broker_process.kill()
    broker_process.start()

    assert drain(connect(broker_process.amqp_port).channel(), "safe") == [b"open", b"after"]
