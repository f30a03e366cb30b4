"""Time to live, length limits and overflow, with a clock that the tests move."""

import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from e2e_support import Consuming, depth, drain, eventually, get, get_soon, publish
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.testing import TestBroker, VirtualClock

pytestmark = pytest.mark.e2e


@pytest.fixture
def channel(timed_broker: TestBroker, connect: Callable[..., pika.BlockingConnection]) -> BlockingChannel:
    return connect(timed_broker.amqp_port).channel()


def declare(channel: BlockingChannel, name: str, **arguments: Any) -> str:
    """A queue with arguments."""
    table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    queue: str = channel.queue_declare(name, exclusive=True, arguments=table).method.queue
    return queue


def test_a_queues_ttl_drops_what_waits_too_long(
    channel: BlockingChannel, clock: VirtualClock, name: str
) -> None:
    declare(channel, name, message_ttl=1000)
    publish(channel, name, "1")
    clock.advance(milliseconds=999)
    publish(channel, name, "2")
    assert depth(channel, name) == 2

    clock.advance(milliseconds=1)

    assert depth(channel, name) == 1
    assert drain(channel, name) == [b"2"]


def test_a_messages_own_expiration_counts_too_and_the_lower_wins(
    channel: BlockingChannel, clock: VirtualClock, name: str
) -> None:
    declare(channel, name, message_ttl=1000)
    publish(channel, name, "short", expiration="200")
    publish(channel, name, "long", expiration="9000")

    clock.advance(milliseconds=200)
    assert depth(channel, name) == 1
    clock.advance(milliseconds=800)

    assert depth(channel, name) == 0


def test_an_expired_message_is_never_delivered_even_behind_a_living_one(
    channel: BlockingChannel, clock: VirtualClock, name: str
) -> None:
    declare(channel, name)
    publish(channel, name, "lives")
    publish(channel, name, "dies", expiration="100")
    publish(channel, name, "lives too")

    clock.advance(milliseconds=100)

    assert drain(channel, name) == [b"lives", b"lives too"]


def test_a_leased_message_does_not_expire_and_does_when_it_comes_back(
    channel: BlockingChannel, clock: VirtualClock, name: str
) -> None:
    declare(channel, name, message_ttl=1000)
    publish(channel, name, "x")
    taken = get_soon(channel, name, auto_ack=False)

    clock.advance(seconds=5)
    channel.basic_nack(taken.tag, requeue=True)

    assert get(channel, name) is None


def test_a_ttl_of_zero_delivers_at_once_or_never(channel: BlockingChannel, name: str) -> None:
    declare(channel, name, message_ttl=0)
    publish(channel, name, "nobody there")
    assert depth(channel, name) == 0
    consumer = Consuming(channel, name, auto_ack=True)

    publish(channel, name, "taken")

    assert [d.body for d in consumer.wait(1)] == [b"taken"]


def test_an_expiration_of_zero_delivers_at_once_or_never(channel: BlockingChannel, name: str) -> None:
    declare(channel, name)
    publish(channel, name, "nobody there", expiration="0")
    assert depth(channel, name) == 0
    consumer = Consuming(channel, name, auto_ack=True)

    publish(channel, name, "taken", expiration="0")

    assert [d.body for d in consumer.wait(1)] == [b"taken"]


def test_max_length_drops_the_oldest(channel: BlockingChannel, name: str) -> None:
    declare(channel, name, max_length=3)

    publish(channel, name, *"12345")

    assert drain(channel, name) == [b"3", b"4", b"5"]


def test_max_length_does_not_count_what_is_out(channel: BlockingChannel, name: str) -> None:
    declare(channel, name, max_length=1)
    publish(channel, name, "out")
    taken = get_soon(channel, name, auto_ack=False)

    publish(channel, name, "in")

    channel.basic_ack(taken.tag)
    assert drain(channel, name) == [b"in"]


def test_max_length_bytes_counts_bodies(channel: BlockingChannel, name: str) -> None:
    declare(channel, name, max_length_bytes=10)

    publish(channel, name, "aaaa", "bbbb", "cccc")

    assert drain(channel, name) == [b"bbbb", b"cccc"]


def test_a_max_length_of_zero_keeps_nothing_but_serves_consumers(channel: BlockingChannel, name: str) -> None:
    declare(channel, name, max_length=0)
    publish(channel, name, "dropped")
    assert depth(channel, name) == 0
    consumer = Consuming(channel, name, auto_ack=True)

    publish(channel, name, "taken")

    assert consumer.wait(1)[0].body == b"taken"


