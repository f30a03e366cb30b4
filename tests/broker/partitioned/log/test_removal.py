"""Messages that leave one by one, partitions that leave when they are empty and idle, ids given ahead."""

from random import Random

import pytest
from partitioned_support import Node, ids, node_with

from holtmq.broker.partitioned.commands.idle_partitions import IdleSweep, decide_idle
from holtmq.broker.partitioned.commands.retention import decide_clear, decide_retention, ends_of
from holtmq.broker.partitioned.events import IdsGiven, MessageDeleted
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus, AckVerdict
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.log.message_log import CHUNK_ROWS, NO_PARTITION
from holtmq.broker.partitioned.statistics import group_counts, partition_counts, queue_counts
from snapshots import restore, snapshot

DAY_US = 86_400_000_000


def delete(node: Node, one: str, partition: str = "p") -> None:
    index = node.queue.indexes[partition]
    position = node.queue.find(index, one)
    assert position is not None
    node.commit(node.queue.number, MessageDeleted(index, position))


def reload(node: Node) -> None:
    """What a checkpoint and a start from it do."""
    stored = node.stored[node.queue.number]
    node.queues["q"] = restore(snapshot(node.queue), lambda offset, position: stored[offset])


@pytest.mark.parametrize("gone", ["a", "b", "c", "d"])
def test_a_deleted_message_is_not_delivered_and_the_others_are_in_order(gone: str) -> None:
    node = node_with()
    node.push("p", *"abcd")

    delete(node, gone)

    assert node.queue.find(0, gone) is None
    got = node.pop(batch=10)
    assert ids(got) == [one for one in "abcd" if one != gone]
    assert {outcome.verdict for outcome in node.ack(got)} == {AckVerdict.ACKNOWLEDGED}
    node.push("p", "e")
    assert ids(node.pop(batch=10)) == ["e"]


def test_positions_of_the_others_stay_so_that_readers_by_offset_miss_nothing() -> None:
    node = node_with()
    node.push("p", *"abcd")

    delete(node, "b")

    assert [node.queue.find(0, one) for one in "acd"] == [0, 2, 3]
    delete(node, "a")  # the oldest position is never a hole: the partition starts behind both
    assert node.queue.partitions[0].first == 2
    assert node.queue.log.live == 2


def test_a_batch_reaches_over_holes_and_the_limit_counts_messages() -> None:
    node = node_with()
    node.push("p", *"abcdefg")
    for one in "bcf":
        delete(node, one)

    first = node.pop(batch=3)
    assert ids(first) == ["a", "d", "e"]
    assert all(outcome.lease_released for outcome in node.ack(first))
    assert ids(node.pop(batch=3)) == ["g"]


def test_messages_around_a_hole_are_dead_letters_together() -> None:
    node = node_with()
    node.push("p", *"abcde")
    delete(node, "b")
    delete(node, "c")
    a, d, e = node.pop(batch=3)

    outcomes = node.ack([a, d], AckStatus.DEAD_LETTER, AckStatus.DEAD_LETTER)

    assert [outcome.verdict for outcome in outcomes] == [AckVerdict.FILED, AckVerdict.FILED]
    assert ids(node.pop(batch=3)) == [e.transaction_id]


def test_a_hole_does_not_settle_a_message_before_it_that_nobody_named() -> None:
    node = node_with()
    node.push("p", *"abcd")
    delete(node, "c")
    a, _, d = node.pop(batch=3)

    node.ack([a, d], AckStatus.DEAD_LETTER, AckStatus.DEAD_LETTER)

    assert ids(node.pop(batch=3)) == ["b", "d"]


def test_an_acked_prefix_that_ends_before_a_hole_leaves_only_what_is_left() -> None:
    node = node_with()
    node.push("p", *"abcd")
    delete(node, "c")
    got = node.pop(batch=10)

    node.ack(got[:2])

    node.now += 1000
    assert ids(node.pop(batch=10)) == ["d"]


def test_a_settling_pop_passes_holes() -> None:
    node = node_with()
    node.push("p", *"abcd")
    delete(node, "b")
    delete(node, "d")

    assert ids(node.pop(batch=10, auto_ack=True)) == ["a", "c"]
    assert node.pop(batch=10) == []


