"""Queues from declaration to deletion: names, exclusivity, auto-delete, expiry of queues, nowait."""

from collections.abc import Callable

import pika
import pytest
from e2e_support import Consuming, RawPeer, depth, drain, eventually, get_soon, publish
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.amqp.methods import (
    BasicConsume,
    BasicDeliver,
    ConfirmSelect,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
)
from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e
Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., RawPeer]


def exists(channel: BlockingChannel, queue: str) -> bool:
    """Asked on a channel of its own, since a no closes it."""
    asking = channel.connection.channel()
    try:
        asking.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        if error.reply_code != 404:
            raise
        return False
    asking.close()
    return True


def test_the_broker_names_a_queue_that_has_no_name(channel: BlockingChannel) -> None:
    names = {channel.queue_declare("", exclusive=True).method.queue for _ in range(3)}

    assert len(names) == 3
    assert all(name.startswith("amq.gen-") for name in names)


def test_an_empty_name_means_the_queue_declared_last(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "x")

    assert get_soon(channel, "").body == b"x"


def test_declaring_again_says_how_many_messages_and_consumers(
    channel: BlockingChannel, connect: Connect, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    publish(channel, name, "1", "2")
    other = connect().channel()
    other.basic_qos(prefetch_count=1)
    Consuming(other, name).wait(1)

    declared = channel.queue_declare(name, auto_delete=True).method

    assert (declared.queue, declared.message_count, declared.consumer_count) == (name, 1, 1)


def test_purge_drops_what_waits_and_leaves_what_is_out(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "out", "1", "2")
    taken = get_soon(channel, name, auto_ack=False)

    assert channel.queue_purge(name).method.message_count == 2

    channel.basic_nack(taken.tag, requeue=True)
    assert drain(channel, name) == [b"out"]


def test_delete_says_how_many_messages_went(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    publish(channel, name, "1", "2", "3")

    assert channel.queue_delete(name).method.message_count == 3
    assert not exists(channel, name)


def test_if_unused_and_if_empty_let_a_free_queue_go(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)

    channel.queue_delete(name, if_unused=True, if_empty=True)

    assert not exists(channel, name)


def test_an_exclusive_queue_goes_with_its_connection(
    channel: BlockingChannel, connect: Connect, name: str
) -> None:
    owner = connect()
    owner.channel().queue_declare(name, exclusive=True)

    owner.close()

    assert not exists(channel, name)


def test_an_exclusive_queue_goes_with_a_lost_socket(channel: BlockingChannel, raw: Raw, name: str) -> None:
    owner = raw()
    owner.send(1, QueueDeclare(name, exclusive=True))
    owner.expect(QueueDeclareOk)

    owner.socket.close()

    def gone() -> bool:
        try:
            return not exists(channel, name)
        except pika.exceptions.ChannelClosedByBroker:  # still locked
            return False

    eventually(gone, "the queue goes")


def test_an_exclusive_queue_outlives_the_channel_that_declared_it(
    connection: pika.BlockingConnection, name: str
) -> None:
    first = connection.channel()
    first.queue_declare(name, exclusive=True)
    first.close()

    connection.channel().queue_declare(name, exclusive=True)


def test_others_may_publish_to_an_exclusive_queue(
    channel: BlockingChannel, connect: Connect, name: str
) -> None:
    channel.queue_declare(name, exclusive=True)

    publish(connect().channel(), name, "from outside")

    assert get_soon(channel, name).body == b"from outside"


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, auto_delete=True)
    assert exists(channel, name)  # it waits for its first
    first, second = Consuming(channel, name), Consuming(channel, name)

    channel.basic_cancel(first.tag)
    assert exists(channel, name)
    channel.basic_cancel(second.tag)

    assert not exists(channel, name)


def test_an_auto_delete_queue_goes_when_its_consumers_connection_breaks(
    channel: BlockingChannel, raw: Raw, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    consumer = raw()
    consumer.send(1, BasicConsume(name))
    publish(channel, name, "x")
    consumer.read()
    consumer.expect(BasicDeliver)

    consumer.socket.close()

    eventually(lambda: not exists(channel, name), "the queue goes")


def test_closing_the_channel_of_the_last_consumer_deletes_an_auto_delete_queue(
    connection: pika.BlockingConnection, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    other = connection.channel()
    Consuming(other, name)

    other.close()

    assert not exists(channel, name)


def test_x_expires_deletes_an_idle_queue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-expires": 60})

    # Asking for it counts as use in RabbitMQ, so it is asked through a binding that goes along.
    eventually(lambda: not exists_without_use(channel, name), "the queue expires")


def test_x_expires_spares_a_queue_with_a_consumer(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-expires": 60})
    channel.queue_declare(name + ".other", arguments={"x-expires": 90})
    consumer = Consuming(channel, name, auto_ack=True)

    eventually(lambda: not exists_without_use(channel, name + ".other"), "the other queue expires")

    publish(channel, name, "still there")
    consumer.wait(1)
    channel.basic_cancel(consumer.tag)
    eventually(lambda: not exists_without_use(channel, name), "it expires after its consumer left")


def exists_without_use(channel: BlockingChannel, queue: str) -> bool:
    """Whether a message for it would be routed."""
    asking = channel.connection.channel()
    asking.confirm_delivery()
    try:
        asking.basic_publish("", queue, b"?", mandatory=True)
    except pika.exceptions.UnroutableError:
        return False
    finally:
        asking.close()
    return True


def test_every_nowait_variant_is_obeyed_without_an_answer(raw: Raw, name: str) -> None:
    peer = raw()

    peer.send(1, ExchangeDeclare(name, "fanout", no_wait=True))
    peer.send(1, ExchangeDeclare(name + ".2", "fanout", no_wait=True))
    peer.send(1, ExchangeBind(name + ".2", name, "", no_wait=True))
    peer.send(1, QueueDeclare(name, exclusive=True, no_wait=True))
    peer.send(1, QueueDeclare(name + ".2", exclusive=True, no_wait=True))
    peer.send(1, QueueBind(name, name + ".2", "", no_wait=True))
    peer.publish(name + ".2", b"purged")
    peer.send(1, QueuePurge(name + ".2", no_wait=True))
    peer.send(1, QueueDelete(name + ".2", if_empty=True, no_wait=True))
    peer.send(1, ConfirmSelect(no_wait=True))
    peer.send(1, BasicConsume(name, "t", no_ack=True, no_wait=True))
    peer.publish("", b"x", exchange=name)

    got = {type(peer.read()).__name__, type(peer.read()).__name__, type(peer.read()).__name__}
    assert got == {"BasicDeliver", "bytes"} or got == {"BasicDeliver", "bytes", "BasicAck"}
    peer.send(1, ExchangeDelete(name, no_wait=True))
    peer.send(1, ExchangeDelete(name + ".2", no_wait=True))
    peer.send(1, QueueDelete(name))
    while not isinstance(peer.read(), QueueDeleteOk):
        pass


def test_line_ends_in_names_are_dropped(raw: Raw, name: str) -> None:
    peer = raw()

    peer.send(1, QueueDeclare(name + "\r\n", exclusive=True))

    assert peer.expect(QueueDeclareOk).queue == name


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_queue_types_that_clients_declare_are_accepted(
    channel: BlockingChannel, name: str, kind: str
) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind})
    publish(channel, name, "x")

    assert drain(channel, name) == [b"x"]
    channel.queue_delete(name)


def test_other_arguments_rabbitmq_takes_are_accepted(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(
        name,
        exclusive=True,
        arguments={
            "x-queue-mode": "lazy",
            "x-queue-master-locator": "min-masters",
            "x-mine": [1, {"a": "b"}],
        },
    )

    assert depth(channel, name) == 0


def test_durable_topology_and_messages_survive_a_restart(
    start_broker: Callable[..., TestBroker], connect: Connect, name: str
) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port).channel()
    channel.exchange_declare(name, "topic", durable=True)
    channel.exchange_declare(name + ".gone", "topic")
    channel.queue_declare(name, durable=True, arguments={"x-max-length": 10})
    channel.queue_declare(name + ".gone")
    channel.queue_bind(name, name, "a.#")
    channel.confirm_delivery()
    publish(channel, "a.b", "kept", exchange=name, delivery_mode=2, headers={"deep": {"er": [1, 25]}})
    publish(channel, "a.b", "transient", exchange=name)
    channel.connection.close()

    broker.restart()

    channel = connect(broker.amqp_port).channel()
    assert not exists(channel, name + ".gone")
    channel.queue_declare(name, durable=True, arguments={"x-max-length": 10})
    kept = get_soon(channel, name)
    assert (kept.body, kept.headers) == (b"kept", {"deep": {"er": [1, 25]}})
    publish(channel, "a.c", "after", exchange=name)
    assert drain(channel, name) == [b"after"]