def test_dropped_heads_are_dead_lettered(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name + ".dead")
    declare(channel, name, max_length=1, dead_letter_exchange="", dead_letter_routing_key=dead)

    publish(channel, name, "1", "2")

    assert get_soon(channel, dead).headers["x-death"][0]["reason"] == "maxlen"
    assert drain(channel, name) == [b"2"]


def test_reject_publish_keeps_the_old_ones(channel: BlockingChannel, name: str) -> None:
    declare(channel, name, max_length=2, overflow="reject-publish")

    publish(channel, name, *"1234")

    assert drain(channel, name) == [b"1", b"2"]


def test_reject_publish_dlx_also_dead_letters_the_refused(channel: BlockingChannel, name: str) -> None:
    dead = declare(channel, name + ".dead")
    declare(
        channel,
        name,
        max_length=1,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key=dead,
    )
    channel.confirm_delivery()
    publish(channel, name, "1")

    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", name, b"2")

    refused = get_soon(channel, dead)
    assert (refused.body, refused.headers["x-death"][0]["reason"]) == (b"2", "maxlen")
    assert drain(channel, name) == [b"1"]


def test_a_refusing_queue_takes_again_when_there_is_room(channel: BlockingChannel, name: str) -> None:
    declare(channel, name, max_length=1, overflow="reject-publish")
    channel.confirm_delivery()
    publish(channel, name, "1")
    get_soon(channel, name)

    publish(channel, name, "2")

    assert drain(channel, name) == [b"2"]


def test_x_expires_counts_from_the_last_use(channel: BlockingChannel, clock: VirtualClock, name: str) -> None:
    channel.queue_declare(name, arguments={"x-expires": 1000})
    clock.advance(milliseconds=900)
    channel.queue_declare(name, arguments={"x-expires": 1000})  # declaring again is use
    clock.advance(milliseconds=900)
    assert get(channel, name) is None  # so is basic.get
    clock.advance(milliseconds=900)
    channel.queue_declare(name, passive=True)

    clock.advance(milliseconds=1100)

    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
        channel.queue_declare(name, passive=True)


def test_retry_delay_holds_a_returned_message_back(
    channel: BlockingChannel, clock: VirtualClock, name: str
) -> None:
    declare(channel, name, retry_delay=1000, retry_multiplier=2)
    publish(channel, name, "again")
    channel.basic_nack(get_soon(channel, name, auto_ack=False).tag, requeue=True)
    assert depth(channel, name) == 0

    clock.advance(milliseconds=1000)
    channel.basic_nack(get_soon(channel, name, auto_ack=False).tag, requeue=True)

    clock.advance(milliseconds=1999)
    assert depth(channel, name) == 0
    clock.advance(milliseconds=1)
    assert get_soon(channel, name).redelivered


def test_delayed_messages_survive_a_restart(
    start_broker: Callable[..., TestBroker], connect: Callable[..., pika.BlockingConnection], name: str
) -> None:
    broker = start_broker(clock="virtual")
    channel = connect(broker.amqp_port).channel()
    channel.exchange_declare(name, "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"})
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name, "#")
    channel.confirm_delivery()
    publish(channel, "k", "kept", exchange=name, headers={"x-delay": 60_000}, delivery_mode=2)

    broker.crash_and_restart()

    channel = connect(broker.amqp_port).channel()
    assert get(channel, name) is None
    assert isinstance(broker.clock, VirtualClock)
    broker.clock.advance(seconds=60)
    assert get_soon(channel, name).body == b"kept"


def test_a_policy_gives_a_queue_its_limits(
    timed_broker: TestBroker, channel: BlockingChannel, clock: VirtualClock, name: str
) -> None:
    declare(channel, name)
    publish(channel, name, *"12345")
    depth(channel, name)

    timed_broker.call(
        lambda node: node.broker.policy_changes.put(
            "/", name, f"^{name}$", {"max-length": 2, "message-ttl": 1000}
        )
    )

    assert depth(channel, name) == 2
    clock.advance(seconds=2)
    assert depth(channel, name) == 0
    timed_broker.call(lambda node: node.broker.policy_changes.delete("/", name))
    publish(channel, name, *"12345")
    assert depth(channel, name) == 5


def test_a_clock_that_is_set_forward_takes_effect_at_once(
    start_broker: Callable[..., TestBroker], connect: Callable[..., pika.BlockingConnection], name: str
) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port).channel()
    channel.queue_declare(name, arguments={"x-message-ttl": 3_600_000})
    publish(channel, name, "x")
    eventually(lambda: broker.queue_depth(name) == 1)

    def set_forward(node: Any) -> None:
        node.scheduler._clock = lambda: time.time() + 7200

    broker.call(set_forward)

    eventually(lambda: broker.queue_depth(name) == 0)