def test_deleting_what_a_worker_holds_frees_the_rest() -> None:
    node = node_with()
    node.push("p", *"abc")
    got = node.pop(batch=2)

    delete(node, "b")

    assert node.ack(got[1:])[0].verdict is AckVerdict.NOT_FOUND
    assert node.ack(got[:1])[0].lease_released  # a was the last that an ack could still name
    assert ids(node.pop(batch=10)) == ["c"]


def test_deleting_all_that_a_worker_holds_ends_its_lease() -> None:
    node = node_with()
    node.push("p", *"abc")
    node.pop(batch=2)

    delete(node, "a")
    assert node.pop() == []
    delete(node, "b")

    assert ids(node.pop(batch=10)) == ["c"]


def test_the_retries_of_a_deleted_message_are_not_charged_to_the_next() -> None:
    node = node_with(retry_limit=1, retry_delay_ms=60_000)
    node.push("p", *"ab")
    node.ack(node.pop(), AckStatus.FAILED)
    assert node.pop() == []  # held back

    delete(node, "a")

    got = node.pop()
    assert ids(got) == ["b"]
    assert node.ack(got, AckStatus.FAILED)[0].verdict is AckVerdict.REDELIVERED


def test_deleting_the_newest_lets_a_conflating_group_see_the_one_before() -> None:
    node = node_with()
    node.push("p", *"abc")
    delete(node, "c")

    got = node.pop("g", batch=10, conflates=True)

    assert ids(got) == ["b"]
    assert node.ack(got, group="g")[0].lease_released
    assert node.pop("g", conflates=True) == []


def test_deleting_what_a_conflating_worker_holds_gives_it_the_newest_that_is_left() -> None:
    node = node_with()
    node.push("p", *"abc")
    assert ids(node.pop("g", conflates=True)) == ["c"]

    delete(node, "c")

    assert ids(node.pop("g", conflates=True)) == ["b"]


def test_the_id_of_a_deleted_message_is_free_again_also_after_a_restart() -> None:
    for restart in (lambda _: None, Node.restart, reload):
        node = node_with()
        node.push("p", *"abc")
        delete(node, "b")
        restart(node)

        assert not node.push("p", "b").duplicates
        assert node.push("p", "a").duplicates == {0}
        assert ids(node.pop(batch=10)) == ["a", "c", "b"]


def test_figures_leave_out_what_was_deleted() -> None:
    node = node_with()
    node.push("p", *"abcdef")
    node.ack(node.pop(batch=2))
    for one in "ad":
        delete(node, one)
    node.pop(batch=2)

    counts = partition_counts(node.queue, 0, node.now)
    assert (counts.total, counts.completed, counts.processing, counts.pending) == (4, 1, 2, 1)
    assert queue_counts(node.queue, node.now).total == 4
    group = node.queue.groups[QUEUE_MODE]
    assert group.lag(0) == 3
    node.now += 1000
    node.queue.groups[QUEUE_MODE].advance(node.now)
    assert group_counts(node.queue, group, node.now).ready == 3


def test_delays_and_windows_do_not_look_at_deleted_messages() -> None:
    node = node_with(delayed_processing=10)
    node.push("p", "a")
    node.now += 9
    node.push("p", "b", "c")
    delete(node, "a")
    node.now += 5
    assert node.pop(batch=10) == []
    node.now += 5.1
    assert ids(node.pop(batch=10)) == ["b", "c"]


def test_retention_counts_and_passes_holes() -> None:
    node = node_with(retention_enabled=True, retention_seconds=10)
    node.push("p", *"abcd")
    delete(node, "b")
    node.now += 11
    node.push("p", "e")

    (event,) = decide_retention(node.queue, node.now)
    node.commit(node.queue.number, event)

    assert (node.queue.partitions[0].first, node.queue.log.live) == (4, 1)
    assert ids(node.pop(batch=10)) == ["e"]


def test_what_waited_too_long_is_filed_without_the_deleted() -> None:
    node = node_with(max_wait_seconds=10, dead_letter_queue=True)
    node.push("p", *"abc")
    delete(node, "b")
    node.now += 11

    node.commit(node.queue.number, *decide_retention(node.queue, node.now))

    assert [letter.position for letter in node.queue.dead_letters] == [0, 2]


