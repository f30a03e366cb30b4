"""Unacked messages belong to their consumer: what basic.cancel does with them."""

from collections.abc import Callable

import pika
import pytest
from e2e_support import Consuming, RawPeer, depth, drain, get, get_soon, publish, pump
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.amqp.methods import BasicConsume, BasicConsumeOk, BasicDeliver
from holtmq.testing import TestBroker

Connect = Callable[..., pika.BlockingConnection]
pytestmark = pytest.mark.e2e


def test_cancel_requeues_what_the_consumer_has_not_acked(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2", "3")
    consumer = Consuming(channel, name)
    consumer.wait(3)
    assert depth(channel, name) == 0

    channel.basic_cancel(consumer.tag)

    assert depth(channel, name) == 3
    assert drain(channel, name) == [b"1", b"2", b"3"]


def test_cancel_requeues_only_to_the_original_queue(channel: BlockingChannel, name: str) -> None:
    one, two = name + ".1", name + ".2"
    channel.queue_declare(one, exclusive=True)
    channel.queue_declare(two, exclusive=True)
    publish(channel, one, "one")
    publish(channel, two, "two")
    first, second = Consuming(channel, one), Consuming(channel, two)
    first.wait(1)
    second.wait(1)

    channel.basic_cancel(first.tag)

    assert depth(channel, one) == 1
    assert depth(channel, two) == 0
    channel.basic_ack(second.got[0].tag)
    assert drain(channel, one) == [b"one"]


def test_a_no_ack_consumer_has_nothing_to_requeue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2")
    consumer = Consuming(channel, name, auto_ack=True)
    consumer.wait(2)

    channel.basic_cancel(consumer.tag)

    assert depth(channel, name) == 0


def test_cancel_with_a_prefetch_of_500_returns_all_in_order(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=500)
    publish(channel, name, *(str(n) for n in range(600)))
    consumer = Consuming(channel, name)
    consumer.wait(500)

    channel.basic_cancel(consumer.tag)

    assert depth(channel, name) == 600
    assert drain(channel, name) == [str(n).encode() for n in range(600)]


def test_consumers_on_one_channel_are_independent(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=2)
    first = Consuming(channel, name)
    second = Consuming(channel, name)
    publish(channel, name, "1", "2", "3", "4")
    first.wait(2)
    second.wait(2)
    held = {delivery.body for delivery in second.got}

    channel.basic_cancel(first.tag)

    # The other consumer's two are still out; what came back waits, since its prefetch is used up.
    assert depth(channel, name) == 2
    for delivery in list(second.got):
        channel.basic_ack(delivery.tag)
    second.wait(4)
    assert {delivery.body for delivery in second.got[:2]} == held
    assert {delivery.body for delivery in second.got} == {b"1", b"2", b"3", b"4"}


def test_basic_get_deliveries_survive_a_cancel(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "got", "consumed")
    taken = get_soon(channel, name, auto_ack=False)
    consumer = Consuming(channel, name)
    consumer.wait(1)

    channel.basic_cancel(consumer.tag)

    assert depth(channel, name) == 1
    channel.basic_ack(taken.tag)
    assert drain(channel, name) == [b"consumed"]


def test_what_comes_back_is_marked_redelivered(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=1)
    publish(channel, name, "seen", "unseen")
    consumer = Consuming(channel, name)
    assert not consumer.wait(1)[0].redelivered

    channel.basic_cancel(consumer.tag)

    assert get_soon(channel, name).redelivered
    assert not get_soon(channel, name).redelivered


def test_what_comes_back_respects_max_length(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 2})
    channel.basic_qos(prefetch_count=2)
    publish(channel, name, "1", "2")
    consumer = Consuming(channel, name)
    consumer.wait(2)
    publish(channel, name, "3", "4")
    assert depth(channel, name) == 2

    channel.basic_cancel(consumer.tag)

    # The oldest go first, and those are the ones that came back.
    assert depth(channel, name) == 2
    assert drain(channel, name) == [b"3", b"4"]


def test_a_late_ack_of_a_message_nobody_took_removes_it(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "done", "not done")
    consumer = Consuming(channel, name)
    consumer.wait(2)
    channel.basic_cancel(consumer.tag)

    channel.basic_ack(consumer.got[0].tag)

    assert depth(channel, name) == 1
    assert drain(channel, name) == [b"not done"]


