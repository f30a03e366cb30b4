"""Consumers: who gets what, when, and how they learn that it is over."""

import threading
from collections.abc import Callable

import pika
import pytest
from e2e_support import Consuming, RawPeer, depth, drain, eventually, get, get_soon, publish, pump
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    ChannelFlow,
    ChannelFlowOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from holtmq.testing import TestBroker
from holtmq.wire.properties import Properties

pytestmark = pytest.mark.e2e
Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., RawPeer]
Start = Callable[..., TestBroker]


def test_properties_and_headers_come_out_as_they_went_in(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    sent = pika.BasicProperties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"n": 1, "big": 2**40, "s": "ü", "t": {"x": None}, "l": [True, 15], "b": b"\xff\0"},
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="60000",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="cl",
    )

    channel.basic_publish("", name, b"x", sent)

    assert get_soon(channel, name).properties == sent


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 1_000_000])
def test_bodies_of_any_size_come_through_whole(channel: BlockingChannel, name: str, size: int) -> None:
    channel.queue_declare(name, exclusive=True)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    consumer = Consuming(channel, name, auto_ack=True)

    publish(channel, name, body)

    assert consumer.wait(1)[0].body == body
    channel.basic_cancel(consumer.tag)
    publish(channel, name, body)
    assert get_soon(channel, name).body == body


def test_a_small_frame_size_cuts_bodies_both_ways(connect: Connect, name: str) -> None:
    channel = connect(frame_max=4096).channel()
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, b"x" * 20_000)

    assert get_soon(channel, name).body == b"x" * 20_000


