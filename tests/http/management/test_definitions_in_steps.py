"""An import is made in steps: whatever others do between two of them, memory and journal agree, the answer
says what happened, and the same import can be repeated."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from holtmq.broker.broker import Broker
from holtmq.broker.records.checkpoint import snapshot
from holtmq.broker.removals import Removals
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management import definitions_import
from holtmq.node import Node
from holtmq.testing import TestBroker

KEYS = [f"key.{number}" for number in range(3)]
QUEUES = ("old", "new", "last")
DOCUMENT: dict[str, list[dict[str, object]]] = {
    "users": [{"name": "ann", "password_hash": "", "tags": "management"}],
    "permissions": [{"user": "ann", "vhost": "/", "configure": "", "write": ".*", "read": ".*"}],
    "policies": [{"name": "short", "vhost": "/", "pattern": "^new$", "definition": {"max-length": 7}}],
    "exchanges": [{"name": "many", "vhost": "/", "type": "topic", "durable": True}],
    "queues": [{"name": name, "vhost": "/", "durable": True} for name in QUEUES],
    "bindings": [
        {"source": source, "vhost": "/", "destination": queue, "routing_key": key}
        for key in KEYS
        for queue in QUEUES
        for source in ("many", "amq.direct")
    ],
}
ROWS = sum(len(part) for part in DOCUMENT.values())
BINDINGS = len(DOCUMENT["bindings"])
BEFORE_QUEUES, BEFORE_BINDINGS = 4, 7  # how many rows are made until then


@dataclass
class Between:
    """What happens after this many rows of the import."""

    rows: int = 0
    act: Callable[[], object] = lambda: None
    wait: threading.Event | None = None  # the import stops there for good, and this is set
    steps: list[int] = field(default_factory=list)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """Every row is a step of its own."""
    between = Between()

    class RowByRow(Stepwise):
        is_due = True

        async def rest(self) -> None:
            between.steps.append(len(between.steps) + 1)
            if between.steps[-1] == between.rows:
                between.act()
                if between.wait is not None:
                    between.wait.set()
                    await asyncio.Event().wait()
            await super().rest()

    monkeypatch.setattr(definitions_import, "Stepwise", RowByRow)
    return between


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


def post(broker: TestBroker, document: object = DOCUMENT) -> httpx.Response:
    url = f"{broker.http_url}/api/definitions"
    return httpx.post(url, json=document, auth=("guest", "guest"), timeout=60)


def lasting(node: Node) -> tuple[set[str], set[tuple[str, str, str]]]:
    """The durable queues, and the bindings to them."""
    vhost = node.broker.vhost("/")
    queues = {queue.name for queue in vhost.queues.values() if queue.persisted}
    bindings = {
        (exchange.name, binding.destination.name, binding.routing_key)
        for exchange in vhost.exchanges.values()
        for binding in exchange.bindings()
        if binding.destination.name in queues
    }
    return queues, bindings


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


def delete_the_user(broker: Broker) -> None:
    broker.access.delete_user("ann")


def declare_otherwise(broker: Broker) -> None:
    broker.declare_queue(broker.vhost("/"), "new", durable=False)


def declare_exclusively(broker: Broker) -> None:
    broker.declare_queue(broker.vhost("/"), "new", exclusive=True, owner=object())


def limit_the_queues(broker: Broker) -> None:
    broker.access.set_vhost_limits("/", {"max-queues": 1})


def lift_the_limit(broker: Broker) -> None:
    broker.access.set_vhost_limits("/", {})


def nothing(_: Broker) -> None:
    return None


@pytest.mark.parametrize(
    "change",
    [nothing, make_a_checkpoint, unbind_one_that_is_not_there_yet],
)
def test_other_work_between_two_steps_does_no_harm(
    change: Callable[[Broker], None], broker: TestBroker, between: Between
) -> None:
    between.rows, between.act = BEFORE_BINDINGS + 3, lambda: change(broker.node.broker)

    answer = post(broker)

    assert answer.status_code == 204, answer.text
    assert len(between.steps) == ROWS
    queues, bindings = here = broker.call(lasting)
    assert queues == set(QUEUES)
    assert len(bindings) == BINDINGS
    broker.crash_and_restart()
    assert broker.call(lasting) == here
    assert broker.call(lambda node: node.broker.vhost("/").queues["new"].policy) == "short"


def test_bindings_that_went_with_a_queue_that_is_there_again_stay_away(
    broker: TestBroker, between: Between
) -> None:
    between.rows, between.act = (
        BEFORE_BINDINGS + 6,
        lambda: delete_and_declare_a_queue(broker.node.broker),
    )

    assert post(broker).status_code == 204

    here = broker.call(lasting)
    assert len(here[1]) == BINDINGS - 2
    broker.crash_and_restart()
    assert broker.call(lasting) == here


@pytest.mark.parametrize(
    ("rows", "change", "undo", "reason"),
    [
        (1, delete_the_user, nothing, "no user 'ann'"),
        (BEFORE_QUEUES, declare_otherwise, nothing, "inequivalent arg 'durable' for queue 'new'"),
        (BEFORE_QUEUES, declare_exclusively, nothing, "locked queue 'new'"),
        (BEFORE_QUEUES, limit_the_queues, lift_the_limit, "queue limit in vhost '/' (1) is reached"),
        (BEFORE_QUEUES, delete_the_vhost, nothing, "no exchange 'many'"),
        (BEFORE_BINDINGS + 5, delete_a_queue, nothing, "no queue 'old'"),
        (BEFORE_BINDINGS + 5, delete_an_exchange, nothing, "no exchange 'many'"),
    ],
)
def test_what_others_change_ends_the_import_which_can_be_repeated(
    rows: int,
    change: Callable[[Broker], None],
    undo: Callable[[Broker], None],
    reason: str,
    broker: TestBroker,
    between: Between,
) -> None:
    between.rows, between.act = rows, lambda: change(broker.node.broker)

    answer = post(broker)

    made = len(between.steps)
    assert answer.status_code == 409, answer.text
    assert answer.json()["error"] == "conflict"
    assert reason in answer.json()["reason"]
    assert f"{made} of {ROWS} parts are in place" in answer.json()["reason"]
    here = broker.call(lasting)
    assert len(here[1]) < BINDINGS
    broker.crash_and_restart()  # which also ends the queue that is not durable, or exclusive
    assert broker.call(lasting) == here
    broker.call(lambda node: undo(node.broker))
    assert post(broker).status_code == 204
    queues, bindings = broker.call(lasting)
    assert (queues, len(bindings)) == (set(QUEUES), BINDINGS)


@pytest.mark.parametrize("rows", [1, BEFORE_QUEUES + 1, BEFORE_BINDINGS + 5])
def test_an_import_that_a_crash_interrupts_can_be_repeated(
    rows: int, broker: TestBroker, between: Between
) -> None:
    between.rows, between.wait = rows, threading.Event()
    answers: list[httpx.Response | httpx.TransportError] = []

    def ask() -> None:
        try:
            answers.append(post(broker))
        except httpx.TransportError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert between.wait.wait(60)
    broker.crash_and_restart()
    thread.join()
    assert isinstance(answers[0], httpx.TransportError)  # nothing was promised
    queues, bindings = broker.call(lasting)
    assert len(queues) + len(bindings) <= max(0, rows - BEFORE_QUEUES)

    between.rows, between.wait = 0, None
    assert post(broker).status_code == 204
    broker.crash_and_restart()
    queues, bindings = broker.call(lasting)
    assert (queues, len(bindings)) == (set(QUEUES), BINDINGS)


def test_a_journal_that_fails_in_between_ends_the_import_with_503(
    broker: TestBroker, between: Between
) -> None:
    def fail() -> None:
        broker.disk.fail_next_sync()

    between.rows, between.act = BEFORE_QUEUES, fail

    answer = post(broker)

    assert answer.status_code == 503, answer.text
    broker.crash_and_restart()
    assert post(broker).status_code == 204


def import_it(broker: TestBroker) -> httpx.Response:
    return post(broker, {"vhosts": [{"name": "v"}]})


def put_it(broker: TestBroker) -> httpx.Response:
    return httpx.put(f"{broker.http_url}/api/vhosts/v", json={}, auth=("guest", "guest"), timeout=60)


@pytest.mark.parametrize("make", [import_it, put_it])
def test_a_vhost_that_is_being_deleted_is_made_when_it_is_gone(
    make: Callable[[TestBroker], httpx.Response], broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make it at once would complete the deletion of all its queues in one go."""
    steps: list[Callable[[], None]] = []
    completed: list[str] = []
    asked = threading.Event()
    really_complete, really_leaving = Removals.complete, Removals.is_leaving

    def complete(removals: Removals, vhost: str) -> None:
        if vhost in removals._vhosts:
            completed.append(vhost)
        really_complete(removals, vhost)

    def is_leaving(removals: Removals, vhost: str) -> bool:
        asked.set()
        return really_leaving(removals, vhost)

    def begin(node: Node) -> None:
        inner = node.broker
        inner.put_vhost("v")
        for number in range(300):  # more than one step removes
            inner.declare_queue(inner.vhost("v"), f"q{number}", durable=True)
        inner.long_changes.later = steps.append
        inner.removals.delete_vhost("v")

    def go_on(node: Node) -> None:
        while steps:
            steps.pop()()

    broker.call(begin)
    monkeypatch.setattr(Removals, "complete", complete)
    monkeypatch.setattr(Removals, "is_leaving", is_leaving)
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(make(broker))
        asked.set()

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(60)
    assert not answers
    broker.call(go_on)
    thread.join()

    assert answers[0].is_success
    assert completed == []
    assert broker.call(lambda node: len(node.broker.vhost("v").queues)) == 0


