"""A message for very many queues, over HTTP: it is placed in steps, and the answer follows the last one."""

import io
from collections.abc import Iterator
from typing import Final

import httpx
import pyarrow as pa
import pytest

from holtmq.broker.turn_limits import TurnLimits
from holtmq.node import Node
from holtmq.testing import TestBroker

QUEUES: Final = [f"q{number}" for number in range(7)]


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        one.call(_set_up)
        yield one


def _set_up(node: Node) -> None:
    vhost = node.broker.vhost("/")
    vhost.widest = 2
    node.broker.flow.per_turn = TurnLimits(copies=2)
    for name in QUEUES:
        node.broker.declare_queue(vhost, name, durable=True)
        node.broker.bind(vhost, "amq.fanout", name, "")


def _lengths(broker: TestBroker) -> list[int]:
    return broker.call(lambda node: [len(node.broker.vhost("/").queues[name]) for name in QUEUES])


def _publish(broker: TestBroker) -> httpx.Response:
    message = {"properties": {}, "routing_key": "k", "payload": "m", "payload_encoding": "string"}
    url = f"{broker.http_url}/api/exchanges/%2F/amq.fanout/publish"
    return httpx.post(url, json=message, auth=("guest", "guest"), timeout=60)


def test_a_message_is_in_all_queues_when_the_answer_comes(broker: TestBroker) -> None:
    answer = _publish(broker)

    assert (answer.status_code, answer.json()) == (200, {"routed": True})
    assert _lengths(broker) == [1] * 7


def test_a_queue_that_refuses_it_is_reported_and_the_others_have_it(broker: TestBroker) -> None:
    def add_full(node: Node) -> None:
        full = {"x-max-length": 0, "x-overflow": "reject-publish"}
        node.broker.declare_queue(node.broker.vhost("/"), "full", durable=True, arguments=full)
        node.broker.bind(node.broker.vhost("/"), "amq.fanout", "full", "")

    broker.call(add_full)

    answer = _publish(broker)

    assert answer.status_code == 400
    assert "full" in answer.text
    assert _lengths(broker) == [1] * 7


def test_rows_published_through_an_exchange_are_in_all_queues(broker: TestBroker) -> None:
    sink = io.BytesIO()
    table = pa.table({"payload": [b"1", b"2", b"3"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)

    answer = httpx.post(
        f"{broker.http_url}/api/v1/exchanges/amq.fanout/rows?routingKey=k",
        content=sink.getvalue(),
        timeout=60,
    )

    assert (answer.status_code, answer.json().get("published")) == (200, 3), answer.text
    assert _lengths(broker) == [3] * 7
