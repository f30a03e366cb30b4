"""Messages are found by their ids, also those that have left the dedup window, and in few comparisons."""

from collections import deque
from collections.abc import Iterator
from random import Random

import pytest
from partitioned_support import Node, ids, node_with

from holtmq.broker.partitioned import id_search
from holtmq.broker.partitioned.commands.looking_up import looking_up
from holtmq.broker.partitioned.commands.pushing import decide_push
from holtmq.broker.partitioned.commands.retention import decide_clear, ends_of
from holtmq.broker.partitioned.events import MessageDeleted, QueueConfigured
from holtmq.broker.partitioned.groups.acknowledgment import Ack
from holtmq.broker.partitioned.id_search import IdSearch
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import QueueConfig


def outward(middle: int, count: int, most: int) -> Iterator[int]:
    yield from range(middle, min(count, middle + most))
    yield from range(middle - 1, max(-1, middle - 1 - most), -1)


def found_one_by_one(node: Node, partition: int, wanted: str, near: int | None, most: int) -> int | None:
    """What the search is to find: compares all messages around the cursor, the nearest first."""
    queue = node.queue
    recent = IdSearch(queue, partition).find_recent(wanted)
    if recent is not None:
        return recent
    where = queue.partitions[partition]
    middle = len(where.offsets) if near is None else min(max(near - where.first, 0), len(where.offsets))
    for row in outward(middle, len(where.offsets), most):
        offset = where.offsets[row]
        is_there = queue.log.partition(offset) == partition
        if is_there and node.stored[queue.number][offset] == wanted:
            return where.first + row
    return None


@pytest.mark.parametrize("seed", range(40))
def test_a_search_finds_what_a_comparison_with_each_message_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = Random(seed)
    most = dice.choice([3, 20, 4_096])
    monkeypatch.setattr(id_search, "SCAN_MAX", most)
    node = node_with(dedup_window_seconds=1)
    for _ in range(dice.randrange(3, 30)):
        for name in dice.sample(["p", "r", "s"], k=dice.choice([1, 1, 3])):
            node.push(name, *(f"{dice.randrange(60)}" for _ in range(dice.choice([1, 5, 40]))))
        node.now += dice.choice([0.0, 0.5, 10.0])
        for index, where in enumerate(node.queue.partitions):
            if dice.random() < 0.2 and where.count(where.first) > 1:
                position = where.live_from(dice.randrange(where.first, where.end))
                if position < where.end:
                    node.commit(node.queue.number, MessageDeleted(index, position))
    node.now += 10
    node.push("p", "last")  # what is older leaves the dedup window

    for index, where in enumerate(node.queue.partitions):
        for near in (None, where.first, where.end, dice.randrange(where.first, where.end + 1)):
            search = IdSearch(node.queue, index, near)
            for one in [str(number) for number in range(61)]:
                assert search.find(one) == found_one_by_one(node, index, one, near, most), (one, near)


def deep() -> Node:
    """Messages that have left the dedup window."""
    node = node_with(dedup_window_seconds=1)
    node.push("p", *(f"m{number}" for number in range(300)))
    for number in range(20):  # old ids expire in steps
        node.now += 10
        node.push("p", f"later {number}")
    assert all(IdSearch(node.queue, 0).find_recent(f"m{number}") is None for number in range(300))
    return node


def test_all_ids_of_a_request_are_found_with_one_walk_over_the_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = deep()
    walks: list[int] = []
    look_around = IdSearch._look_around

    def counted(search: IdSearch) -> dict[int, int]:
        walks.append(1)
        return look_around(search)

    monkeypatch.setattr(IdSearch, "_look_around", counted)
    acks = [Ack(0, f"m{number}") for number in range(200)] + [Ack(0, f"unknown {n}") for n in range(200)]

    with looking_up() as look_up:
        steps = sum(1 for _ in look_up.acknowledged(node.queue, "g", acks, node.now))
        found = [node.queue.find(0, ack.transaction_id, 0) for ack in acks]

    assert steps == 400
    assert found == [*range(200), *[None] * 200]
    assert len(walks) == 1
    assert node.queue.looked_up is None


