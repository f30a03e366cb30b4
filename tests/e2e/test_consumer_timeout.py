"""A delivery that is never acked, as up to RabbitMQ 4.2: the channel is closed, the message comes back.

The tests move the clock. What happens without this setting is in ``test_consumer_timeout_returns.py``.
"""

from collections.abc import Callable, Iterator

import pytest
from e2e_support import RawPeer

from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from holtmq.config import Amqp, Compatibility, Config, Limits
from holtmq.testing import TestBroker, VirtualClock
from holtmq.wire.tables import FieldTable

pytestmark = pytest.mark.e2e

Raw = Callable[..., RawPeer]


def start(consumer_timeout: float = 1800.0) -> TestBroker:
    config = Config(
        amqp=Amqp(consumer_timeout=consumer_timeout),
        compatibility=Compatibility(consumer_timeout_closes_channel=True),
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
    )
    return TestBroker(config=config)


@pytest.fixture(scope="module")
def timed_broker() -> Iterator[TestBroker]:
    with start() as one:
        yield one


@pytest.fixture
def peer(timed_broker: TestBroker, raw: Raw) -> RawPeer:
    return raw(port=timed_broker.amqp_port)


def declare(peer: RawPeer, name: str, arguments: FieldTable | None = None) -> None:
    peer.send(1, QueueDeclare(name, arguments=arguments or {}))
    peer.expect(QueueDeclareOk)


def consume(peer: RawPeer, name: str, *, no_ack: bool = False) -> None:
    peer.send(1, BasicConsume(name, "tag", no_ack=no_ack))
    peer.expect(BasicConsumeOk)


def deliver(peer: RawPeer, name: str, body: bytes = b"work") -> None:
    """Publish, and see it come."""
    peer.publish(name, body)
    peer.expect(BasicDeliver)
    peer.read()
    assert peer.read() == body


def get(peer: RawPeer, name: str, channel: int = 1) -> BasicGetOk:
    peer.send(channel, BasicGet(name))
    found = peer.expect(BasicGetOk)
    peer.read()
    peer.read()
    return found


def assert_open(peer: RawPeer, name: str) -> None:
    """Nothing but the answer comes, so what was sent before has been worked off."""
    peer.send(1, QueueDeclare(name, passive=True))
    peer.expect(QueueDeclareOk)


def ack(peer: RawPeer, name: str, tag: int) -> None:
    peer.send(1, BasicAck(tag))
    assert_open(peer, name)


def test_a_delivery_held_for_half_an_hour_closes_its_channel_and_comes_back(
    timed_broker: TestBroker, peer: RawPeer, raw: Raw, clock: VirtualClock, name: str
) -> None:
    declare(peer, name)
    consume(peer, name)
    deliver(peer, name)
    clock.advance(milliseconds=1_799_999)
    assert_open(peer, name)

    clock.advance(milliseconds=1)

    close = peer.expect(ChannelClose)
    assert close.reply_code == 406
    assert close.reply_text.startswith(
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
        "Timeout value used: 1800000 ms."
    )
    assert get(raw(port=timed_broker.amqp_port), name).redelivered


def test_other_channels_of_the_connection_live_on_and_the_number_is_free_again(
    peer: RawPeer, clock: VirtualClock, name: str
) -> None:
    peer.send(2, ChannelOpen())
    peer.expect(ChannelOpenOk)
    declare(peer, name, {"x-consumer-timeout": 1000})
    consume(peer, name)
    deliver(peer, name)

    clock.advance(seconds=1)

    peer.expect(ChannelClose)
    assert get(peer, name, channel=2).redelivered
    peer.send(1, ChannelCloseOk())
    peer.send(1, ChannelOpen())
    peer.expect(ChannelOpenOk)


def test_a_queue_has_its_own_timeout(peer: RawPeer, clock: VirtualClock, name: str) -> None:
    declare(peer, name, {"x-consumer-timeout": 60_000})
    consume(peer, name)
    deliver(peer, name)
    clock.advance(milliseconds=59_999)
    assert_open(peer, name)

    clock.advance(milliseconds=1)

    assert "Timeout value used: 60000 ms" in peer.expect(ChannelClose).reply_text


