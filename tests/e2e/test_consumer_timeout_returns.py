"""A delivery that is not acked in time returns to its queue, and the channel stays open.

The tests move the clock.
"""

from collections.abc import Callable

import pytest
from e2e_support import RawPeer

from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
)
from holtmq.testing import TestBroker, VirtualClock
from holtmq.wire.tables import FieldTable

pytestmark = pytest.mark.e2e

Raw = Callable[..., RawPeer]
NOTIFIED = {"consumer_cancel_notify": True}
SHORT: FieldTable = {"x-queue-type": "quorum", "x-consumer-timeout": 1000}


@pytest.fixture
def peer(timed_broker: TestBroker, raw: Raw) -> RawPeer:
    """A client that does not understand basic.cancel from the broker."""
    return raw(port=timed_broker.amqp_port)


@pytest.fixture
def notified(timed_broker: TestBroker, raw: Raw) -> RawPeer:
    return raw(port=timed_broker.amqp_port, capabilities=NOTIFIED)


def declare(peer: RawPeer, name: str, arguments: FieldTable) -> None:
    peer.send(1, QueueDeclare(name, durable=True, arguments=arguments))
    peer.expect(QueueDeclareOk)


def consume(peer: RawPeer, name: str, tag: str = "tag", arguments: FieldTable | None = None) -> None:
    peer.send(1, BasicConsume(name, tag, arguments=arguments or {}))
    peer.expect(BasicConsumeOk)


def next_delivery(peer: RawPeer) -> BasicDeliver:
    delivery = peer.expect(BasicDeliver)
    peer.read()
    peer.read()
    return delivery


def got(peer: RawPeer, name: str) -> bool:
    """Whether there was a message to get; it is removed."""
    peer.send(1, BasicGet(name, no_ack=True))
    answer = peer.read()
    if isinstance(answer, BasicGetEmpty):
        return False
    assert isinstance(answer, BasicGetOk), answer
    peer.read()
    peer.read()
    return True


def assert_open(peer: RawPeer, name: str) -> None:
    peer.send(1, QueueDeclare(name, passive=True))
    peer.expect(QueueDeclareOk)


def test_the_message_returns_and_the_client_is_told_by_a_cancel(
    notified: RawPeer, peer: RawPeer, clock: VirtualClock, name: str
) -> None:
    declare(notified, name, SHORT)
    consume(notified, name)
    notified.publish(name, b"work")
    next_delivery(notified)
    clock.advance(milliseconds=999)
    assert not got(peer, name)

    clock.advance(milliseconds=1)

    assert notified.expect(BasicCancel).consumer_tag == "tag"
    assert_open(notified, name)
    consume(notified, name)
    delivery = next_delivery(notified)
    assert delivery.redelivered
    notified.send(1, BasicAck(delivery.delivery_tag))
    notified.send(1, BasicAck(1))  # late, and another consumer had the message: ignored
    assert_open(notified, name)


def test_other_consumers_of_the_channel_go_on(notified: RawPeer, clock: VirtualClock, name: str) -> None:
    declare(notified, name, SHORT)
    declare(notified, f"{name}-other", {})
    consume(notified, name)
    consume(notified, f"{name}-other", "other")
    notified.publish(name, b"work")
    next_delivery(notified)

    clock.advance(seconds=2)

    assert notified.expect(BasicCancel).consumer_tag == "tag"
    notified.publish(f"{name}-other", b"more")
    assert next_delivery(notified).consumer_tag == "other"


@pytest.mark.parametrize("settle", [BasicAck, BasicNack])
def test_a_client_without_cancel_notices_receives_again_when_it_has_settled(
    peer: RawPeer, notified: RawPeer, clock: VirtualClock, name: str, settle: type[BasicAck] | type[BasicNack]
) -> None:
    declare(peer, name, SHORT)
    consume(peer, name)
    peer.publish(name, b"first")
    next_delivery(peer)
    clock.advance(seconds=2)
    assert got(notified, name)  # it came back
    peer.publish(name, b"second")
    assert_open(peer, name)  # nothing was delivered before this answer
    assert peer.is_silent()

    peer.send(1, settle(1))

    assert next_delivery(peer).delivery_tag == 2


def test_a_late_ack_removes_the_message_if_no_consumer_has_it(
    peer: RawPeer, clock: VirtualClock, name: str
) -> None:
    declare(peer, name, SHORT)
    consume(peer, name)
    peer.publish(name, b"work")
    next_delivery(peer)
    clock.advance(seconds=2)

    peer.send(1, BasicAck(1))

    assert not got(peer, name)
    clock.advance(seconds=10)
    assert_open(peer, name)


def test_only_the_overdue_deliveries_return(peer: RawPeer, clock: VirtualClock, name: str) -> None:
    declare(peer, name, {"x-queue-type": "quorum", "x-consumer-timeout": 16_000})
    consume(peer, name)
    peer.publish(name, b"first")
    next_delivery(peer)
    clock.advance(milliseconds=8_500)
    peer.publish(name, b"second")
    next_delivery(peer)

    clock.advance(milliseconds=8_000)

    assert got(peer, name)
    assert not got(peer, name)
    peer.send(1, BasicAck(2))
    assert_open(peer, name)


def test_a_quorum_queue_has_the_nodes_timeout_and_a_classic_one_only_its_own(
    peer: RawPeer, notified: RawPeer, clock: VirtualClock, name: str
) -> None:
    kinds: dict[str, FieldTable] = {
        "quorum": {"x-queue-type": "quorum"},
        "classic": {},
        "asking": {"x-consumer-timeout": 60_000},
    }
    for kind, arguments in kinds.items():
        declare(peer, f"{name}-{kind}", arguments)
        consume(peer, f"{name}-{kind}", kind)
        peer.publish(f"{name}-{kind}", b"work")
        next_delivery(peer)

    clock.advance(minutes=40)

    assert {kind: got(notified, f"{name}-{kind}") for kind in kinds} == {
        "quorum": True,
        "classic": False,
        "asking": True,
    }


def test_a_consumer_may_ask_for_its_own_timeout(
    peer: RawPeer, notified: RawPeer, clock: VirtualClock, name: str
) -> None:
    declare(peer, name, {})
    consume(peer, name, arguments={"x-consumer-timeout": 2000})
    peer.publish(name, b"work")
    next_delivery(peer)
    clock.advance(milliseconds=1_999)
    assert not got(notified, name)

    clock.advance(milliseconds=200)

    assert got(notified, name)


@pytest.mark.parametrize("value", [0, -1, "1000", True, 2**60])
def test_a_timeout_that_makes_no_sense_is_refused(peer: RawPeer, name: str, value: object) -> None:
    declare(peer, name, {})
    peer.send(1, BasicConsume(name, arguments={"x-consumer-timeout": value}))  # type: ignore[dict-item]

    close = peer.expect(ChannelClose)

    assert close.reply_code == 406
    assert "'x-consumer-timeout'" in close.reply_text


def test_what_was_got_one_by_one_returns(peer: RawPeer, clock: VirtualClock, name: str) -> None:
    declare(peer, name, SHORT)
    peer.publish(name, b"work")
    peer.send(1, BasicGet(name))
    peer.expect(BasicGetOk)
    peer.read()
    peer.read()

    clock.advance(milliseconds=1_100)

    assert got(peer, name)
