"""A node remembers only so many transaction ids; what is forgotten early is counted and visible."""

import pytest
from partitioned_support import Node

from holtmq.broker.partitioned.log import dedup_budget
from holtmq.broker.partitioned.log.dedup import MAX_ENTRIES
from holtmq.broker.partitioned.log.dedup_budget import DedupBudget, _share, shortened_us

WINDOW_US = 3_600_000_000


def keep(budget: DedupBudget, node: Node) -> int:
    """Run to the end; return the number of steps."""
    return sum(1 for _ in budget.keep(node.queues.values(), int(node.now * 1_000_000)))


def span(node: Node, queue: str) -> int | None:
    found = shortened_us(node.queues[queue].dedup, int(node.now * 1_000_000), WINDOW_US)
    return None if found is None else round(found / 1_000_000)


def ids(count: int) -> list[str]:
    return [f"id-{number}" for number in range(count)]


def test_the_queues_with_the_most_ids_forget_their_oldest_first() -> None:
    node, budget = Node(), DedupBudget(100)
    for name, count in (("large", 120), ("middle", 60), ("small", 20)):
        node.create(name)
        node.push("p", *ids(count), queue=name)

    keep(budget, node)

    assert {name: len(queue.dedup) for name, queue in node.queues.items()} == {
        "large": 40,
        "middle": 40,
        "small": 20,
    }
    assert node.push("p", "id-119", "id-80", queue="large").event is None
    assert node.push("p", "id-79", queue="large").event is not None
    assert budget.ids == 200
    keep(budget, node)
    assert budget.forgotten_early == 80 + 20 + 1


def test_a_shortened_window_is_visible_until_it_is_whole_again() -> None:
    node, budget = Node(), DedupBudget(100)
    node.create("large")
    node.create("small")
    node.push("p", *ids(30), queue="small")
    for _ in range(10):
        node.push("p", *[f"{node.now}-{n}" for n in range(20)], queue="large")
        node.now += 60

    keep(budget, node)

    assert span(node, "small") is None
    # 70 of 200 ids are left: those of the last three minutes, and half of a minute.
    assert span(node, "large") == 4 * 60
    node.now += 3600
    assert span(node, "large") is None


def test_ids_within_the_budget_are_remembered_for_the_whole_window() -> None:
    node, budget = Node(), DedupBudget(100)
    node.create("a")
    node.push("p", *ids(100), queue="a")

    keep(budget, node)

    assert len(node.queues["a"].dedup) == 100
    assert budget.forgotten_early == 0


def test_an_idle_queue_forgets_ids_after_their_window() -> None:
    node, budget = Node(), DedupBudget(1_000)
    node.create("a")
    node.push("p", *ids(100), queue="a")
    node.now += 3601

    keep(budget, node)

    assert len(node.queues["a"].dedup) == 0
    assert budget.forgotten_early == 0


def test_many_ids_are_forgotten_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup_budget, "_AT_ONCE", 7)
    node, budget = Node(), DedupBudget(10)
    node.create("a")
    node.push("p", *ids(100), queue="a")

    assert keep(budget, node) >= 90 // 7
    assert len(node.queues["a"].dedup) == 10


def test_a_push_keeps_its_queue_within_the_share_at_once() -> None:
    node, budget = Node(), DedupBudget(50)
    node.create("a")
    node.push("p", *ids(60), queue="a")
    keep(budget, node)

    node.push("p", *[f"more-{number}" for number in range(40)], queue="a")

    assert len(node.queues["a"].dedup) == 50


@pytest.mark.parametrize(
    ("sizes", "total", "share"),
    [
        ([], 10, MAX_ENTRIES),
        ([5, 5], 10, MAX_ENTRIES),
        ([6, 5], 10, 5),
        ([100, 1, 1], 10, 8),
        ([100] * 50, 10, 1),
        ([100], 0, 1),
    ],
)
def test_shares(sizes: list[int], total: int, share: int) -> None:
    assert _share(sizes, total) == share
