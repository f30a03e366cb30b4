"""Commands on all queues go in steps: other work runs in between, and queues may come and go."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from holtmq.broker.partitioned.commands import admin, retention_pass
from holtmq.broker.partitioned.groups.subscriptions import Scope, StartRequest
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import PopRequest, PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.steps import finish
from holtmq.journal import MemoryJournal

QUEUES = 6
NOW = 1_800_000_000.0
ALL = StartRequest()


@pytest.fixture
def service() -> PartitionedService:
    journal = MemoryJournal()
    made = PartitionedService(journal)
    for number in range(QUEUES):
        made.push([PushItem(f"q{number}", "p", Body(f"t{number}-{n}", b"1")) for n in range(3)], NOW)
        journal.flush()
        pop(made, f"q{number}")
    return made


def pop(service: PartitionedService, queue: str, partition: str = "") -> int:
    request = PopRequest(f"lease of {queue}", queue, partition, group="g", limit=9, start=ALL, auto_ack=True)
    popped = service.pop(request, NOW)
    return 0 if popped is None else sum(len(run.bodies) for run in popped.runs)


def allow(_queue: str) -> None:
    """Any queue may be changed."""


def joined(service: PartitionedService) -> set[str]:
    return {name for name, queue in service.store.queues.items() if "g" in queue.groups}


def test_a_group_is_deleted_some_queues_at_a_time(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_QUEUES_AT_ONCE", 2)
    steps = admin.delete_group(service, "g", None, with_records=True, check=allow)

    next(steps)
    assert joined(service) == {"q2", "q3", "q4", "q5"}
    assert service.store.subscriptions.count("g") == QUEUES
    admin.delete_queue(service, "q3")
    admin.delete_queue(service, "q4")
    service.push([PushItem("q4", "p", Body("again", b"1"))], NOW)
    done = finish(steps)

    assert joined(service) == set()
    assert service.store.subscriptions.count("g") == 0
    assert done.queues == ["q0", "q1", "q2", "q5"]
    assert done.partitions == 4


def test_the_start_of_a_group_moves_some_queues_at_a_time(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_QUEUES_AT_ONCE", 2)
    for number in range(QUEUES):
        service.push([PushItem(f"q{number}", "other", Body(f"late-{number}", b"1"))], NOW + 10)
    service.journal.flush()
    steps = admin.move_subscription(service, "g", int((NOW + 60) * 1_000_000), allow)

    for _ in range(QUEUES + 1):  # each record is checked, then all are moved at once
        next(steps)
    admin.delete_queue(service, "q5")
    moved = finish(steps)

    assert moved == QUEUES  # records at the beginning
    assert [pop(service, f"q{number}") for number in range(QUEUES - 1)] == [0] * (QUEUES - 1)


def refuse_theirs(queue: str) -> None:
    if queue == "theirs":
        raise PermissionError


@pytest.mark.parametrize("how", ["delete", "delete without records", "move"])
@pytest.mark.parametrize("joins", ["at once", "between steps"])
def test_a_queue_that_a_group_joins_is_not_changed_without_rights(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch, how: str, joins: str
) -> None:
    monkeypatch.setattr(admin, "_QUEUES_AT_ONCE", 2)
    service.push([PushItem("theirs", "p", Body("a", b"1"))], NOW)
    service.journal.flush()
    steps: Generator[None, None, object]
    if how == "move":
        steps = admin.move_subscription(service, "g", int((NOW + 60) * 1_000_000), refuse_theirs)
    else:
        steps = admin.delete_group(service, "g", None, with_records=how == "delete", check=refuse_theirs)
    if joins == "between steps":
        next(steps)
    pop(service, "theirs")
    start = service.store.queues["theirs"].groups["g"].start_us

    with pytest.raises(PermissionError):
        finish(steps)

    assert service.store.queues["theirs"].groups["g"].start_us == start
    assert service.store.subscriptions.record("g", Scope("theirs")) is not None


@pytest.mark.parametrize("steps_before", range(QUEUES + 1))
def test_a_start_that_is_recorded_while_others_are_checked_is_checked_too(
    service: PartitionedService, steps_before: int
) -> None:
    steps = admin.move_subscription(service, "g", int((NOW + 60) * 1_000_000), refuse_theirs)
    for _ in range(min(steps_before, QUEUES)):
        next(steps)
    pop(service, "theirs")

    with pytest.raises(PermissionError):
        finish(steps)

    assert service.store.subscriptions.record("g", Scope("theirs")) is not None


def test_a_start_on_a_queue_that_is_gone_is_not_forgotten_without_rights(service: PartitionedService) -> None:
    request = PopRequest("l", "theirs", group="g", start=ALL)
    assert service.pop(request, NOW) is None  # the queue does not exist yet

    for steps in (
        admin.delete_group(service, "g", None, with_records=True, check=refuse_theirs),
        admin.move_subscription(service, "g", 0, refuse_theirs),
    ):
        with pytest.raises(PermissionError):
            finish(steps)

    assert service.store.subscriptions.record("g", Scope("theirs")) is not None


def test_one_step_of_retention_looks_at_some_queues_and_the_next_one_goes_on(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_pass, "_WORK", 2 * retention_pass._EVENTS)
    options = {"retention_enabled": True, "retention_seconds": 10}
    for number in range(QUEUES):
        admin.configure(service, f"q{number}", "", "", options, NOW)

    def left() -> int:
        return sum(queue.log.live for queue in service.store.queues.values())

    assert service.retain(NOW + 60)
    assert left() == 3 * (QUEUES - 2)
    admin.delete_queue(service, "q3")
    steps = 1
    while service.retain(NOW + 60):
        steps += 1

    assert left() == 0
    assert steps == 2 + 1  # of the first pass, and of one that finds nothing
    assert service.counters.of("q5").retained + service.counters.of("q5").retained_completed == 3


def test_another_kind_of_retention_begins_with_the_first_queue(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_pass, "_WORK", 1)
    options = {"retention_enabled": True, "retention_seconds": 10}
    for number in range(QUEUES):
        admin.configure(service, f"q{number}", "", "", options, NOW)

    assert service.retain(NOW + 60, retention=False)  # looks at the first, which has nothing to evict
    service.retain(NOW + 60)

    assert [queue.log.live for queue in service.store.queues.values()] == [0] + [3] * (QUEUES - 1)


def test_the_records_of_a_deleted_queue_are_forgotten_with_those_of_its_partitions() -> None:
    service = PartitionedService(MemoryJournal())
    for queue in ("a", "b"):
        service.push([PushItem(queue, "p", Body("t", b"1"))], NOW)
        pop(service, queue)
        pop(service, queue, "p")
        pop(service, queue, "not yet there")
    records = service.store.subscriptions
    assert records.count("g") == 6
    assert {scope.queue for scope in records.scopes("g")} == {"a", "b"}

    admin.delete_queue(service, "a")

    scopes = [scope for _, scope, _ in service.store.subscriptions.records()]
    assert {scope.queue for scope in scopes} == {"b"}
    assert sorted(scope.partition for scope in scopes) == ["", "not yet there", "p"]
    for _ in admin.delete_group(service, "g", None, with_records=True, check=allow):
        pass
    assert list(records.records()) == []
    assert records._of_queues == {}