def test_a_policy_gives_the_timeout_also_to_what_is_already_out(
    timed_broker: TestBroker, peer: RawPeer, clock: VirtualClock, name: str
) -> None:
    declare(peer, name)
    consume(peer, name)
    deliver(peer, name)
    timed_broker.call(
        lambda node: node.broker.policy_changes.put("/", name, f"^{name}$", {"consumer-timeout": 600_000})
    )
    clock.advance(milliseconds=599_999)
    assert_open(peer, name)

    clock.advance(seconds=120)

    assert "Timeout value used: 600000 ms" in peer.expect(ChannelClose).reply_text


def test_every_delivery_has_the_whole_time_and_hardly_more(
    peer: RawPeer, clock: VirtualClock, name: str
) -> None:
    declare(peer, name, {"x-consumer-timeout": 16_000})
    consume(peer, name)
    deliver(peer, name, b"first")
    clock.advance(milliseconds=8_500)
    deliver(peer, name, b"second")
    clock.advance(milliseconds=7_499)
    ack(peer, name, 1)
    clock.advance(milliseconds=8_500)  # the second is 15.999 s old
    assert_open(peer, name)

    clock.advance(milliseconds=1_001)  # a sixteenth of the timeout late, at most

    peer.expect(ChannelClose)


def test_who_acks_in_time_or_holds_nothing_is_left_alone(
    peer: RawPeer, clock: VirtualClock, name: str
) -> None:
    declare(peer, name, {"x-consumer-timeout": 1000})
    consume(peer, name)
    for tag in range(1, 20):
        deliver(peer, name)
        clock.advance(milliseconds=900)
        ack(peer, name, tag)

    clock.advance(days=30)

    assert_open(peer, name)
    deliver(peer, name)
    clock.advance(milliseconds=999)
    assert_open(peer, name)


def test_a_consumer_without_acks_has_no_timeout(peer: RawPeer, clock: VirtualClock, name: str) -> None:
    declare(peer, name, {"x-consumer-timeout": 1000})
    consume(peer, name, no_ack=True)
    deliver(peer, name)

    clock.advance(days=1)

    assert_open(peer, name)


def test_single_gets_time_out_by_the_queue_they_came_from(
    peer: RawPeer, clock: VirtualClock, name: str
) -> None:
    declare(peer, name)
    declare(peer, f"{name}-short", {"x-consumer-timeout": 1000})
    for queue in (name, f"{name}-short", f"{name}-short"):
        peer.publish(queue, b"work")
        get(peer, queue)
    ack(peer, name, 2)
    clock.advance(milliseconds=999)
    assert_open(peer, name)

    clock.advance(milliseconds=63)  # a sixteenth of the timeout late, at most

    assert "Timeout value used: 1000 ms" in peer.expect(ChannelClose).reply_text


def test_an_ack_that_was_rolled_back_does_not_count(peer: RawPeer, clock: VirtualClock, name: str) -> None:
    declare(peer, name, {"x-consumer-timeout": 1000})
    consume(peer, name)
    deliver(peer, name, b"first")
    deliver(peer, name, b"second")
    for method, answer in ((TxSelect(), TxSelectOk), (BasicAck(1), None), (TxRollback(), TxRollbackOk)):
        peer.send(1, method)
        if answer is not None:
            peer.expect(answer)
    peer.send(1, BasicAck(2))
    peer.send(1, TxCommit())
    peer.expect(TxCommitOk)
    clock.advance(milliseconds=999)
    assert_open(peer, name)

    clock.advance(milliseconds=1)

    peer.expect(ChannelClose)


def test_the_timeout_can_be_set_and_switched_off(raw: Raw, name: str) -> None:
    for seconds, is_closed in ((10.0, True), (0.0, False)):
        with start(seconds) as broker:
            assert isinstance(broker.clock, VirtualClock)
            peer = raw(port=broker.amqp_port)
            declare(peer, name)
            consume(peer, name)
            deliver(peer, name)

            broker.clock.advance(days=1)

            if is_closed:
                assert "Timeout value used: 10000 ms" in peer.expect(ChannelClose).reply_text
            else:
                assert_open(peer, name)


def test_a_consumer_that_acks_does_not_excuse_what_its_channel_got_by_itself(
    peer: RawPeer, clock: VirtualClock, name: str
) -> None:
    declare(peer, name, {"x-consumer-timeout": 60_000})
    peer.publish(name, b"got")
    get(peer, name)
    consume(peer, name)
    deliver(peer, name)
    ack(peer, name, 2)

    clock.advance(seconds=30)
    clock.advance(seconds=30)

    assert "Timeout value used: 60000 ms" in peer.expect(ChannelClose).reply_text
