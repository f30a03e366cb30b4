"""A queue is deleted while very many of its messages are being dead-lettered: none of them is lost."""

from collections.abc import Callable, Iterator

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.broker.turn_limits import TurnLimits
from holtmq.node import Node
from holtmq.testing import TestBroker

COUNT = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:

        def make_steps_small(node: Node) -> None:
            node.broker.flow.per_turn = TurnLimits(dead_letters=7)

        broker.call(make_steps_small)
        yield broker


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    yield connection.channel()
    connection.close()


def list_queues(broker: TestBroker) -> list[dict[str, object]]:
    answer = httpx.get(f"{broker.http_url}/api/queues", auth=("guest", "guest"), timeout=60)
    found: list[dict[str, object]] = answer.raise_for_status().json()
    return found


def over_amqp(broker: TestBroker, channel: BlockingChannel) -> None:
    channel.queue_delete("q")


def over_http(broker: TestBroker, channel: BlockingChannel) -> None:
    auth = ("guest", "guest")
    httpx.delete(f"{broker.http_url}/api/queues/%2F/q", auth=auth, timeout=60).raise_for_status()


def by_its_last_cancel(broker: TestBroker, channel: BlockingChannel) -> None:
    channel.cancel()
    channel.basic_cancel("c")


@pytest.mark.parametrize("delete", [over_amqp, over_http, by_its_last_cancel])
def test_what_a_deleted_queue_has_rejected_is_dead_lettered_first(
    broker: TestBroker, channel: BlockingChannel, delete: Callable[[TestBroker, BlockingChannel], None]
) -> None:
    channel.queue_declare("dead")
    channel.queue_purge("dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", auto_delete=delete is by_its_last_cancel, arguments=arguments)
    got: list[bytes] = []
    channel.basic_consume("q", lambda *message: got.append(message[3]), consumer_tag="c")
    for number in range(COUNT):
        channel.basic_publish("", "q", b"%d" % number)
    while len(got) < COUNT:
        channel.connection.process_data_events(1)

    channel.basic_nack(0, multiple=True, requeue=False)
    delete(broker, channel)

    letters: list[bytes] = []
    while len(letters) < COUNT:
        method, _, body = channel.basic_get("dead", auto_ack=True)
        letters += [body] if method is not None and body is not None else []
    assert letters == [b"%d" % number for number in range(COUNT)]
    assert channel.basic_get("dead", auto_ack=True)[0] is None
    while "q" in [queue["name"] for queue in list_queues(broker)]:  # it goes a moment after its last letter
        pass
