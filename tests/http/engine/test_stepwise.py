"""Figures over many partitions are made in steps: others are served between them, and may change things."""

import asyncio
from collections.abc import Callable, Generator
from threading import Thread

import pytest
from http_support import Api

from holtmq.broker.partitioned.log.message_log import NO_PARTITION
from holtmq.http.engine import stepwise
from holtmq.http.engine.stepwise import Stepwise
from holtmq.node import Node
from holtmq.testing import TestBroker

FIGURES = (
    "resources/queues",
    "resources/queues/wide",
    "resources/queues/wide/depth",
    "resources/queues/wide/depth?group=g",
    "resources/partitions",
    "resources/namespaces",
    "resources/tasks",
    "resources/overview",
    "status",
    "status/queues",
    "status/queues/wide",
    "analytics/worker-metrics",
    "consumer-groups",
    "consumer-groups/g",
    "consumer-groups/lagging?minLagSeconds=0",
    "messages?limit=10000",
    "messages?status=completed&queue=wide",
)


@pytest.fixture
def single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "STEP", 0.0)


async def test_others_have_a_turn_between_the_steps(single_steps: None) -> None:
    seen: list[str] = []

    async def work(name: str) -> None:
        mine = Stepwise()
        for number in range(3):
            seen.append(f"{name}{number}")
            await mine.between()

    await asyncio.gather(work("a"), work("b"))

    assert seen == ["a0", "b0", "a1", "b1", "a2", "b2"]


async def test_steps_come_to_what_they_return(single_steps: None) -> None:
    seen: list[str] = []

    def count(name: str) -> Generator[None, None, int]:
        for number in range(3):
            seen.append(f"{name}{number}")
            yield
        return len(name)

    found = await asyncio.gather(Stepwise().run(count("a")), Stepwise().run(count("bb")))

    assert list(found) == [1, 2]
    assert seen == ["a0", "bb0", "a1", "bb1", "a2", "bb2"]


async def test_what_is_short_is_done_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "STEP", 3600.0)
    seen: list[str] = []

    async def work(name: str) -> None:
        mine = Stepwise()
        for number in range(2):
            seen.append(f"{name}{number}")
            await mine.between()

    await asyncio.gather(work("a"), work("b"))

    assert seen == ["a0", "a1", "b0", "b1"]


def wide(api: Api, count: int, queue: str = "wide") -> None:
    items = [{"queue": queue, "partition": f"p{number}", "payload": 1} for number in range(count)]
    assert api.post("/api/v1/push", {"items": items}).status_code == 201


def test_figures_made_in_steps_are_the_same(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    wide(api, 20)
    api.ack_batch(api.pop("wide", consumerGroup="g", partitions=5)[:3])
    api.ack_batch(api.pop("wide", partitions=2), "dlq")
    paths = [path for path in FIGURES if path != "status"]  # has the figures of the machine

    def ask() -> list[object]:
        return [api.get(f"/api/v1/{path}").json() for path in paths]

    at_once = ask()
    monkeypatch.setattr(stepwise, "STEP", 0.0)

    assert ask() == at_once


def test_what_comes_and_goes_between_the_steps_spoils_no_figures(
    broker: TestBroker, api: Api, connect: Callable[..., Api], single_steps: None
) -> None:
    wide(api, 40)
    api.pop("wide", consumerGroup="g", partitions=64)
    changer = connect()
    refused: list[str] = []

    def change() -> None:
        for number in range(20):  # not without end: indexes are not used twice, so the queue gets wider
            wide(changer, 40 + number)
            wide(changer, 10, f"q{number % 3}")
            changer.pop("wide", consumerGroup=f"g{number % 3}", partitions=64)
            changer.delete(f"/api/v1/consumer-groups/g{(number + 1) % 3}")
            changer.delete(f"/api/v1/resources/queues/q{(number + 1) % 3}")
            changer.delete("/api/v1/queues/wide/clear")
            broker.call(drop_empty_partitions)

    worker = Thread(target=change)
    worker.start()
    for path in FIGURES * 2:
        answer = api.get(f"/api/v1/{path}")
        if answer.status_code != 200:
            refused.append(f"{path}: {answer.text}")
    worker.join(60)

    assert refused == []
    assert broker.call(lambda node: NO_PARTITION in node.partitioned.store.queues["wide"].partitions)


def drop_empty_partitions(node: Node) -> None:
    tomorrow = node.clock() + 86_400  # when they are no longer needed to detect repeated ids
    while node.partitioned.drop_idle(tomorrow, days=0):
        pass
