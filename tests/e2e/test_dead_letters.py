"""Dead letters: why, where to, what the message says about it, and where it ends."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pika
import pytest
from e2e_support import RawPeer, depth, drain, get, get_soon, publish
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.amqp.methods import BasicGet, BasicGetOk
from holtmq.testing import TestBroker, VirtualClock

pytestmark = pytest.mark.e2e
Declare = Callable[..., str]


@pytest.fixture
def channel(timed_broker: TestBroker, connect: Callable[..., pika.BlockingConnection]) -> BlockingChannel:
    return connect(timed_broker.amqp_port).channel()


@pytest.fixture
def dead(channel: BlockingChannel, name: str) -> str:
    """A dead-letter exchange with a queue behind it, both of this name."""
    channel.exchange_declare(name + ".dead", "topic", auto_delete=True)
    channel.queue_declare(name + ".dead", exclusive=True)
    channel.queue_bind(name + ".dead", name + ".dead", "#")
    return name + ".dead"


@pytest.fixture
def declare(channel: BlockingChannel, name: str, dead: str) -> Declare:
    """The queue in which messages die."""

    def one(**arguments: Any) -> str:
        durable = arguments.pop("durable", False)
        table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
        table.setdefault("x-dead-letter-exchange", dead)
        channel.queue_declare(name, durable=durable, exclusive=not durable, arguments=table)
        return name

    return one


def reject(channel: BlockingChannel, queue: str) -> None:
    channel.basic_reject(get_soon(channel, queue, auto_ack=False).tag, requeue=False)


def test_a_rejected_message_tells_its_story(
    channel: BlockingChannel, declare: Declare, dead: str, clock: VirtualClock
) -> None:
    queue = declare()
    publish(channel, queue, "x", headers={"mine": 1}, message_id="m", priority=4)

    reject(channel, queue)

    letter = get_soon(channel, dead)
    assert (letter.method.exchange, letter.method.routing_key) == (dead, queue)
    assert (letter.body, letter.properties.message_id, letter.properties.priority) == (b"x", "m", 4)
    assert letter.headers == {
        "mine": 1,
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": queue,
                "time": datetime.fromtimestamp(int(clock.now), UTC),
                "exchange": "",
                "routing-keys": [queue],
            }
        ],
        "x-first-death-exchange": "",
        "x-first-death-queue": queue,
        "x-first-death-reason": "rejected",
        "x-last-death-exchange": "",
        "x-last-death-queue": queue,
        "x-last-death-reason": "rejected",
    }


def test_an_expired_message_loses_its_expiration_and_remembers_it(
    channel: BlockingChannel, declare: Declare, dead: str, clock: VirtualClock
) -> None:
    queue = declare()
    publish(channel, queue, "x", expiration="100")
    depth(channel, queue)

    clock.advance(milliseconds=100)

    letter = get_soon(channel, dead)
    assert letter.properties.expiration is None
    death = letter.headers["x-death"][0]
    assert (death["reason"], death["original-expiration"]) == ("expired", "100")


def test_the_queues_own_ttl_leaves_no_original_expiration(
    channel: BlockingChannel, declare: Declare, dead: str, clock: VirtualClock
) -> None:
    queue = declare(message_ttl=100)
    publish(channel, queue, "x")
    depth(channel, queue)

    clock.advance(milliseconds=100)

    death = get_soon(channel, dead).headers["x-death"][0]
    assert death["reason"] == "expired"
    assert "original-expiration" not in death


def test_the_dead_letter_routing_key_replaces_the_old_one(
    channel: BlockingChannel, declare: Declare, dead: str
) -> None:
    queue = declare(dead_letter_routing_key="new.key")
    publish(channel, queue, "x", headers={"CC": ["cc.key"]})

    reject(channel, queue)

    letter = get_soon(channel, dead)
    assert letter.method.routing_key == "new.key"
    assert letter.headers["x-death"][0]["routing-keys"] == [queue, "cc.key"]
    assert get(channel, dead) is None


def test_a_nack_of_several_dead_letters_them_in_order(
    channel: BlockingChannel, declare: Declare, dead: str
) -> None:
    queue = declare()
    publish(channel, queue, "1", "2", "3")
    tags = [get_soon(channel, queue, auto_ack=False).tag for _ in range(3)]

    channel.basic_nack(tags[-1], multiple=True, requeue=False)

    assert drain(channel, dead) == [b"1", b"2", b"3"]


def test_a_second_death_in_the_same_queue_counts_up(
    channel: BlockingChannel, declare: Declare, name: str
) -> None:
    queue = declare(dead_letter_exchange="", dead_letter_routing_key=name + ".dead")
    publish(channel, queue, "x")
    for _ in range(2):
        reject(channel, queue)
        letter = get_soon(channel, name + ".dead")
        channel.basic_publish("", queue, letter.body, letter.properties)
    reject(channel, queue)

    deaths = get_soon(channel, name + ".dead").headers["x-death"]

    assert [(death["queue"], death["count"]) for death in deaths] == [(queue, 3)]


def test_the_latest_death_comes_first(
    channel: BlockingChannel, declare: Declare, dead: str, name: str
) -> None:
    channel.queue_declare(
        name + ".2",
        exclusive=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + ".3"},
    )
    channel.queue_declare(name + ".3", exclusive=True)
    queue = declare(dead_letter_exchange="", dead_letter_routing_key=name + ".2")
    publish(channel, queue, "x")

    reject(channel, queue)
    reject(channel, name + ".2")

    headers = get_soon(channel, name + ".3").headers
    assert [death["queue"] for death in headers["x-death"]] == [name + ".2", queue]
    assert (headers["x-first-death-queue"], headers["x-last-death-queue"]) == (queue, name + ".2")


def test_counts_are_written_with_64_bits_as_typed_clients_expect(
    timed_broker: TestBroker, channel: BlockingChannel, raw: Callable[..., RawPeer], name: str
) -> None:
    for suffix, then in (("", ".2"), (".2", ".3")):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + then}
        channel.queue_declare(name + suffix, arguments=arguments)
    channel.queue_declare(name + ".3")
    publish(channel, name, "x")
    reject(channel, name)
    reject(channel, name + ".2")
    peer = raw(port=timed_broker.amqp_port)

    peer.send(1, BasicGet(name + ".3", True))

    peer.expect(BasicGetOk)
    header = peer.read()
    assert isinstance(header, bytes)
    assert header.count(b"\x05countl" + (1).to_bytes(8, "big")) == 2
    for suffix in ("", ".2", ".3"):
        channel.queue_delete(name + suffix)


def test_a_circle_without_a_rejection_ends(
    channel: BlockingChannel, declare: Declare, name: str, clock: VirtualClock
) -> None:
    queue = declare(message_ttl=100, dead_letter_exchange="", dead_letter_routing_key=name + ".b")
    arguments = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare(name + ".b", exclusive=True, arguments=arguments)
    publish(channel, queue, "round and round")
    depth(channel, queue)

    clock.advance(milliseconds=100)
    assert depth(channel, name + ".b") == 1
    clock.advance(milliseconds=100)

    assert (depth(channel, queue), depth(channel, name + ".b")) == (0, 0)


def test_a_circle_with_a_rejection_goes_on(
    channel: BlockingChannel, declare: Declare, name: str, clock: VirtualClock
) -> None:
    """The usual retry: reject to a waiting queue whose TTL leads back."""
    queue = declare(dead_letter_exchange="", dead_letter_routing_key=name + ".wait")
    arguments = {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    channel.queue_declare(name + ".wait", exclusive=True, arguments=arguments)
    publish(channel, queue, "try")

    for _ in range(3):
        reject(channel, queue)
        depth(channel, queue)
        clock.advance(milliseconds=100)

    deaths = get_soon(channel, queue).headers["x-death"]
    assert {(d["queue"], d["reason"]): d["count"] for d in deaths} == {
        (queue, "rejected"): 3,
        (name + ".wait", "expired"): 3,
    }


def test_without_a_dead_letter_exchange_the_message_is_gone(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    publish(channel, name, "x")

    reject(channel, name)

    assert depth(channel, name) == 0


def test_a_dead_letter_exchange_that_does_not_exist_swallows(
    channel: BlockingChannel, declare: Declare
) -> None:
    queue = declare(dead_letter_exchange="nobody.declared.this")
    publish(channel, queue, "x", "y")

    reject(channel, queue)

    assert drain(channel, queue) == [b"y"]


def test_purged_and_deleted_messages_are_not_dead_lettered(
    channel: BlockingChannel, declare: Declare, dead: str
) -> None:
    queue = declare()
    publish(channel, queue, "1")
    depth(channel, queue)
    channel.queue_purge(queue)
    publish(channel, queue, "2")
    depth(channel, queue)
    channel.queue_delete(queue)

    assert get(channel, dead) is None


def test_the_delivery_limit_of_a_quorum_queue_dead_letters(
    channel: BlockingChannel, declare: Declare, dead: str
) -> None:
    queue = declare(durable=True, queue_type="quorum", delivery_limit=2)
    publish(channel, queue, "poison")

    counts = []
    for _ in range(3):
        delivery = get_soon(channel, queue, auto_ack=False)
        counts.append(delivery.headers.get("x-delivery-count"))
        channel.basic_nack(delivery.tag, requeue=True)

    assert counts == [None, 1, 2]
    assert get(channel, queue) is None
    letter = get_soon(channel, dead)
    assert letter.headers["x-death"][0]["reason"] == "delivery_limit"
    channel.queue_delete(queue)


def test_a_quorum_queue_without_a_limit_allows_twenty(
    channel: BlockingChannel, declare: Declare, dead: str
) -> None:
    queue = declare(durable=True, queue_type="quorum")
    publish(channel, queue, "poison")

    for _ in range(21):
        channel.basic_nack(get_soon(channel, queue, auto_ack=False).tag, requeue=True)

    assert get_soon(channel, dead).body == b"poison"
    channel.queue_delete(queue)


def test_dead_letters_are_moved_not_copied_across_a_power_cut(
    start_broker: Callable[..., TestBroker], connect: Callable[..., pika.BlockingConnection], name: str
) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port).channel()
    channel.queue_declare(name + ".dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + ".dead"}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.confirm_delivery()
    publish(channel, name, "x", delivery_mode=2)
    reject(channel, name)
    channel.queue_declare(name + ".sync", durable=True)  # answered when all before it is durable

    broker.crash_and_restart()

    channel = connect(broker.amqp_port).channel()
    assert get(channel, name) is None
    letter = get_soon(channel, name + ".dead")
    assert letter.headers["x-death"][0]["count"] == 1


def test_a_letter_that_a_full_queue_refuses_goes_to_that_queues_exchange(
    start_broker: Callable[..., TestBroker], connect: Callable[..., pika.BlockingConnection], name: str
) -> None:
    broker = start_broker()
    channel = connect(broker.amqp_port).channel()
    first, *full, last = (f"{name}.{n}" for n in range(5))
    for queue, after in zip(full, (*full[1:], last), strict=True):
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish-dlx"}
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": after}
        channel.queue_declare(queue, durable=True, arguments=arguments)
        publish(channel, queue, "fills it")
    channel.queue_declare(last, durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": full[0]}
    channel.queue_declare(first, durable=True, arguments=arguments)
    channel.confirm_delivery()
    publish(channel, first, "x", delivery_mode=2)
    reject(channel, first)
    channel.queue_declare(name + ".sync", durable=True)  # answered when all before it is durable

    broker.crash_and_restart()

    letter = get_soon(connect(broker.amqp_port).channel(), last)
    deaths = [(death["queue"], death["reason"]) for death in letter.headers["x-death"]]
    assert deaths == [*((queue, "maxlen") for queue in reversed(full)), (first, "rejected")]


def test_letters_that_full_queues_hand_to_each_other_come_to_an_end(
    channel: BlockingChannel, name: str
) -> None:
    first, left, right = (name + end for end in (".first", ".left", ".right"))
    for queue, after in ((left, right), (right, left)):
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish-dlx"}
        arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": after}
        channel.queue_declare(queue, arguments=arguments)
        publish(channel, queue, "fills it")
    channel.queue_declare(first, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": left})
    publish(channel, first, "x")
    reject(channel, first)

    assert [get_soon(channel, queue).body for queue in (left, right)] == [b"fills it", b"fills it"]
    assert get(channel, left) is None
    for queue in (first, left, right):
        channel.queue_delete(queue)
