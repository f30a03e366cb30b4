"""A queue with a limit: counts in steps end as counts in one go, and meanwhile no limit is exceeded."""

from random import Random

import pytest
from partitioned_support import Node, node_with

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned import room
from holtmq.broker.partitioned.commands.pushing import has_room, room_left
from holtmq.broker.partitioned.events import MessageDeleted

LIMIT = 40


def unsettled(node: Node) -> int:
    """The messages that some group has not settled; without groups, all."""
    queue, total = node.queue, 0
    if not queue.groups:
        return queue.log.live
    for index, where in enumerate(queue.partitions):
        cursors = [c for group in queue.groups.values() if (c := group.cursor(index)) is not None]
        total += where.count(min(cursors, default=where.first))
    return total


def settle(node: Node, dice: Random) -> None:
    group = dice.choice("gh")
    batch = node.pop(group, batch=dice.choice([1, 5]), partitions=dice.choice([1, 3]))
    if batch:
        node.ack(batch, group=group)


@pytest.mark.parametrize("seed", range(60))
def test_counts_in_steps_allow_what_counts_in_one_go_allow(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_AT_ONCE", Random(seed).choice([0, 2, 7]))
    dice = Random(seed)
    node = node_with(max_size=LIMIT, dedup_window_seconds=0)
    for name in "gh":  # a group that joins later makes more messages unsettled than were counted
        node.pop(name, mode="all")
    for number in range(120):
        choice = dice.random()
        if choice < 0.5:
            count = dice.choice([1, 2, 9])
            before = unsettled(node)
            try:
                node.push(dice.choice("abcdefgh"), *(f"{number}-{each}" for each in range(count)))
                assert before + count <= LIMIT
            except LimitReached:
                if before + count <= LIMIT:  # the count is not complete
                    for _ in range(20):
                        has_room(node.queue, count)
                    assert has_room(node.queue, count)
        elif choice < 0.9:
            settle(node, dice)
        elif node.queue.partitions:
            index = dice.randrange(len(node.queue.partitions))
            where = node.queue.partitions[index]
            if where.count(where.first) > 1:
                node.commit(node.queue.number, MessageDeleted(index, where.live_from(where.first)))
        assert unsettled(node) <= LIMIT


def test_a_limit_that_is_new_holds_as_soon_as_the_messages_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "_AT_ONCE", 2)
    node = node_with(max_size=5)
    node.pop("g", mode="all")
    for name in "abcdefgh":
        node.queue._room = None  # as after a change of the options
        node.push(name, name)

    asked = 0
    while has_room(node.queue, 1):
        asked += 1
        assert asked < 10
    with pytest.raises(LimitReached):
        node.push("a", "one more")
    while batch := node.pop("g", partitions=8, batch=8):
        node.ack(batch, group="g")
    for _ in range(10):
        has_room(node.queue, 1)
    node.push("a", "one more")


def test_a_group_that_joins_late_makes_a_queue_full_that_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_AT_ONCE", 2)
    node = node_with(max_size=10)
    node.pop("g", mode="all")
    for name in "abcdefgh":
        node.push(name, name)
    node.ack(node.pop("g", partitions=8, batch=8), group="g")
    assert unsettled(node) == 0

    node.pop("late", mode="all")
    for _ in range(10):
        has_room(node.queue, 1)

    assert unsettled(node) == 8
    assert room_left(node.queue) == 2


def test_after_a_restart_the_count_is_complete() -> None:
    node = node_with(max_size=3)
    node.push("a", "1", "2", "3")
    node.restart()

    counted = node.queue.room
    assert counted is not None
    counted.count_all(node.queue)
    assert not has_room(node.queue, 1)