def test_what_happens_between_the_search_and_the_settlement_counts() -> None:
    node = deep()
    wanted = [Ack(0, one) for one in ("m3", "m100", "m200", "unknown")]

    with looking_up() as look_up:
        deque(look_up.acknowledged(node.queue, "g", wanted, node.now), maxlen=0)
        node.commit(node.queue.number, MessageDeleted(0, 100))
        node.push("p", "unknown")
        found = [node.queue.find(0, ack.transaction_id, 0) for ack in wanted]

    assert found == [3, None, 200, 320]


def test_messages_that_were_removed_during_the_search_are_not_found() -> None:
    node = deep()
    acks = [Ack(0, f"m{number}") for number in range(10)]

    with looking_up() as look_up:
        steps = look_up.acknowledged(node.queue, "g", acks, node.now)
        next(steps)
        trimmed, _ = decide_clear(node.queue, ends_of(node.queue), 1_000)
        assert trimmed is not None
        node.commit(node.queue.number, trimmed)
        deque(steps, maxlen=0)
        assert [node.queue.find(0, ack.transaction_id, 0) for ack in acks] == [None] * 10


def test_ids_that_a_lease_knows_are_not_searched_for() -> None:
    node = deep()
    batch = node.pop("g", batch=10)
    acks = [Ack(0, one) for one in ids(batch)]

    with looking_up() as look_up:
        assert list(look_up.acknowledged(node.queue, "g", acks, node.now)) == []
        assert node.queue.looked_up is None


def test_two_requests_at_a_time_do_not_disturb_each_other() -> None:
    node = deep()

    with looking_up() as first:
        deque(first.acknowledged(node.queue, "g", [Ack(0, "m1"), Ack(0, "m2")], node.now), maxlen=0)
        with looking_up() as second:
            deque(second.acknowledged(node.queue, "h", [Ack(0, "m2")], node.now), maxlen=0)
            assert node.queue.find(0, "m2", 0) == 2
        assert [node.queue.find(0, one, 0) for one in ("m1", "m2")] == [1, 2]

    assert node.queue.looked_up is None


def test_ids_of_a_push_that_were_looked_up_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_with()
    node.push("p", "a", "b", "c", "d")
    items = [("p", "a"), ("p", "new"), ("p", "c"), ("p", "d"), ("r", "a")]
    with looking_up() as look_up:
        assert sum(1 for _ in look_up.pushed_before(node.queue, items)) == len(items)
        node.commit(node.queue.number, MessageDeleted(0, 3))
        read: list[int] = []

        def carries(_: PartitionedQueue, offset: int, __: str) -> bool:
            read.append(offset)
            return True

        monkeypatch.setattr(PartitionedQueue, "carries", carries)
        again = decide_push(node.queue, items, node.now)

    assert again.offsets == [0, 4, 2, 5, 6]  # the deleted one can be pushed again
    assert again.duplicates == {0, 2}
    assert read == []
    assert node.queue.looked_up is None


def test_a_message_that_leaves_after_it_was_looked_up_is_verified_as_before() -> None:
    node = node_with()
    node.push("p", "a", "b")
    with looking_up() as look_up:
        deque(look_up.pushed_before(node.queue, [("p", "a")]), maxlen=0)
        trimmed, _ = decide_clear(node.queue, ends_of(node.queue), 1_000)
        assert trimmed is not None
        node.commit(node.queue.number, trimmed)

        again = decide_push(node.queue, [("p", "a")], node.now)

    assert again.duplicates == {0}  # inside the window, an id is remembered longer than its message


def test_messages_whose_ids_have_one_fingerprint_are_told_apart_beyond_the_window() -> None:
    node = Node()
    node.stored[1] = []
    node.queues["q"] = PartitionedQueue(
        1,
        QueueConfigured("q", "", "", QueueConfig(dedup_window_seconds=1), 0),
        lambda offset, _: node.stored[1][offset],
        fingerprint=lambda partition, transaction_id: 7,
    )
    node.push("p", "a", "b", "c")
    for number in range(20):
        node.now += 10
        node.push("p", f"later {number}")

    search = IdSearch(node.queue, 0, 0)

    assert [search.find(one) for one in ("c", "a", "b", "later 3", "none")] == [2, 0, 1, 6, None]
