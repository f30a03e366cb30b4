"""One request cannot ask for more than the event loop does in a moment; the answer names the limit."""

from typing import Any

import httpx
import pytest
from http_support import Api

from holtmq.http.queues.request_bounds import (
    DELAYED_ITEMS,
    NEW_QUEUES,
    OPERATIONS,
    QUEUES,
    STATE_OPERATIONS,
    WORK_ITEMS,
)
from holtmq.testing import TestBroker


def push(api: Api, names: list[str]) -> httpx.Response:
    return api.post("/api/v1/push", {"items": [{"queue": name, "payload": 1} for name in names]})


def transact(api: Api, operations: list[dict[str, Any]]) -> httpx.Response:
    return api.post("/api/v1/transaction", {"operations": operations})


def several(count: int) -> list[str]:
    return [f"queue-{number}" for number in range(count)]


def refusal(answer: httpx.Response) -> str:
    assert (answer.status_code, answer.json()["code"]) == (413, "batch_too_large")
    return str(answer.json()["error"])


def test_a_push_creates_a_few_hundred_queues_at_most(api: Api) -> None:
    assert refusal(push(api, several(NEW_QUEUES + 1))) == "401 new queues in one request: at most 400"
    assert push(api, several(NEW_QUEUES)).status_code == 201

    assert push(api, several(2 * NEW_QUEUES)).status_code == 201


def test_a_push_names_a_thousand_queues_at_most(broker: TestBroker, api: Api) -> None:
    def declare(node: Any) -> None:
        for name in several(QUEUES + 1):
            node.broker.declare_queue(node.broker.vhost("/"), name, durable=True)

    broker.call(declare)

    assert refusal(push(api, several(QUEUES + 1))) == "1,001 queues in one request: at most 1,000"
    assert push(api, several(QUEUES)).status_code == 201


def test_a_push_has_three_thousand_messages_for_work_queues_at_most(broker: TestBroker, api: Api) -> None:
    broker.call(lambda node: node.broker.declare_queue(node.broker.vhost("/"), "work", durable=True))

    assert refusal(push(api, ["work"] * (WORK_ITEMS + 1))).startswith("3,001 items for work queues")
    assert push(api, ["work"] * WORK_ITEMS).status_code == 201
    assert push(api, ["log"] * (2 * WORK_ITEMS)).status_code == 201


@pytest.mark.parametrize("count", [OPERATIONS, OPERATIONS + 1])
def test_a_transaction_has_a_few_thousand_operations_at_most(api: Api, count: int) -> None:
    items = [{"queue": "log", "payload": 1}] * count

    answer = transact(api, [{"type": "push", "items": items}])

    if count > OPERATIONS:
        assert refusal(answer) == "2,501 operations in one request: at most 2,500"
    else:
        assert answer.json()["success"]


def test_a_transaction_creates_a_few_hundred_queues_at_most(api: Api) -> None:
    operations = [
        {"type": "push", "items": [{"queue": name, "payload": 1}]} for name in several(NEW_QUEUES + 1)
    ]

    assert refusal(transact(api, operations)) == "401 new queues in one request: at most 400"
    assert transact(api, operations[1:]).json()["success"]


def test_a_push_has_a_few_thousand_delayed_items_at_most(broker: TestBroker, api: Api) -> None:
    def delayed(count: int) -> httpx.Response:
        items = [{"queue": "log", "payload": 1, "delaySeconds": 1_000}] * count
        return api.post("/api/v1/push", {"items": [*items, {"queue": "log", "payload": 2}]})

    assert refusal(delayed(DELAYED_ITEMS + 1)) == "2,501 delayed items in one request: at most 2,500"
    assert api.pop("log") == []
    assert delayed(DELAYED_ITEMS).status_code == 201

    broker.call(lambda node: node.broker.declare_queue(node.broker.vhost("/"), "work", durable=True))
    items = [{"queue": "work", "payload": 1}] * WORK_ITEMS
    one_later = [*items, {"queue": "work", "payload": 1, "delaySeconds": 1_000}]
    assert refusal(api.post("/api/v1/push", {"items": one_later})).startswith("3,001 items for work queues")


def test_a_cycle_of_a_stream_processor_is_bounded_like_a_push(api: Api) -> None:
    api.push("source", "a")
    asked = {"name": "s", "source_queue": "source", "config_hash": "h"}
    query = api.post("/streams/v1/queries", asked).json()["query_id"]
    (message,) = api.pop("source")

    def cycle(**more: object) -> httpx.Response:
        body = {"query_id": query, "partition_id": message["partitionId"], **more}
        return api.post("/streams/v1/cycle", body)

    pushes = [{"queue": name, "payload": 1} for name in several(NEW_QUEUES + 1)]
    many = [{"type": "delete", "key": "k"}] * (STATE_OPERATIONS + 1)
    assert refusal(cycle(push_items=pushes)) == "401 new queues in one request: at most 400"
    assert refusal(cycle(state_ops=many)) == "25,001 state operations in one request: at most 25,000"
    assert refusal(cycle(push_items=pushes[:1] * 10_001)).startswith("10,001 push_items in one request")
    assert cycle(push_items=pushes[1:], state_ops=many[1:]).json()["success"]