def test_basic_get_tells_how_many_remain(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2", "3")

    assert [get_soon(channel, name).method.message_count for _ in range(3)] == [2, 1, 0]
    assert get(channel, name) is None


def test_consumers_of_one_queue_take_turns(connection: pika.BlockingConnection, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    consumers = [Consuming(channel, name) for _ in range(3)]

    publish(channel, name, *(str(n) for n in range(9)))

    pump(channel, lambda: sum(len(c.got) for c in consumers) == 9)
    assert [len(c.got) for c in consumers] == [3, 3, 3]


def test_prefetch_is_per_consumer(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=2)
    first, second = Consuming(channel, name), Consuming(channel, name)

    publish(channel, name, *(str(n) for n in range(10)))

    first.wait(2)
    second.wait(2)
    assert depth(channel, name) == 6
    assert (len(first.settle()), len(second.got)) == (2, 2)
    channel.basic_ack(first.got[0].tag)
    first.wait(3)
    assert depth(channel, name) == 5


def test_prefetch_of_a_consumer_is_the_one_set_before_it(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=1)
    first = Consuming(channel, name)
    channel.basic_qos(prefetch_count=3)
    second = Consuming(channel, name)

    publish(channel, name, *(str(n) for n in range(10)))

    pump(channel, lambda: len(first.got) + len(second.got) == 4)
    assert (len(first.got), len(second.got)) == (1, 3)


def test_global_prefetch_is_shared_by_the_channel(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.queue_declare(name + ".2", exclusive=True)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    first, second = Consuming(channel, name), Consuming(channel, name + ".2")

    for n in range(4):
        publish(channel, name, str(n))
        publish(channel, name + ".2", str(n))

    pump(channel, lambda: len(first.got) + len(second.got) == 3)
    assert depth(channel, name) + depth(channel, name + ".2") == 5
    channel.basic_ack(first.got[0].tag if first.got else second.got[0].tag)
    pump(channel, lambda: len(first.got) + len(second.got) == 4)
    assert depth(channel, name) + depth(channel, name + ".2") == 4


def test_a_prefetch_per_consumer_takes_the_place_of_the_channels(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    first = Consuming(channel, name)
    publish(channel, name, *(str(n) for n in range(10)))
    first.wait(3)

    channel.basic_qos(prefetch_count=2)  # from here on the first consumer has no limit at all

    first.wait(10)
    second = Consuming(channel, name)
    channel.basic_cancel(first.tag)
    publish(channel, name, "more", "and", "more")
    second.wait(2)


def test_a_no_ack_consumer_has_no_prefetch(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=1)
    publish(channel, name, *(str(n) for n in range(10)))

    assert len(Consuming(channel, name, auto_ack=True).wait(10)) == 10
    assert depth(channel, name) == 0


def test_a_requeued_message_goes_back_to_its_place(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2", "3")
    first, second = get_soon(channel, name, auto_ack=False), get_soon(channel, name, auto_ack=False)

    channel.basic_nack(second.tag, requeue=True)
    channel.basic_reject(first.tag, requeue=True)

    assert drain(channel, name) == [b"1", b"2", b"3"]


def test_a_multiple_nack_returns_all_up_to_the_tag(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "1", "2", "3")
    tags = [get_soon(channel, name, auto_ack=False).tag for _ in range(3)]

    channel.basic_nack(tags[1], multiple=True, requeue=True)

    assert drain(channel, name) == [b"1", b"2"]
    channel.basic_nack(0, multiple=True, requeue=True)
    assert drain(channel, name) == [b"3"]


def test_a_consumer_learns_that_its_queue_is_gone(
    channel: BlockingChannel, connect: Connect, name: str
) -> None:
    channel.queue_declare(name)
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    consumer = Consuming(channel, name)

    connect().channel().queue_delete(name)

    pump(channel, lambda: cancelled, "basic.cancel")
    assert cancelled == [consumer.tag]


def test_a_client_that_does_not_know_the_notification_is_spared_it(raw: Raw, name: str) -> None:
    peer, other = raw(), raw(capabilities={"consumer_cancel_notify": True})
    for one in (peer, other):
        one.send(1, QueueDeclare(name))
        one.expect(QueueDeclareOk)
        one.send(1, BasicConsume(name, "t"))
        one.expect(BasicConsumeOk)

    peer.send(1, QueueDelete(name))

    assert other.expect(BasicCancel) == BasicCancel("t", True)
    peer.expect(QueueDeleteOk)
    peer.send(1, QueueDeclare(name, exclusive=True))
    peer.expect(QueueDeclareOk)  # and nothing before it


def test_whoever_deletes_a_queue_is_answered_before_its_consumers_are_told(raw: Raw, name: str) -> None:
    peer = raw(capabilities={"consumer_cancel_notify": True})
    for durable in (False, True):
        peer.send(1, QueueDeclare(name, durable=durable))
        peer.expect(QueueDeclareOk)
        peer.send(1, BasicConsume(name, "t"))
        peer.expect(BasicConsumeOk)

        peer.send(1, QueueDelete(name))

        peer.expect(QueueDeleteOk)
        assert peer.expect(BasicCancel) == BasicCancel("t", True)


def test_a_single_active_consumer_has_all_until_it_leaves(connect: Connect, name: str) -> None:
    channels = [connect().channel() for _ in range(2)]
    channels[0].queue_declare(name, arguments={"x-single-active-consumer": True})
    first, second = (Consuming(channel, name) for channel in channels)
    publish(channels[0], name, "1", "2")
    first.wait(2)
    assert second.settle() == []

    channels[0].basic_ack(first.got[0].tag)
    channels[0].basic_cancel(first.tag)

    second.wait(1)
    publish(channels[0], name, "3")
    assert [delivery.body for delivery in second.wait(2)] == [b"2", b"3"]
    assert second.got[0].redelivered
    channels[0].queue_delete(name)


def test_an_exclusive_consumer_locks_the_queue_until_it_leaves(
    channel: BlockingChannel, connect: Connect, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    consumer = Consuming(channel, name, exclusive=True)
    other = connect()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="in exclusive use"):
        Consuming(other.channel(), name)

    keeper = connect().channel()
    keeper.queue_declare(name, passive=True)
    channel.queue_declare(name + ".2", exclusive=True)
    publish(channel, name, "x")
    consumer.wait(1)
    channel.basic_cancel(consumer.tag)

    channel.queue_declare(name, auto_delete=True)
    Consuming(other.channel(), name)


def test_messages_go_to_the_consumer_of_highest_priority_with_room(
    connection: pika.BlockingConnection, name: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.basic_qos(prefetch_count=2)
    low = Consuming(channel, name, arguments={"x-priority": -5})
    high = Consuming(channel, name, arguments={"x-priority": 10})
    normal = Consuming(channel, name)

    publish(channel, name, *(str(n) for n in range(5)))

    pump(channel, lambda: len(low.got) + len(high.got) + len(normal.got) == 5)
    assert (high.bodies, normal.bodies, low.bodies) == ([b"0", b"1"], [b"2", b"3"], [b"4"])
    channel.basic_ack(high.got[0].tag)
    publish(channel, name, "5")
    assert high.wait(3)[2].body == b"5"


def test_direct_reply_to_brings_an_answer_without_a_queue(
    channel: BlockingChannel, connect: Connect, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    replies = Consuming(channel, "amq.rabbitmq.reply-to", auto_ack=True)
    publish(channel, name, "ping", reply_to="amq.rabbitmq.reply-to", correlation_id="42")
    server = connect().channel()
    request = Consuming(server, name, auto_ack=True).wait(1)[0]
    reply_to = request.properties.reply_to
    assert reply_to.startswith("amq.rabbitmq.reply-to.")
    server.queue_declare(reply_to, passive=True)  # still there

    publish(server, reply_to, "pong", correlation_id=request.properties.correlation_id)

    answer = replies.wait(1)[0]
    assert (answer.body, answer.properties.correlation_id) == (b"pong", "42")
    assert answer.method.exchange == ""


def test_an_answer_to_somebody_who_left_is_returned(
    channel: BlockingChannel, connect: Connect, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    asking = connect()
    client = asking.channel()
    Consuming(client, "amq.rabbitmq.reply-to", auto_ack=True)
    publish(client, name, "ping", reply_to="amq.rabbitmq.reply-to")
    reply_to = Consuming(channel, name, auto_ack=True).wait(1)[0].properties.reply_to
    asking.close()
    channel.confirm_delivery()

    def unroutable() -> bool:
        try:
            channel.basic_publish("", reply_to, b"pong", mandatory=True)
        except pika.exceptions.UnroutableError:
            return True
        return False

    eventually(unroutable)


def test_channel_flow_stops_and_starts_deliveries(raw: Raw, name: str) -> None:
    peer = raw()
    peer.send(1, QueueDeclare(name, exclusive=True))
    peer.expect(QueueDeclareOk)
    peer.send(1, BasicConsume(name, "t"))
    peer.expect(BasicConsumeOk)

    peer.send(1, ChannelFlow(False))
    assert peer.expect(ChannelFlowOk) == ChannelFlowOk(False)
    peer.publish(name, b"held")
    peer.send(1, QueueDeclare(name, passive=True))
    assert peer.expect(QueueDeclareOk).message_count == 1
    peer.send(1, ChannelFlow(True))

    assert peer.expect(ChannelFlowOk) == ChannelFlowOk(True)
    peer.expect(BasicDeliver)


def test_channel_flow_can_be_refused_as_rabbitmq_does(start_broker: Start, raw: Raw) -> None:
    peer = raw(port=start_broker(channel_flow=False).amqp_port)
    peer.send(1, ChannelFlow(True))
    assert peer.expect(ChannelFlowOk) == ChannelFlowOk(True)

    peer.send(1, ChannelFlow(False))

    close = peer.expect_close()
    assert (close.reply_code, close.reply_text) == (540, "NOT_IMPLEMENTED - active=false")


def test_no_local_is_ignored_as_in_rabbitmq(raw: Raw, name: str) -> None:
    peer = raw()
    peer.send(1, QueueDeclare(name, exclusive=True))
    peer.expect(QueueDeclareOk)
    peer.send(1, BasicConsume(name, "t", no_local=True))
    peer.expect(BasicConsumeOk)

    peer.publish(name, b"my own", properties=Properties())

    assert peer.expect(BasicDeliver).delivery_tag == 1


def test_delivery_tags_count_per_channel(raw: Raw, name: str) -> None:
    from holtmq.amqp.methods import ChannelOpen, ChannelOpenOk

    peer = raw()
    peer.send(2, ChannelOpen())
    peer.expect(ChannelOpenOk)
    peer.send(1, QueueDeclare(name, exclusive=True))
    peer.expect(QueueDeclareOk)
    tags = []
    for channel in (1, 2, 1, 2):
        peer.send(channel, BasicConsume(name, "t"))
        peer.expect(BasicConsumeOk)
        peer.publish(name, b"")
        tags.append(peer.expect(BasicDeliver).delivery_tag)
        peer.read()
        peer.send(channel, BasicAck(tags[-1]))
        peer.send(channel, BasicCancel("t"))
        peer.read()

    assert tags == [1, 1, 2, 2]


def test_a_consumer_that_does_not_read_does_not_stop_the_others(
    raw: Raw, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    stuck = raw()
    stuck.send(1, BasicConsume(name, "t", no_ack=True))
    stuck.expect(BasicConsumeOk)
    consumer = Consuming(channel, name, auto_ack=True)
    body = b"x" * 100_000

    # Far more than socket buffers hold: what the stuck one cannot take stays for the other.
    for _ in range(40):
        publish(channel, name, *[body] * 10)
        consumer.settle()

    pump(channel, lambda: len(consumer.got) > 200, "the other consumer goes on")
    assert depth(channel, name) == 0


def test_publishing_from_one_thread_and_consuming_in_another(
    connect: Connect, channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    count = 2_000

    def produce() -> None:
        producer = connect().channel()
        publish(producer, name, *(str(n) for n in range(count)))

    thread = threading.Thread(target=produce)
    thread.start()
    channel.basic_qos(prefetch_count=100)
    consumer = Consuming(channel, name)
    for at in range(0, count, 50):
        consumer.wait(at + 50)
        channel.basic_ack(consumer.got[at + 49].tag, multiple=True)
    thread.join()

    assert consumer.bodies == [str(n).encode() for n in range(count)]
    assert depth(channel, name) == 0