def test_limits_and_shovels_of_a_document_come_after_its_queues_and_policies_before(
    broker: TestBroker, between: Between
) -> None:
    seen: list[tuple[bool, bool]] = []

    def look() -> None:
        inner = broker.node.broker
        upstream = inner.parameters.get("/", "federation-upstream", "up")
        seen.append((bool(inner.operator_policies.in_vhost("/")), upstream is not None))

    policy = {"pattern": "", "definition": {"max-length": 5}}
    parameters = [
        {"component": "federation-upstream", "vhost": "/", "name": "up", "value": {"uri": "amqp://up"}},
        {"component": "vhost-limits", "vhost": "/", "name": "limits", "value": {"max-queues": 1}},
        {"component": "operator_policy", "vhost": "/", "name": "short", "value": policy},
    ]
    between.rows, between.act = 2, look  # after the policy and a queue

    answer = post(broker, {"queues": DOCUMENT["queues"], "parameters": parameters})

    assert answer.status_code == 204, answer.text
    assert seen == [(True, False)]
    assert broker.call(lambda node: node.broker.limits.of_vhosts["/"]) == {"max-queues": 1}


@pytest.mark.parametrize("part", ["bindings", "queues", "users"])
def test_a_row_that_cannot_be_read_is_named_by_its_number(part: str, broker: TestBroker) -> None:
    good = {"name": "a", "vhost": "/", "source": "amq.topic", "tags": ""}

    answer = post(broker, {part: [good, {**good, "name": [], "source": []}]})

    assert answer.status_code == 400
    assert f"{part}[1]: Expected `str`, got `array`" in answer.json()["reason"]
    assert broker.call(lasting) == (set(), set())