def test_clearing_counts_messages_not_positions() -> None:
    node = node_with()
    node.push("p", *"abc")
    delete(node, "b")

    event, count = decide_clear(node.queue, ends_of(node.queue), 1_000)
    assert event is not None
    node.commit(node.queue.number, event)

    assert (count, node.queue.log.live) == (2, 0)


def test_rows_of_holes_go_with_the_last_of_their_neighbours() -> None:
    node = node_with(dedup_window_seconds=0)
    node.push("p", *(f"m{n}" for n in range(CHUNK_ROWS + 2)))
    for n in range(1, CHUNK_ROWS):
        node.commit(1, MessageDeleted(0, n))
    node.queue.dedup.floor = CHUNK_ROWS  # none of the ids is remembered any more
    node.queue.log.drop_dead(CHUNK_ROWS)
    assert node.queue.log.created_us(CHUNK_ROWS - 1) > 0  # m0 keeps them

    node.commit(1, MessageDeleted(0, 0))

    assert node.queue.partitions[0].first == CHUNK_ROWS
    assert node.queue.partitions[0].holes is None
    with pytest.raises(IndexError):
        node.queue.log.created_us(1)
    assert ids(node.pop(batch=10)) == [f"m{CHUNK_ROWS}", f"m{CHUNK_ROWS + 1}"]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_deleted_every_group_gets_the_rest_once_in_order(seed: int) -> None:
    dice = Random(seed)
    node = node_with(retention_enabled=True, completed_retention_seconds=5)
    alive: list[str] = []
    seen: dict[str, list[str]] = {"g": [], "h": []}
    deleted: set[str] = set()
    for group in "gh":
        node.pop(group)  # from here on retention waits for both
    for step in range(120):
        match dice.randrange(7):
            case 0 | 1:
                fresh = [f"{step}.{n}" for n in range(dice.randrange(1, 5))]
                node.push("p", *fresh)
                alive += fresh
            case 2 | 3:
                group = dice.choice("gh")
                got = node.pop(group, batch=dice.randrange(1, 6))
                kept = dice.randrange(len(got) + 1)
                if got and kept:
                    node.ack(got[:kept], group=group)
                    seen[group] += ids(got[:kept])
                    node.now += 1000  # the lease over the rest expires
                elif got:
                    node.now += 1000
            case 4:
                there = [one for one in alive if node.queue.indexes and node.queue.find(0, one) is not None]
                if there:
                    one = dice.choice(there)
                    delete(node, one)
                    deleted.add(one)
            case 5:
                events = decide_retention(node.queue, node.now)
                if events:
                    node.commit(1, *events)
            case _:
                dice.choice((Node.restart, reload))(node)
    for group in "gh":
        while got := node.pop(group, batch=3):
            node.ack(got, group=group)
            seen[group] += ids(got)

    for group in "gh":
        assert seen[group] == [one for one in alive if one in set(seen[group])]  # in order, once
        assert set(alive) - set(seen[group]) <= deleted
    assert node.queue.log.live == sum(1 for one in alive if node.queue.find(0, one) is not None)


def emptied(*partitions: str, **options: bool | float | None) -> Node:
    """A node whose partitions have been written, read and trimmed."""
    node = node_with(**{"dedup_window_seconds": 60, **options})
    for name in partitions:
        node.push(name, f"{name}1", f"{name}2")
    while got := node.pop(batch=10, partitions=10):
        node.ack(got)
    event, _ = decide_clear(node.queue, ends_of(node.queue), 1_000)
    assert event is not None
    node.commit(1, event)
    return node


def sweep(node: Node, days: float = 30) -> int:
    """How many partitions went."""
    event = decide_idle(node.queue, node.now, int(days * DAY_US))
    if event is None:
        return 0
    node.commit(1, event)
    return len(event.partitions)


def test_an_empty_partition_goes_when_it_was_idle_for_long_enough() -> None:
    node = emptied("p", "r")
    node.now += 29 * 86_400
    assert sweep(node) == 0
    node.push("r", "r3")
    node.now += 2 * 86_400

    assert sweep(node) == 1

    assert list(node.queue.indexes) == ["r"]
    assert node.queue.partitions[0] is NO_PARTITION
    assert ids(node.pop(batch=10)) == ["r3"]


