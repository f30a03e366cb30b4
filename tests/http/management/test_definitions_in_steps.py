"""Bindings of an import are added in steps: whatever happens between two of them, a restart agrees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from holtmq.broker.broker import Broker
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.topology import pending_bindings
from holtmq.http.management import definitions_import
from holtmq.node import Node
from holtmq.testing import TestBroker

KEYS = [f"key.{number}" for number in range(20)]


def post(broker: TestBroker, document: object) -> httpx.Response:
    url = f"{broker.http_url}/api/definitions"
    return httpx.post(url, json=document, auth=("guest", "guest"), timeout=60)


def many() -> dict[str, object]:
    return {
        "queues": [{"name": name, "vhost": "/", "durable": True} for name in ("old", "new")],
        "exchanges": [{"name": "many", "vhost": "/", "type": "topic", "durable": True}],
        "bindings": [
            {"source": source, "vhost": "/", "destination": queue, "routing_key": key}
            for key in KEYS
            for queue in ("old", "new")
            for source in ("many", "amq.direct")
        ],
    }


def nothing(_: Broker) -> None:
    return None


def make_a_checkpoint(broker: Broker) -> None:
    assert broker.journal.checkpoint(*snapshot(broker))


def unbind_one_that_is_not_there_yet(broker: Broker) -> None:
    broker.exchanges.unbind(broker.vhost("/"), "many", "old", KEYS[-1])


def delete_a_queue(broker: Broker) -> None:
    broker.delete_queue(broker.vhost("/"), "old")


def delete_and_declare_a_queue(broker: Broker) -> None:
    delete_a_queue(broker)
    broker.declare_queue(broker.vhost("/"), "old", durable=True)


def delete_an_exchange(broker: Broker) -> None:
    broker.exchanges.delete(broker.vhost("/"), "many")


def delete_the_vhost(broker: Broker) -> None:
    broker.delete_vhost("/")
    broker.put_vhost("/")


def bindings(node: Node) -> set[tuple[str, str, str]]:
    return {
        (exchange.name, binding.destination.name, binding.routing_key)
        for vhost in node.broker.vhosts.values()
        for exchange in vhost.exchanges.values()
        for binding in exchange.bindings()
    }


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (nothing, 80),
        (make_a_checkpoint, 80),
        (unbind_one_that_is_not_there_yet, 79),
        (delete_a_queue, 40),
        (delete_and_declare_a_queue, 40),
        (delete_an_exchange, 40),
        (delete_the_vhost, 0),
    ],
)
def test_memory_and_journal_agree(
    change: Callable[[Broker], None],
    left: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending_bindings, "STEP", 7)
    changed: list[int] = []
    with TestBroker(tmp_path) as broker:
        broker.call(lambda node: node.broker.declare_queue(node.broker.vhost("/"), "old", durable=True))
        really_sleep = asyncio.sleep

        async def meanwhile(seconds: float) -> None:
            inner = broker.node.broker
            if inner.exchanges.pending_bindings and not changed:
                changed.append(len(bindings(broker.node)))
                change(inner)
            await really_sleep(seconds)

        monkeypatch.setattr(definitions_import, "sleep", meanwhile)
        answer = post(broker, many())
        assert answer.status_code == 204, answer.text
        assert changed == [7]
        here = broker.call(bindings)

        broker.crash_and_restart()

        assert len(here) == left
        assert broker.call(bindings) == here


def test_bindings_between_exchanges_go_with_their_vhost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No queue's deletion completes this import: the vhost's own must."""
    monkeypatch.setattr(pending_bindings, "STEP", 7)
    ends = {"source": "amq.topic", "vhost": "/", "destination": "amq.fanout", "destination_type": "exchange"}
    document = {"bindings": [{**ends, "routing_key": key} for key in KEYS]}
    with TestBroker(tmp_path) as broker:
        really_sleep = asyncio.sleep
        changed: list[int] = []

        async def meanwhile(seconds: float) -> None:
            if broker.node.broker.exchanges.pending_bindings and not changed:
                changed.append(len(bindings(broker.node)))
                delete_the_vhost(broker.node.broker)
            await really_sleep(seconds)

        monkeypatch.setattr(definitions_import, "sleep", meanwhile)
        answer = post(broker, document)

        assert answer.status_code == 204, answer.text
        assert changed == [7]
        assert broker.call(bindings) == set()
        broker.crash_and_restart()
        assert broker.call(bindings) == set()


def test_other_work_during_the_rehearsal_does_not_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsed = 0
    really_bind = definitions_import._Plan.bind

    def bind(plan: definitions_import._Plan, broker: Broker, *, in_journal: bool = False) -> Iterator[None]:
        nonlocal rehearsed
        rehearsed += not in_journal
        return really_bind(plan, broker, in_journal=in_journal)

    monkeypatch.setattr(definitions_import._Plan, "bind", bind)
    monkeypatch.setattr(definitions_import, "_STEP", 7)
    with TestBroker(tmp_path) as broker:
        really_sleep = asyncio.sleep
        declared = 0

        async def meanwhile(seconds: float) -> None:
            nonlocal declared
            declared += 1
            inner = broker.node.broker
            inner.declare_queue(inner.vhost("/"), f"other-{declared}")
            await really_sleep(seconds)

        monkeypatch.setattr(definitions_import, "sleep", meanwhile)
        answer = post(broker, many())

        assert answer.status_code == 204, answer.text
        assert declared > 5
        assert rehearsed == 1
        assert len(broker.call(bindings)) == 80


def test_a_binding_that_cannot_be_read_is_named_by_its_number(tmp_path: Path) -> None:
    with TestBroker(tmp_path) as broker:
        answer = post(broker, {"bindings": [{"source": "amq.topic"}, {"source": []}]})

    assert answer.status_code == 400
    assert "bindings[1]: Expected `str`, got `array` - at `$.source`" in answer.text