def test_a_refused_document_changes_nothing(broker: TestBroker) -> None:
    """Its last row is the wrong one."""
    document = json.loads(json.dumps(DOCUMENT))
    document["bindings"].append({"source": "nowhere", "vhost": "/", "destination": "old"})

    answer = post(broker, document)

    assert answer.status_code == 400
    assert "no exchange 'nowhere'" in answer.json()["reason"]
    assert broker.call(lasting) == (set(), set())
    assert broker.call(lambda node: node.broker.users.user("ann")) is None


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_rehearsal_s_copies_are_freed_before_the_answer(is_refused: bool, broker: TestBroker) -> None:
    """They refer to each other: a full garbage collection, which is rare, would free all of them at once."""
    assert post(broker).status_code == 204
    document = {**DOCUMENT, "global_parameters": [{"name": "", "value": 1}]} if is_refused else DOCUMENT
    gc.collect()
    before = {id(one): one for one in gc.get_objects() if isinstance(one, WorkQueue)}
    gc.disable()
    try:
        assert post(broker, document).status_code == (400 if is_refused else 204)
        broker.call(lambda node: node.broker.flow.turn())
        after = [one for one in gc.get_objects() if isinstance(one, WorkQueue) and id(one) not in before]
    finally:
        gc.enable()

    assert [one.name for one in after] == []
