"""Time that a test moves: everything with a deadline happens at its moment, without a wait."""

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.testing import TestBroker, VirtualClock

Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(connect: Connect, holt_broker: TestBroker) -> BlockingChannel:
    return connect(holt_broker, "looked-at").channel()


def declare(channel: BlockingChannel, name: str, **arguments: object) -> None:
    channel.queue_declare(name, arguments={key.replace("_", "-"): value for key, value in arguments.items()})


def test_time_stands_still_until_it_is_moved() -> None:
    clock = VirtualClock(start=1_000_000)
    with TestBroker(clock=clock):
        assert clock.now == 1_000_000

        clock.advance(seconds=1.5, milliseconds=250, minutes=1)

        assert clock.now == 1_000_061.75


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="go back"):
        VirtualClock().advance(-1)


def test_a_queue_ttl_expires_messages_at_its_moment(
    holt_broker: TestBroker, channel: BlockingChannel
) -> None:
    declare(channel, "work", x_message_ttl=10_000)
    channel.basic_publish("", "work", b"x")

    holt_broker.clock.advance(seconds=9.999)
    before = holt_broker.queue_depth("work")
    holt_broker.clock.advance(milliseconds=1)

    assert (before, holt_broker.queue_depth("work")) == (1, 0)


def test_a_message_expires_even_when_its_publisher_was_not_heard_yet(
    holt_broker: TestBroker, channel: BlockingChannel
) -> None:
    declare(channel, "work")
    channel.basic_publish("", "work", b"x", pika.BasicProperties(expiration="5000"))

    holt_broker.clock.advance(seconds=5)

    assert holt_broker.queue_depth("work") == 0


def test_one_deadline_sets_off_the_next_within_one_advance(
    holt_broker: TestBroker, channel: BlockingChannel
) -> None:
    declare(channel, "third")
    declare(
        channel, "second", x_message_ttl=20_000, x_dead_letter_exchange="", x_dead_letter_routing_key="third"
    )
    declare(
        channel, "first", x_message_ttl=10_000, x_dead_letter_exchange="", x_dead_letter_routing_key="second"
    )
    channel.basic_publish("", "first", b"x")
    start = int(holt_broker.clock.now)

    holt_broker.clock.advance(minutes=1)

    (message,) = holt_broker.messages("third")
    died = [(death["queue"], int(death["time"].timestamp()) - start) for death in message.deaths]  # type: ignore[union-attr]
    assert died == [("second", 30), ("first", 10)]


def test_a_delayed_message_arrives_when_its_delay_is_over(
    holt_broker: TestBroker, channel: BlockingChannel
) -> None:
    channel.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    declare(channel, "work")
    channel.queue_bind("work", "later")
    channel.basic_publish("later", "", b"x", pika.BasicProperties(headers={"x-delay": 3_600_000}))

    holt_broker.clock.advance(minutes=59)
    before = holt_broker.queue_depth("work")
    holt_broker.clock.advance(minutes=1)

    assert (before, holt_broker.queue_depth("work")) == (0, 1)


def test_a_retry_delay_holds_a_released_message_back(
    holt_broker: TestBroker, channel: BlockingChannel
) -> None:
    declare(channel, "work", x_retry_delay=30_000)
    channel.basic_publish("", "work", b"x")
    method, _, _ = channel.basic_get("work")
    assert method is not None
    channel.basic_nack(method.delivery_tag, requeue=True)

    before = holt_broker.queue_depth("work")
    holt_broker.clock.advance(seconds=30)

    assert (before, holt_broker.queue_depth("work")) == (0, 1)
    assert holt_broker.messages("work")[0].redelivered


def test_an_unused_queue_expires(holt_broker: TestBroker, channel: BlockingChannel) -> None:
    declare(channel, "work", x_expires=60_000)

    holt_broker.clock.advance(seconds=59)
    before = holt_broker.queues()
    holt_broker.clock.advance(seconds=2)

    assert (before, holt_broker.queues()) == (["work"], [])


def test_moving_the_clock_often_leaves_no_timers_behind(
    holt_broker: TestBroker, channel: BlockingChannel
) -> None:
    declare(channel, "work", x_message_ttl=3_600_000)
    before = holt_broker.call(lambda node: len(node.broker.flow.timers))
    channel.basic_publish("", "work", b"x")

    for _ in range(100):
        holt_broker.clock.advance(seconds=1)

    assert holt_broker.call(lambda node: len(node.broker.flow.timers)) == before + 1
    assert holt_broker.queue_depth("work") == 1


def test_messages_expire_on_recovery_when_time_passed_while_the_broker_was_down(
    holt_broker: TestBroker, channel: BlockingChannel
) -> None:
    channel.queue_declare("work", durable=True, arguments={"x-message-ttl": 10_000})
    channel.basic_publish("", "work", b"x", pika.BasicProperties(delivery_mode=2))
    holt_broker.clock.advance(seconds=5)

    holt_broker.restart()
    before = holt_broker.queue_depth("work")
    holt_broker.clock.advance(seconds=5)

    assert (before, holt_broker.queue_depth("work")) == (1, 0)


def test_the_real_clock_cannot_be_moved() -> None:
    with TestBroker(clock="real") as broker, pytest.raises(TypeError, match="real clock"):
        broker.clock.advance(seconds=1)