def test_a_late_ack_of_a_message_somebody_took_is_ignored(
    connect: Connect, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    publish(channel, name, "twice")
    consumer = Consuming(channel, name)
    consumer.wait(1)
    other = connect().channel()
    taker = Consuming(other, name)
    channel.basic_cancel(consumer.tag)
    assert taker.wait(1)[0].redelivered

    channel.basic_ack(consumer.got[0].tag)

    assert channel.is_open
    assert depth(channel, name) == 0
    other.basic_nack(taker.got[0].tag, requeue=True)
    taker.wait(2)


def test_late_nacks_and_rejects_are_no_error(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2", "3")
    consumer = Consuming(channel, name)
    consumer.wait(3)
    channel.basic_cancel(consumer.tag)

    channel.basic_nack(consumer.got[0].tag, requeue=True)
    channel.basic_reject(consumer.got[1].tag, requeue=False)

    assert drain(channel, name) == [b"1", b"3"]


def test_a_late_multiple_ack_covers_what_was_revoked(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2", "3")
    consumer = Consuming(channel, name)
    consumer.wait(3)
    channel.basic_cancel(consumer.tag)

    channel.basic_ack(consumer.got[1].tag, multiple=True)

    assert drain(channel, name) == [b"3"]


def test_a_second_late_ack_is_an_error_like_any_unknown_tag(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1")
    consumer = Consuming(channel, name)
    consumer.wait(1)
    channel.basic_cancel(consumer.tag)
    channel.basic_ack(consumer.got[0].tag)

    channel.basic_ack(consumer.got[0].tag)

    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="unknown delivery tag"):
        channel.queue_declare(name, passive=True)


def test_x_cancel_requeue_false_leaves_messages_with_the_channel(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-cancel-requeue": False})
    publish(channel, name, "1", "2")
    consumer = Consuming(channel, name)
    consumer.wait(2)

    channel.basic_cancel(consumer.tag)

    assert depth(channel, name) == 0
    channel.basic_ack(consumer.got[0].tag)
    channel.basic_nack(consumer.got[1].tag, requeue=True)
    assert drain(channel, name) == [b"2"]


def test_the_broker_wide_setting_gives_rabbitmqs_behaviour(
    start_broker: Callable[..., TestBroker], connect: Connect, name: str
) -> None:
    other = start_broker(cancel_requeue=False)
    channel = connect(other.amqp_port).channel()
    channel.queue_declare(name)
    publish(channel, name, "1")
    consumer = Consuming(channel, name)
    consumer.wait(1)

    channel.basic_cancel(consumer.tag)

    assert depth(channel, name) == 0
    channel.close()
    assert depth(connect(other.amqp_port).channel(), name) == 1


def test_closing_a_channel_returns_what_all_its_consumers_hold(
    connection: pika.BlockingConnection, name: str
) -> None:
    first, second = connection.channel(), connection.channel()
    first.queue_declare(name, exclusive=True)
    publish(first, name, "1", "2", "3")
    one = Consuming(second, name)
    one.wait(3)
    second.basic_ack(one.got[1].tag)

    second.close()

    assert depth(first, name) == 2
    delivered = get_soon(first, name)
    assert (delivered.body, delivered.redelivered) == (b"1", True)
    assert drain(first, name) == [b"3"]


def test_losing_a_connection_returns_what_it_held(
    raw: Callable[..., RawPeer], channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    keep = Consuming(channel, name, arguments={"x-priority": -1})
    gone = raw()
    gone.send(1, BasicConsume(name, "t"))
    gone.expect(BasicConsumeOk)
    publish(channel, name, "1", "2")
    gone.expect(BasicDeliver)

    gone.socket.close()  # without a goodbye

    assert [(d.body, d.redelivered) for d in keep.wait(2)] == [(b"1", True), (b"2", True)]


def test_recover_requeues_all_of_the_channel(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "got", "consumed")
    get_soon(channel, name, auto_ack=False)
    consumer = Consuming(channel, name)
    consumer.wait(1)

    channel.basic_recover(requeue=True)

    consumer.wait(3)
    assert sorted(consumer.bodies[1:]) == [b"consumed", b"got"]
    assert all(delivery.redelivered for delivery in consumer.got[1:])


def test_a_cancel_of_a_consumer_on_a_deleted_queue_is_no_error(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1")
    consumer = Consuming(channel, name)
    consumer.wait(1)
    channel.queue_delete(name)
    pump(channel, lambda: consumer.tag not in channel.consumer_tags, "told that the queue is gone")

    channel.basic_cancel(consumer.tag)
    channel.basic_ack(consumer.got[0].tag)

    channel.queue_declare(name, exclusive=True)
    assert get(channel, name) is None
