"""Backlogs stay in memory while there is room for all; when there is not, the largest leaves first."""

from heapq import nlargest
from typing import Any

import pytest
from core_support import Bench

from holtmq.broker.work import memory_budget, spilling_fifo
from holtmq.broker.work.memory_budget import MemoryBudget


@pytest.fixture(autouse=True)
def _short_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilling_fifo, "HEAD_MAX", 50)
    monkeypatch.setattr(spilling_fifo, "HEAD_KEEP", 10)


def fill(bench: Bench, name: str, count: int) -> None:
    for number in range(count):
        bench.publish(name, b"%d" % number)
    bench.flow.turn()


def test_a_backlog_within_the_budget_stays_in_memory() -> None:
    bench = Bench()
    bench.declare("q")

    fill(bench, "q", 5000)

    assert bench.queue("q").store.in_memory == 5000


def test_beyond_the_budget_messages_leave_and_come_back_in_order() -> None:
    bench = Bench()
    bench.flow.memory.limit = 1 << 20
    bench.declare("q")

    fill(bench, "q", 5000)

    assert bench.queue("q").store.in_memory < 3000
    assert bench.bodies("q") == [b"%d" % number for number in range(5000)]


def test_a_large_queue_that_rests_makes_room_for_one_that_works() -> None:
    bench = Bench()
    bench.flow.memory.limit = 2 << 20
    bench.declare("resting")
    bench.declare("working")
    fill(bench, "resting", 3500)
    assert bench.queue("resting").store.in_memory == 3500

    for _ in range(30):
        fill(bench, "working", 40)

    assert bench.queue("resting").store.in_memory <= 50
    assert bench.flow.memory.used <= 2 << 20


def test_what_a_deleted_or_purged_queue_held_is_free_again() -> None:
    bench = Bench()
    bench.declare("q")
    bench.declare("r")
    fill(bench, "q", 1000)
    fill(bench, "r", 1000)
    assert bench.flow.memory.used > 0

    bench.broker.purge_queue(bench.vhost, "q")
    bench.broker.delete_queue(bench.vhost, "r")

    assert bench.flow.memory.used == 0


def test_the_largest_of_many_queues_is_not_looked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal searches
        searches += 1
        return nlargest(*arguments, **options)

    monkeypatch.setattr(memory_budget, "nlargest", counted)
    bench, budget = Bench(), MemoryBudget()
    queues = [bench.declare(f"q-{number}") for number in range(300)]
    for number, queue in enumerate(queues):
        budget.note(queue, 1_000_000 + number)
    paged_out = []

    for _ in range(len(queues)):
        largest = budget.largest()
        assert largest is budget.largest()
        assert largest is not None
        budget.note(largest, 70_000)
        paged_out.append(largest)

    assert paged_out == queues[::-1]
    assert searches == 3


def test_a_queue_that_becomes_the_largest_is_found_after_a_while() -> None:
    bench, budget = Bench(), MemoryBudget()
    stays, grows = bench.declare("stays"), bench.declare("grows")
    budget.note(stays, 1_000_000)
    assert budget.largest() is stays

    budget.note(grows, 2_000_000)

    assert grows in [budget.largest() for _ in range(2_000)]
