"""Publisher confirms: never an ack that lies, never a silent drop."""

from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from e2e_support import ProcessBroker, RawPeer, depth, drain, get_soon, publish
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.amqp.methods import (
    BasicAck,
    BasicNack,
    BasicReturn,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
    QueueDeclare,
    QueueDeclareOk,
)
from holtmq.testing import TestBroker
from holtmq.wire.properties import Properties

pytestmark = pytest.mark.e2e
Connect = Callable[..., pika.BlockingConnection]
Raw = Callable[..., RawPeer]
PERSISTENT = Properties(delivery_mode=2)


def confirming(peer: RawPeer, queue: str = "", **declare: object) -> RawPeer:
    """A peer in confirm mode, with a queue."""
    peer.send(1, ConfirmSelect())
    peer.expect(ConfirmSelectOk)
    if queue:
        peer.send(1, QueueDeclare(queue, **declare))  # type: ignore[arg-type]
        peer.expect(QueueDeclareOk)
    return peer


def confirmed(peer: RawPeer, upto: int) -> tuple[set[int], set[int]]:
    """Read confirms until all tags up to this one are settled: the acked and the nacked."""
    acked: set[int] = set()
    nacked: set[int] = set()
    while len(acked) + len(nacked) < upto:
        answer: Method | bytes | None = peer.read()
        assert isinstance(answer, BasicAck | BasicNack), answer
        settled = {answer.delivery_tag}
        if answer.multiple:
            settled = set(range(1, answer.delivery_tag + 1)) - acked - nacked
        assert not settled & (acked | nacked), "a tag was settled twice"
        (acked if isinstance(answer, BasicAck) else nacked).update(settled)
    return acked, nacked


def test_a_durable_message_is_confirmed(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()

    channel.basic_publish("", name, b"kept", pika.BasicProperties(delivery_mode=2))  # raises on a nack

    assert drain(channel, name) == [b"kept"]
    channel.queue_delete(name)


def test_tags_count_from_one_and_every_message_is_confirmed_once(raw: Raw, name: str) -> None:
    peer = confirming(raw(), name, exclusive=True)

    for n in range(500):
        peer.publish(name, b"x", properties=PERSISTENT if n % 3 else None)

    assert confirmed(peer, 500) == (set(range(1, 501)), set())


def test_confirms_of_durable_messages_come_in_order_after_the_sync(raw: Raw, name: str) -> None:
    peer = confirming(raw(), name, durable=True)

    for n in range(300):
        peer.publish(name, b"x", properties=PERSISTENT if n % 2 else None)

    assert confirmed(peer, 300)[0] == set(range(1, 301))


def test_an_unroutable_message_is_confirmed(raw: Raw) -> None:
    peer = confirming(raw())

    peer.publish("nowhere", b"x")

    assert peer.expect(BasicAck) == BasicAck(1, False)


def test_a_mandatory_unroutable_message_is_returned_before_it_is_confirmed(raw: Raw) -> None:
    peer = confirming(raw())

    peer.publish("nowhere", b"x", mandatory=True)

    assert peer.expect(BasicReturn) == BasicReturn(312, "NO_ROUTE", "", "nowhere")
    assert isinstance(peer.read(), bytes)
    assert peer.read() == b"x"
    assert peer.expect(BasicAck).delivery_tag == 1


def test_pika_raises_for_an_unroutable_mandatory_message(channel: BlockingChannel) -> None:
    channel.confirm_delivery()

    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"x", mandatory=True)


def test_a_full_queue_that_rejects_gives_a_nack(raw: Raw, name: str) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    peer = confirming(raw(), name, exclusive=True, arguments=arguments)

    for _ in range(5):
        peer.publish(name, b"x")

    assert confirmed(peer, 5) == ({1, 2}, {3, 4, 5})
    peer.send(1, QueueDeclare(name, passive=True))
    assert peer.expect(QueueDeclareOk).message_count == 2


def test_a_message_refused_by_one_of_its_queues_is_nacked_and_kept_by_the_other(
    channel: BlockingChannel, name: str
) -> None:
    channel.exchange_declare(name, "fanout", auto_delete=True)
    for suffix, arguments in (("", {}), (".full", {"x-max-length": 0, "x-overflow": "reject-publish"})):
        channel.queue_declare(name + suffix, exclusive=True, arguments=arguments)
        channel.queue_bind(name + suffix, name)
    channel.confirm_delivery()

    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish(name, "", b"x")

    assert drain(channel, name) == [b"x"]


def test_confirmed_messages_survive_a_clean_restart(
    start_broker: Callable[..., TestBroker], connect: Connect, name: str
) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port).channel()
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    publish(channel, name, *(str(n) for n in range(20)), delivery_mode=2)
    channel.connection.close()

    broker.restart()

    assert drain(connect(broker.amqp_port).channel(), name) == [str(n).encode() for n in range(20)]


def test_confirmed_messages_survive_a_power_cut_and_acked_ones_do_not_return(
    start_broker: Callable[..., TestBroker], connect: Connect, name: str
) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port).channel()
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    publish(channel, name, "acked", "held", "waiting", delivery_mode=2)
    channel.basic_ack(get_soon(channel, name, auto_ack=False).tag)
    get_soon(channel, name, auto_ack=False)
    channel.queue_declare(name + ".sync", durable=True)  # answered when all before it is durable

    broker.crash_and_restart()

    channel = connect(broker.amqp_port).channel()
    held, waiting = get_soon(channel, name), get_soon(channel, name)
    assert (held.body, held.redelivered) == (b"held", True)
    assert waiting.body == b"waiting"
    assert depth(channel, name) == 0


def test_confirmed_messages_survive_kill_9(tmp_path: Path, connect: Connect, name: str) -> None:
    broker = ProcessBroker(tmp_path)
    try:
        channel = connect(broker.amqp_port).channel()
        channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        publish(channel, name, *(str(n) for n in range(50)), delivery_mode=2)
        publish(channel, name, "transient")

        broker.kill()
        broker.start()

        assert drain(connect(broker.amqp_port).channel(), name) == [str(n).encode() for n in range(50)]

        broker.stop()
        broker.start()
        assert drain(connect(broker.amqp_port).channel(), name) == []
    finally:
        broker.stop()


def test_when_the_journal_fails_publishers_get_nacks(
    start_broker: Callable[..., TestBroker], raw: Raw, name: str
) -> None:
    broker = start_broker()
    peer = confirming(raw(port=broker.amqp_port), name, durable=True)
    broker.disk.fail_next_sync()

    peer.publish(name, b"x", properties=PERSISTENT)

    assert isinstance(peer.read(), BasicNack)
    peer.publish(name, b"y", properties=PERSISTENT)
    assert isinstance(peer.read(), BasicNack)


def test_closing_a_channel_confirms_what_it_published(raw: Raw, name: str) -> None:
    from holtmq.amqp.methods import ChannelClose, ChannelCloseOk

    peer = confirming(raw(), name, exclusive=True)
    peer.publish(name, b"x")
    peer.send(1, ChannelClose(200, "bye"))

    assert peer.expect(BasicAck).delivery_tag == 1
    peer.expect(ChannelCloseOk)
