"""Lists of very many objects are sorted and read in steps; what is deleted meanwhile is left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import httpx
import pytest

from holtmq.broker.broker import Broker
from holtmq.http.engine import stepwise
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management import bindings, topology
from holtmq.node import Node
from holtmq.testing import TestBroker

MANY = 40
NAMES = [f"n{number}" for number in range(MANY)]
LISTS = (
    "/api/queues",
    "/api/queues/%2F?disable_stats=true",
    "/api/exchanges/%2F",
    "/api/bindings",
    "/api/exchanges/%2F/amq.default/bindings/source",
    "/api/definitions",
    "/api/definitions/%2F",
)


@pytest.fixture(scope="module")
def one_broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


@pytest.fixture
def broker(one_broker: TestBroker) -> TestBroker:
    def make(node: Node) -> None:
        inner = node.broker
        vhost = inner.vhost("/")
        names = NAMES.copy()
        random.Random(1).shuffle(names)
        for name in names:
            inner.declare_queue(vhost, name, durable=True)
            inner.exchanges.declare(vhost, name, "topic", durable=True)
            inner.bind(vhost, name, name, "key")

    one_broker.call(make)
    return one_broker


def get(broker: TestBroker, path: str) -> object:
    answer = httpx.get(broker.http_url + path, auth=("guest", "guest"), timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def in_small_steps(monkeypatch: pytest.MonkeyPatch, between: Callable[[], None]) -> list[int]:
    """Make every row a step; ``between`` runs after the first. Returns a list with an item for each step."""
    steps: list[int] = []

    class RowByRow(Stepwise):
        async def between(self) -> None:
            steps.append(1)
            if len(steps) == 1:
                between()
            await super().between()

    monkeypatch.setattr(stepwise, "STEP", 0.0)
    monkeypatch.setattr(stepwise, "_SORTED_AT_ONCE", 5)
    for module in (stepwise, topology, bindings):
        monkeypatch.setattr(module, "Stepwise", RowByRow)
    return steps


def without_times(found: object) -> object:
    """Without what moves on by itself between two requests."""
    if isinstance(found, list):
        return [without_times(one) for one in found]
    if isinstance(found, dict):
        moving = ("idle_since", "backing_queue_status", "memory", "reductions", "garbage_collection")
        return {key: without_times(one) for key, one in found.items() if key not in moving}
    return found


@pytest.mark.parametrize("path", [*LISTS, "/api/overview"])
def test_a_list_made_in_steps_is_the_same(
    path: str, broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = get(broker, path)
    steps = in_small_steps(monkeypatch, lambda: None)

    in_steps = get(broker, path)

    if path == "/api/overview":
        assert isinstance(at_once, dict)
        assert isinstance(in_steps, dict)
        assert in_steps["object_totals"] == at_once["object_totals"]
        assert in_steps["queue_totals"] == at_once["queue_totals"]
        assert len(steps) >= MANY
    else:
        assert without_times(in_steps) == without_times(at_once)
        assert len(steps) >= MANY // 5


@pytest.mark.parametrize("path", [*LISTS, "/api/overview"])
def test_what_is_deleted_between_two_steps_is_left_out(
    path: str, broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete() -> None:
        inner: Broker = broker.node.broker
        for name in NAMES[:20]:
            inner.delete_queue(inner.vhost("/"), name)
            inner.exchanges.delete(inner.vhost("/"), name)

    in_small_steps(monkeypatch, delete)

    found = get(broker, path)

    if path == "/api/definitions":
        assert isinstance(found, dict)
        assert {row["name"] for row in found["queues"]} == set(NAMES[20:])
    if path == "/api/exchanges/%2F":
        assert isinstance(found, list)
        assert {row["name"] for row in found} >= set(NAMES[20:])
        assert not {row["name"] for row in found} & set(NAMES[:20])