def test_its_name_starts_anew_with_another_id_and_all_groups_read_it() -> None:
    for restart in (lambda _: None, Node.restart, reload):
        node = emptied("p", "r")
        node.now += 31 * 86_400
        assert sweep(node) == 2
        restart(node)

        node.push("p", "p1", "new")

        assert node.queue.indexes == {"p": 2}
        assert node.queue.partitions[2].first == 0
        assert ids(node.pop(batch=10)) == ["p1", "new"]
        assert node.queue.groups[QUEUE_MODE].members() == 0


def test_a_groups_record_for_a_single_partition_outlives_it_and_holds_for_its_successor() -> None:
    for restart in (lambda _: None, Node.restart, reload):
        node = node_with(dedup_window_seconds=60)
        assert node.pop("g", partition="p", mode="new") == []  # of a group that asks for nothing else
        node.push("p", "a")
        node.ack(node.pop("g", partition="p", mode="new"), group="g")
        event, _ = decide_clear(node.queue, ends_of(node.queue), 1_000)
        assert event is not None
        node.commit(1, event)
        node.now += 31 * 86_400
        assert sweep(node) == 1
        restart(node)

        node.push("p", "b", "c")
        assert node.queue.groups["g"].lag(node.queue.indexes["p"]) == 2  # retention must wait for it
        node.now += 3_600

        assert ids(node.pop("g", 10, partition="p", mode="new")) == ["b", "c"]


def test_a_dead_letter_a_lease_or_recent_work_keeps_a_partition() -> None:
    node = node_with(retry_limit=0, lease_seconds=90 * 86_400.0)
    node.push("letter", "a")
    node.ack(node.pop(), AckStatus.FAILED)
    node.push("held", "b")
    node.pop(partition="held")
    node.push("worked", "c", "d")
    got = node.pop(batch=2, partition="worked")
    node.now += 31 * 86_400
    node.ack(got)
    event, _ = decide_clear(node.queue, ends_of(node.queue), 1_000)
    assert event is not None
    node.commit(1, event)

    assert sweep(node) == 0


def test_a_partition_outlives_the_ids_that_are_remembered() -> None:
    node = emptied("p", dedup_window_seconds=60 * 86_400)
    node.now += 31 * 86_400
    assert sweep(node) == 0
    assert node.push("p", "p1").duplicates == {0}
    node.now += 61 * 86_400
    assert sweep(node) == 1


def test_a_sweep_visits_every_partition_of_every_queue_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.broker.partitioned.commands.idle_partitions.STEP_PARTITIONS", 2)
    node = emptied(*"abcde")
    node.now += 31 * 86_400
    pass_ = IdleSweep(list(node.queues.values()))
    steps = 0
    while (found := pass_.step(node.now, 30 * DAY_US)) is not None:
        steps += 1
        queue, event = found
        assert event is not None
        node.commit(queue.number, event)

    assert (steps, node.queue.indexes) == (3, {})


def test_deleted_partitions_are_in_no_figure_and_no_seek() -> None:
    node = emptied("p")
    node.now += 31 * 86_400
    sweep(node)
    node.push("r", "a")

    assert queue_counts(node.queue, node.now).total == 1
    assert node.queue.groups[QUEUE_MODE].lag(0) == 0
    assert node.queue.find(0, "p1") is None


def test_a_given_id_lasts_as_long_as_its_message_or_its_dead_letter() -> None:
    node = node_with(retry_limit=0)
    node.push("p", *"abc")
    node.commit(1, IdsGiven(((0, "first"), (1, "second"))))
    node.ack(node.pop(), AckStatus.FAILED)
    for restart in (Node.restart, reload):
        restart(node)
        assert [node.queue.id_of(offset, 5) for offset in (0, 1)] == ["first", "second"]

    event, _ = decide_clear(node.queue, ends_of(node.queue), 1_000)
    assert event is not None
    node.commit(1, event)

    assert node.queue.id_of(0, 5) == "first"  # its dead letter is still there
    assert node.queue.id_of(1, 5) != "second"
