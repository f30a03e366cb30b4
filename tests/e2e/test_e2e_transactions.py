"""tx.select, commit, rollback: publishes and settlements together or not at all."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pika
import pytest
from e2e_support import Consuming, depth, drain, eventually, get, get_soon, publish, pump
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from holtmq.amqp.channel import Channel
from holtmq.broker.records.checkpoint import snapshot
from holtmq.node import Node
from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def tx(connection: pika.BlockingConnection) -> BlockingChannel:
    """A transactional channel."""
    channel = connection.channel()
    channel.tx_select()
    return channel


def test_nothing_is_published_before_the_commit(
    tx: BlockingChannel, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(tx, name, "1", "2")
    tx.queue_declare(name, exclusive=True)  # the broker has read the publishes
    assert depth(channel, name) == 0

    tx.tx_commit()

    assert drain(channel, name) == [b"1", b"2"]


def test_a_rollback_forgets_the_publishes(tx: BlockingChannel, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(tx, name, "forgotten")
    tx.tx_rollback()
    publish(tx, name, "kept")

    tx.tx_commit()

    assert drain(channel, name) == [b"kept"]


def test_acks_count_when_they_are_committed(tx: BlockingChannel, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2")
    depth(channel, name)
    first = get_soon(tx, name, auto_ack=False)
    tx.basic_ack(first.tag)
    tx.tx_commit()
    second = get_soon(tx, name, auto_ack=False)
    tx.basic_ack(second.tag)

    tx.close()  # not committed: the second ack never happened

    delivery = get_soon(channel, name)
    assert (delivery.body, delivery.redelivered) == (b"2", True)
    assert get(channel, name) is None


def test_after_a_rollback_the_messages_are_still_unacked(
    tx: BlockingChannel, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2")
    depth(channel, name)
    tags = [get_soon(tx, name, auto_ack=False).tag for _ in range(2)]
    tx.basic_ack(tags[1], multiple=True)

    tx.tx_rollback()

    assert depth(channel, name) == 0
    tx.basic_nack(tags[0], requeue=True)
    tx.basic_ack(tags[1])
    tx.tx_commit()
    assert drain(channel, name) == [b"1"]


def test_a_multiple_ack_after_a_rollback_covers_what_was_restored(
    tx: BlockingChannel, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2", "3")
    depth(channel, name)
    tags = [get_soon(tx, name, auto_ack=False).tag for _ in range(3)]
    tx.basic_ack(tags[2], multiple=True)
    tx.tx_rollback()

    tx.basic_ack(tags[1], multiple=True)
    tx.tx_commit()

    tx.close()
    assert drain(channel, name) == [b"3"]


def test_rejections_are_dead_lettered_at_the_commit(
    tx: BlockingChannel, channel: BlockingChannel, name: str
) -> None:
    dead = name + ".dead"
    channel.queue_declare(dead, exclusive=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(name, exclusive=True, arguments=arguments)
    publish(channel, name, "x")
    depth(channel, name)
    tx.basic_reject(get_soon(tx, name, auto_ack=False).tag, requeue=False)
    tx.queue_declare(name, passive=True)
    assert depth(channel, dead) == 0

    tx.tx_commit()

    assert get_soon(channel, dead).body == b"x"


def test_an_unroutable_mandatory_message_returns_at_the_commit(tx: BlockingChannel) -> None:
    returned: list[Any] = []
    tx.add_on_return_callback(lambda *parts: returned.append(parts[3]))
    tx.basic_publish("", "nowhere", b"back", mandatory=True)
    tx.queue_declare("", exclusive=True)
    assert not returned

    tx.tx_commit()

    pump(tx, lambda: returned)
    assert returned == [b"back"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_commit_that_a_full_queue_refuses_in_part_says_so(
    tx: BlockingChannel, channel: BlockingChannel, name: str, overflow: str
) -> None:
    arguments = {"x-max-length": 1, "x-overflow": overflow}
    channel.queue_declare(name, durable=True, arguments=arguments)
    for body in (b"fits", b"does not"):
        tx.basic_publish("", name, body)

    with pytest.raises(ChannelClosedByBroker, match="partial tx completion") as closed:
        tx.tx_commit()

    assert closed.value.reply_code == 406
    assert channel.basic_get(name, auto_ack=True)[2] == b"fits"
    assert channel.basic_get(name) == (None, None, None)


def test_a_queue_deleted_before_the_commit_is_no_error(
    tx: BlockingChannel, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name)
    channel.queue_declare(name + ".2", exclusive=True)
    publish(tx, name, "lost")
    publish(tx, name + ".2", "kept")
    tx.queue_declare(name + ".2", passive=True)
    channel.queue_delete(name)
    channel.queue_declare(name, exclusive=True)

    tx.tx_commit()

    assert drain(channel, name + ".2") == [b"kept"]
    assert drain(channel, name) == [b"lost"]  # routed at the commit: the new queue of that name has it


def test_a_consumer_with_prefetch_goes_on_after_a_commit(
    tx: BlockingChannel, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2", "3")
    tx.basic_qos(prefetch_count=1)
    consumer = Consuming(tx, name)

    for n in range(3):
        tx.basic_ack(consumer.wait(n + 1)[n].tag)
        tx.tx_commit()

    assert depth(channel, name) == 0


def test_a_commit_is_whole_after_a_power_cut(
    start_broker: Callable[..., TestBroker], connect: Connect, name: str
) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port).channel()
    channel.queue_declare(name, durable=True)
    channel.queue_declare(name + ".out", durable=True)
    channel.tx_select()
    publish(channel, name, "in", delivery_mode=2)
    channel.tx_commit()
    channel.basic_ack(get_soon(channel, name, auto_ack=False).tag)
    publish(channel, name + ".out", "a", "b", delivery_mode=2)
    channel.tx_commit()
    publish(channel, name + ".out", "not committed", delivery_mode=2)

    broker.crash_and_restart()

    channel = connect(broker.amqp_port).channel()
    assert drain(channel, name) == []
    assert drain(channel, name + ".out") == [b"a", b"b"]


def test_a_channel_that_closes_inside_a_transaction_is_freed(start_broker: Callable[..., TestBroker]) -> None:
    broker = start_broker()
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    channel = connection.channel()
    channel.queue_declare("work")
    channel.basic_publish("", "work", b"1")
    channel.tx_select()
    channel.basic_ack(Consuming(channel, "work").wait(1)[0].tag)
    channel.queue_declare("work", passive=True)  # the broker has read the ack

    def channels(node: Node) -> list[weakref.ref[Channel]]:
        protocols = node.amqp.connections
        return [weakref.ref(c) for p in protocols for c in p.connection.channels.values()]

    held = broker.call(channels)
    channel.close()
    connection.close()
    gc.collect()

    assert len(held) == 1
    assert held[0]() is None


def test_an_ack_that_is_not_committed_survives_a_checkpoint_and_a_crash(
    start_broker: Callable[..., TestBroker], connect: Connect
) -> None:
    broker = start_broker()
    connection = connect(broker.amqp_port)
    channel = connection.channel()
    channel.queue_declare("work", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "work", b"1", pika.BasicProperties(delivery_mode=2))
    tx = connection.channel()
    tx.tx_select()
    tx.basic_ack(get_soon(tx, "work", auto_ack=False).tag)
    tx.queue_declare("work", durable=True, passive=True)  # the broker has read the ack

    broker.call(lambda node: node.journal.checkpoint(*snapshot(node.broker, node.partitioned.store)))
    eventually(lambda: broker.call(lambda node: node.journal.stats().checkpoints), "a checkpoint")
    broker.crash_and_restart()

    assert get_soon(connect(broker.amqp_port).channel(), "work").body == b"1"
