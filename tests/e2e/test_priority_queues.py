"""Priority queues through a client: order, limits, and what priority survives."""

from collections.abc import Callable

import pika
import pytest
from e2e_support import Consuming, depth, drain, get_soon, publish, pump
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.testing import TestBroker
from holtmq.testing.views import work_queue

pytestmark = pytest.mark.e2e
Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def queue(channel: BlockingChannel, name: str) -> str:
    """A queue with ten levels."""
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 10})
    return name


def test_higher_priorities_come_first(channel: BlockingChannel, queue: str) -> None:
    for priority in (1, 9, 5, 0, 10, 3):
        publish(channel, queue, str(priority), priority=priority)

    assert drain(channel, queue) == [b"10", b"9", b"5", b"3", b"1", b"0"]


def test_one_priority_is_first_in_first_out(channel: BlockingChannel, queue: str) -> None:
    for n in range(10):
        publish(channel, queue, f"high-{n}", priority=5)
        publish(channel, queue, f"low-{n}", priority=2)

    expected = [f"high-{n}".encode() for n in range(10)] + [f"low-{n}".encode() for n in range(10)]
    assert drain(channel, queue) == expected


def test_a_priority_above_the_maximum_counts_as_the_maximum(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 5})
    publish(channel, name, "five", priority=5)
    publish(channel, name, "two hundred", priority=200)
    publish(channel, name, "four", priority=4)

    first = get_soon(channel, name)
    second = get_soon(channel, name)
    assert (first.body, second.body) == (b"five", b"two hundred")
    assert second.properties.priority == 200  # what the publisher said is not changed


def test_no_priority_means_zero(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, "none")
    publish(channel, queue, "zero", priority=0)
    publish(channel, queue, "one", priority=1)

    assert drain(channel, queue) == [b"one", b"none", b"zero"]


def test_priorities_mean_nothing_to_a_queue_without_the_argument(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    for priority in (1, 9, 5):
        publish(channel, name, str(priority), priority=priority)

    assert drain(channel, name) == [b"1", b"9", b"5"]


def test_levels_are_made_when_first_used(broker: TestBroker, channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, "a", "b", priority=3)
    publish(channel, queue, "c", priority=7)
    assert depth(channel, queue) == 3

    levels = broker.call(lambda node: len(work_queue(node.broker, queue).store.fifos))  # type: ignore[union-attr]

    assert levels == 2


def test_the_broker_wide_ceiling_bounds_the_levels_kept(
    start_broker: Callable[..., TestBroker], connect: Connect, name: str
) -> None:
    channel = connect(start_broker(max_priority=3).amqp_port).channel()
    channel.queue_declare(name, arguments={"x-max-priority": 200})
    for priority in (2, 3, 100, 200):
        publish(channel, name, str(priority), priority=priority)

    assert drain(channel, name) == [b"3", b"100", b"200", b"2"]
    channel.queue_declare(name, arguments={"x-max-priority": 200})  # it reports what was declared


def test_purge_empties_every_level(channel: BlockingChannel, queue: str) -> None:
    for priority in range(11):
        publish(channel, queue, str(priority), priority=priority)
    depth(channel, queue)

    assert channel.queue_purge(queue).method.message_count == 11
    assert drain(channel, queue) == []


def test_priority_survives_dead_lettering(channel: BlockingChannel, name: str) -> None:
    dead = name + ".dead"
    channel.queue_declare(dead, exclusive=True, arguments={"x-max-priority": 10})
    channel.queue_declare(
        name,
        exclusive=True,
        arguments={
            "x-max-priority": 10,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        },
    )
    for priority in (1, 9, 5):
        publish(channel, name, str(priority), priority=priority)
    for _ in range(3):
        channel.basic_reject(get_soon(channel, name, auto_ack=False).tag, requeue=False)

    got = [get_soon(channel, dead) for _ in range(3)]

    assert [(d.body, d.properties.priority) for d in got] == [(b"9", 9), (b"5", 5), (b"1", 1)]


def test_a_message_expires_at_any_level(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    publish(channel, queue, "low stays", priority=1)
    publish(channel, queue, "low goes", priority=1, expiration="20")
    publish(channel, queue, "high goes", priority=9, expiration="20")
    publish(channel, queue, "high stays", priority=9)

    def levels_expired() -> bool:
        return depth(channel, queue) <= 3  # the one behind "low stays" is only seen at the head

    pump(channel, levels_expired, "the high one expires")
    assert drain(channel, queue) == [b"high stays", b"low stays"]


def test_the_length_limit_takes_the_oldest_of_the_lowest_level(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 10, "x-max-length": 3})
    publish(channel, name, "low 1", "low 2", priority=1)
    publish(channel, name, "high 1", "high 2", priority=9)
    publish(channel, name, "mid", priority=5)

    assert drain(channel, name) == [b"high 1", b"high 2", b"mid"]


def test_several_consumers_share_a_priority_queue(channel: BlockingChannel, queue: str) -> None:
    for n in range(6):
        publish(channel, queue, f"low {n}", priority=1)
        publish(channel, queue, f"high {n}", priority=8)
    channel.basic_qos(prefetch_count=3)
    first, second = Consuming(channel, queue), Consuming(channel, queue)

    first.wait(3)
    second.wait(3)

    assert sorted(first.bodies + second.bodies) == [f"high {n}".encode() for n in range(6)]
    channel.basic_ack(0, multiple=True)
    pump(channel, lambda: len(first.got) + len(second.got) == 12)


def test_a_later_urgent_message_overtakes_what_waits(channel: BlockingChannel, queue: str) -> None:
    channel.basic_qos(prefetch_count=1)
    publish(channel, queue, "1", "2", "3", priority=1)
    consumer = Consuming(channel, queue)
    consumer.wait(1)

    publish(channel, queue, "urgent", priority=10)
    depth(channel, queue)
    for n in range(4):
        channel.basic_ack(consumer.wait(n + 1)[n].tag)

    assert consumer.bodies == [b"1", b"urgent", b"2", b"3"]


def test_a_requeued_message_keeps_its_level_and_place(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, "high 1", "high 2", priority=9)
    publish(channel, queue, "low", priority=1)
    taken = get_soon(channel, queue, auto_ack=False)

    channel.basic_nack(taken.tag, requeue=True)

    assert drain(channel, queue) == [b"high 1", b"high 2", b"low"]


def test_priority_survives_a_restart(
    start_broker: Callable[..., TestBroker], connect: Connect, name: str
) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port).channel()
    channel.queue_declare(name, durable=True, arguments={"x-max-priority": 10})
    channel.confirm_delivery()
    for priority in (1, 9, 5, 9):
        publish(channel, name, str(priority), priority=priority, delivery_mode=2)
    channel.connection.close()

    broker.restart()

    assert drain(connect(broker.amqp_port).channel(), name) == [b"9", b"9", b"5", b"1"]


def test_fewer_levels_than_declared_are_logged_once(
    start_broker: Callable[..., TestBroker],
    connect: Callable[..., pika.BlockingConnection],
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    channel = connect(start_broker(max_priority=5).amqp_port).channel()

    for _ in range(2):
        channel.queue_declare(name, arguments={"x-max-priority": 9})
        channel.queue_declare(name + ".within", arguments={"x-max-priority": 5})

    told = [record for record in caplog.records if "x-max-priority" in record.message]
    assert [(record.levelname, vars(record)["queue"], vars(record)["kept"]) for record in told] == [
        ("WARNING", name, 5)
    ]
