"""A pop looks at some of very many partitions or queues, and goes on later: it misses nothing."""

import pytest

from holtmq.broker.partitioned.commands import popping
from holtmq.broker.partitioned.commands.admin import configure
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import Popped, PopRequest, PushItem, Waiter
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.waiting import waiting_pops
from holtmq.journal import MemoryJournal

ANY = PopRequest("l", "q", group="g", lease_seconds=1_000)
WIDE = PopRequest("l", namespace="n", group="g", lease_seconds=1_000)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> PartitionedService:
    monkeypatch.setattr(popping, "LOOKS", 30)
    return PartitionedService(MemoryJournal())


def push(service: PartitionedService, queue: str, partition: str, now: float) -> None:
    service.push([PushItem(queue, partition, Body(f"{queue}-{partition}", b"1"))], now)
    service.journal.flush()


def with_open_windows(service: PartitionedService) -> float:
    """A queue with one message that may be popped, behind 100 that may not yet; the time."""
    configure(service, "q", None, None, {"window_buffer": 5}, 0.0)
    push(service, "q", "first", 0.0)
    assert service.pop(ANY, 1.0) is None
    for number in range(100):
        push(service, "q", f"p{number}", 4.0)
    return 6.0


def many_queues(service: PartitionedService, count: int = 20) -> None:
    for number in range(count):
        configure(service, f"q{number}", "n", None, {}, 0.0)


def steps(service: PartitionedService, request: PopRequest, now: float) -> list[Popped | None]:
    """The results of a pop that goes on while it has to."""
    results = [service.pop(request, now)]
    while (last := results[-1]) is not None and not last.runs:
        results.append(service.pop(request, now, last.waits))
    return results


def names(popped: Popped | None) -> list[str]:
    return [] if popped is None else [body.transaction_id for run in popped.runs for body in run.bodies]


def test_a_pop_goes_on_behind_partitions_that_have_nothing(service: PartitionedService) -> None:
    now = with_open_windows(service)

    results = steps(service, ANY, now)

    assert len(results) == 4
    assert names(results[-1]) == ["q-first"]
    assert steps(service, ANY, now)[-1] is None
    assert len(steps(service, ANY, 9.0)) == 1, "windows that have ended need no search"


def test_a_waiting_pop_goes_on_in_later_turns(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_pops, "TRIES_AT_ONCE", 2)
    now = with_open_windows(service)
    turns: list[None] = []
    service.line.on_dirty = lambda: turns.append(None)
    got: list[str] = []
    service.wait(Waiter(ANY, lambda popped: got.extend(names(popped))), now)
    push(service, "other", "p", now)
    other = PopRequest("o", "other", group="g")
    service.wait(Waiter(other, lambda popped: got.extend(names(popped))), now)
    service.line.wake_all()

    rounds = 0
    while turns:
        turns.clear()
        service.turn(now)
        rounds += 1

    assert got == ["other-p", "q-first"], "the other queue did not have to wait"
    assert rounds >= 4


def test_a_pop_over_very_many_queues_joins_them_in_steps(service: PartitionedService) -> None:
    many_queues(service)
    push(service, "q19", "p", 1.0)

    results = steps(service, WIDE, 2.0)

    assert len(results) > 10
    assert names(results[-1]) == ["q19-p"]
    assert results[-1] is not None
    assert results[-1].waits, "the group's start must be durable first"


def test_a_waiting_pop_over_very_many_queues_says_that_it_wrote(service: PartitionedService) -> None:
    many_queues(service)
    push(service, "q19", "p", 1.0)
    found: list[Popped] = []
    service.wait(Waiter(WIDE, found.append), 2.0)
    service.line.wake_all()

    for _ in range(30):
        service.turn(2.0)

    assert [names(one) for one in found] == [["q19-p"]]
    assert found[0].waits


def test_a_pop_over_queues_that_is_given_up_leaves_the_others_in_line(service: PartitionedService) -> None:
    many_queues(service)
    for number in range(20):
        push(service, f"q{number}", "p", 1.0)

    got: list[str] = []
    for number in range(40):
        popped = service.pop(PopRequest(f"l{number}", namespace="n", group="g", lease_seconds=1_000), 2.0)
        got += names(popped)
    assert steps(service, WIDE, 2.0)[-1] is None

    assert sorted(got) == sorted(f"q{number}-p" for number in range(20))


def test_of_very_many_leases_in_queues_that_end_at_once_none_is_forgotten(
    service: PartitionedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.broker.partitioned.waiting.wide_pops._DEADLINES_AT_ONCE", 3)
    many_queues(service, 10)
    for number in range(10):
        push(service, f"q{number}", "p", 1.0)
    taken: list[str] = []
    for lease, now in (("first", 2.0), ("second", 20.0)):
        for _ in range(10):
            request = PopRequest(lease, namespace="n", group="g", lease_seconds=10)
            taken += names(steps(service, request, now)[-1])
        assert steps(service, WIDE, now)[-1] is None

    assert sorted(taken) == sorted(f"q{number}-p" for number in range(10) for _ in range(2))
