"""``x-delayed-retry-*``, as in RabbitMQ 4.3: returned messages wait; only lost consumers are failures."""

from collections.abc import Callable

import pika
import pytest
from e2e_support import depth, drain, eventually, get, get_soon, publish
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.testing import TestBroker, VirtualClock
from holtmq.wire.tables import FieldTable

pytestmark = pytest.mark.e2e
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def channel(timed_broker: TestBroker, connect: Connect) -> BlockingChannel:
    return connect(timed_broker.amqp_port).channel()


def declare(channel: BlockingChannel, name: str, kind: str = "classic", **arguments: object) -> None:
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **table})


def give_back(channel: BlockingChannel, name: str) -> None:
    """One explicit return."""
    channel.basic_nack(get_soon(channel, name, auto_ack=False).tag, requeue=True)
    assert depth(channel, name) >= 0  # the nack was worked off


def lose(connect: Connect, broker: TestBroker, name: str) -> None:
    """One consumer that is lost with the message."""
    connection = connect(broker.amqp_port)
    get_soon(connection.channel(), name, auto_ack=False)
    connection.close()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_returned_message_waits_and_never_meets_the_limit(
    channel: BlockingChannel, clock: VirtualClock, name: str, kind: str
) -> None:
    declare(
        channel,
        name,
        kind,
        delayed_retry_type="all",
        delayed_retry_min=1000,
        delayed_retry_max=5000,
        delivery_limit=2,
    )
    publish(channel, name, "again")
    for _ in range(6):
        give_back(channel, name)
        assert depth(channel, name) == 0
        clock.advance(milliseconds=999)
        assert depth(channel, name) == 0
        clock.advance(milliseconds=1)

    assert get_soon(channel, name).redelivered


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_lost_consumers_count_and_make_the_wait_longer(
    timed_broker: TestBroker,
    connect: Connect,
    channel: BlockingChannel,
    clock: VirtualClock,
    name: str,
    kind: str,
) -> None:
    dead = f"{name}-dead"
    channel.queue_declare(dead)
    declare(
        channel,
        name,
        kind,
        delayed_retry_type="failed",
        delayed_retry_min=1000,
        delayed_retry_max=2500,
        delivery_limit=3,
        dead_letter_exchange="",
        dead_letter_routing_key=dead,
    )
    publish(channel, name, "poison")
    for wait_ms in (1000, 2000, 2500):
        lose(connect, timed_broker, name)
        clock.advance(milliseconds=wait_ms - 1)
        assert depth(channel, name) == 0
        clock.advance(milliseconds=1)
        eventually(lambda: depth(channel, name) == 1)

    lose(connect, timed_broker, name)

    letter = get_soon(channel, dead)
    assert letter.headers["x-death"][0]["reason"] == "delivery_limit"
    assert drain(channel, name) == []


@pytest.mark.parametrize(("kind", "waits"), [("failed", False), ("returned", True), ("disabled", False)])
def test_the_type_says_which_returns_wait(
    timed_broker: TestBroker, connect: Connect, channel: BlockingChannel, name: str, kind: str, waits: bool
) -> None:
    declare(channel, name, delayed_retry_type=kind, delayed_retry_min=60_000)
    publish(channel, name, "back")

    give_back(channel, name)

    assert depth(channel, name) == (0 if waits else 1)
    if kind == "returned":
        publish(channel, name, "lost")
        lose(connect, timed_broker, name)
        assert eventually(lambda: get(channel, name)).body == b"lost"


def test_a_policy_switches_it_on(
    timed_broker: TestBroker, channel: BlockingChannel, clock: VirtualClock, name: str
) -> None:
    declare(channel, name)
    definition: FieldTable = {"delayed-retry-type": "all", "delayed-retry-min": 500}
    timed_broker.call(lambda node: node.broker.policy_changes.put("/", name, f"^{name}$", definition))
    publish(channel, name, "again")

    give_back(channel, name)

    assert depth(channel, name) == 0
    clock.advance(milliseconds=500)
    assert get_soon(channel, name).redelivered


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"delayed_retry_type": "all"}, "x-delayed-retry-min is required"),
        ({"delayed_retry_min": 5}, "need x-delayed-retry-type"),
        (
            {"delayed_retry_type": "some", "delayed_retry_min": 5},
            "is none of disabled, all, failed, returned",
        ),
        (
            {"delayed_retry_type": "all", "delayed_retry_min": 5, "delayed_retry_max": 4},
            "must not be smaller",
        ),
        ({"delayed_retry_type": "all", "delayed_retry_min": 5, "retry_delay": 4}, "exclude each other"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    channel: BlockingChannel, name: str, arguments: dict[str, object], reason: str
) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=reason):
        declare(channel, name, **arguments)  # type: ignore[arg-type]


def test_a_quorum_queue_delivers_strictly_by_priority_also_after_a_crash(
    start_broker: Callable[..., TestBroker], connect: Connect, name: str
) -> None:
    broker = start_broker(max_priority=31)
    channel = connect(broker.amqp_port).channel()
    channel.confirm_delivery()
    declare(channel, name, "quorum", max_priority=31)
    for priority in (0, 31, 7, 30, 7):
        publish(channel, name, str(priority), priority=priority)
    publish(channel, name, "none")

    broker.crash_and_restart()

    again = connect(broker.amqp_port).channel()
    assert drain(again, name) == [b"31", b"30", b"7", b"7", b"0", b"none"]


def test_a_quorum_queue_has_at_most_31_as_priority(channel: BlockingChannel, name: str) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="32 is not an integer from 1 to 31"):
        declare(channel, name, "quorum", max_priority=32)
