"""What a queue lets go of, and what stays: age, completed age, waiting too long, size."""

import pytest
from partitioned_support import Node, ids, node_with

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.commands.retention import decide_clear, decide_retention, ends_of
from holtmq.broker.partitioned.events import MessageDeleted
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.log.message_log import CHUNK_ROWS


def run(node: Node) -> int:
    """One step; how many events it took."""
    events = decide_retention(node.queue, node.now)
    if events:
        node.commit(node.queue.number, *events)
    return len(events)


def stored(node: Node) -> list[str]:
    return [node.stored[1][offset] for offset in node.queue.log.live_offsets(0, 1 << 40)]


def test_messages_older_than_retention_go_whether_read_or_not() -> None:
    node = node_with(retention_enabled=True, retention_seconds=10)
    node.push("p", "a")
    node.push("r", "b")
    node.now += 5
    node.push("p", "c")
    node.now += 5.5

    assert run(node) == 1
    assert stored(node) == ["c"]
    assert run(node) == 0
    assert ids(node.pop(batch=5, partitions=5)) == ["c"]


def test_retention_off_keeps_everything() -> None:
    node = node_with(retention_seconds=10, completed_retention_seconds=1)
    node.push("p", "a")
    node.now += 1000

    assert run(node) == 0


def test_completed_retention_waits_for_the_slowest_group_on_the_partition() -> None:
    node = node_with(retention_enabled=True, completed_retention_seconds=10)
    node.push("p", "a", "b", "c")
    node.ack(node.pop("fast", batch=3), group="fast")
    node.ack(node.pop("slow", batch=1), group="slow")
    node.now += 11

    run(node)

    assert stored(node) == ["b", "c"]
    node.ack(node.pop("slow", batch=2), group="slow")
    run(node)
    assert stored(node) == []


def test_a_group_that_only_subscribed_counts_as_not_having_read() -> None:
    node = node_with(retention_enabled=True, completed_retention_seconds=10)
    node.push("p", "a")
    node.pop("idle", queue="q", partition="nowhere")
    node.ack(node.pop("fast"), group="fast")
    node.pop("idle", mode="all")
    node.now += 11
    node.restart()

    run(node)

    assert stored(node) == ["a"]


def test_completed_retention_without_any_group_keeps_everything() -> None:
    node = node_with(retention_enabled=True, completed_retention_seconds=1)
    node.push("p", "a")
    node.now += 100

    assert run(node) == 0


def test_what_waited_too_long_and_nobody_read_is_deleted() -> None:
    node = node_with(max_wait_seconds=10)
    node.push("p", "a")
    node.now += 10.5
    node.push("p", "b")

    run(node)

    assert stored(node) == ["b"]
    assert ids(node.pop(batch=5)) == ["b"]


def test_what_waited_too_long_for_one_group_stays_for_the_one_that_read_it() -> None:
    node = node_with(max_wait_seconds=10)
    node.push("p", "a", "b")
    node.ack(node.pop("fast", batch=2), group="fast")
    node.pop("slow", partition="nowhere", mode="all")
    node.ack(node.pop("slow"), AckStatus.RETRY, group="slow")
    node.now += 11

    run(node)

    assert node.pop("slow", batch=5) == []
    assert stored(node) == ["a", "b"]
    assert len(node.queue.dead_letters) == 0


def test_what_waited_too_long_is_filed_for_each_group_when_asked_for() -> None:
    node = node_with(max_wait_seconds=10, dead_letter_queue=True)
    node.push("p", "a", "b")
    for group in ("g", "h"):
        node.pop(group, partition="nowhere", mode="all")
        node.ack(node.pop(group), AckStatus.RETRY, group=group)
    node.now += 11

    run(node)

    letters = [(letter.group, letter.position, letter.error) for letter in node.queue.dead_letters]
    assert letters == [(g, n, "Maximum wait time exceeded") for g in ("g", "h") for n in (0, 1)]
    assert node.pop("g", batch=5) == []
    assert run(node) == 0


def test_a_deleted_message_does_not_become_a_dead_letter_when_it_is_overdue() -> None:
    """Its body may be gone already: the letter would refer to a record that no file holds."""
    node = node_with(max_wait_seconds=10, dead_letter_queue=True)
    node.push("p", "a", "b", "c")
    node.pop("g", partition="nowhere", mode="all")
    node.ack(node.pop("g"), AckStatus.RETRY, group="g")
    node.commit(node.queue.number, MessageDeleted(0, 1))
    node.now += 11

    run(node)

    assert [letter.position for letter in node.queue.dead_letters] == [0, 2]


def test_with_no_reader_at_all_the_overdue_are_filed_for_the_nameless() -> None:
    node = node_with(max_wait_seconds=10, dead_letter_queue=True)
    node.push("p", "a")
    node.push("r", "b")
    node.now += 11

    run(node)
    node.restart()

    assert [letter.group for letter in node.queue.dead_letters] == [QUEUE_MODE] * 2
    assert node.pop(batch=5, partitions=5) == []


def test_a_leased_message_is_not_waiting() -> None:
    node = node_with(max_wait_seconds=10, lease_seconds=100)
    node.push("p", "a")
    batch = node.pop()
    node.now += 50

    run(node)

    assert node.ack(batch)[0].success


def test_a_cursor_in_the_deleted_range_goes_on_with_the_oldest_left() -> None:
    node = node_with(retention_enabled=True, retention_seconds=10)
    node.push("p", "a", "b", "c")
    node.ack(node.pop())
    node.now += 11
    node.push("p", "d")
    run(node)
    node.restart()

    assert ids(node.pop(batch=5)) == ["d"]
    assert node.queue.partitions[0].first == 3


def test_a_dead_letter_outlives_its_message() -> None:
    node = node_with(retention_enabled=True, retention_seconds=10, retry_limit=0)
    node.push("p", "a")
    node.ack(node.pop(), AckStatus.FAILED)
    node.now += 11
    run(node)

    (letter,) = node.queue.dead_letters
    assert stored(node) == []
    assert list(node.queue.live_positions()) == [letter.journal_position]


def test_a_step_is_bounded_and_the_next_one_goes_on() -> None:
    node = node_with(retention_enabled=True, retention_seconds=10)
    for number in range(20):
        node.push(f"p{number}", *[f"{number}-{n}" for n in range(10)])
    node.now += 11

    events = decide_retention(node.queue, node.now, most_partitions=5, most=1000)
    node.commit(1, *events)
    assert node.queue.log.live == 150
    events = decide_retention(node.queue, node.now, most_partitions=100, most=25)
    node.commit(1, *events)
    assert node.queue.log.live == 125
    for _ in range(3):
        run(node)
    assert node.queue.log.live == 0


def test_memory_of_trimmed_messages_is_freed_once_dedup_forgets_them() -> None:
    node = node_with(retention_enabled=True, retention_seconds=10, dedup_window_seconds=20)
    for number in range(3 * CHUNK_ROWS // 1024):
        node.push("p", *[f"{number}-{n}" for n in range(1024)])
    node.now += 15
    while run(node):
        pass
    assert len(node.queue.log.capture().chunks) == 3

    node.now += 10
    for number in range(300):
        node.push("p", *[f"later-{number}-{n}" for n in range(50)])

    assert sum(1 for chunk in node.queue.log.capture().chunks if chunk) < 4
    assert node.queue.log.first_offset == 3 * CHUNK_ROWS


def test_clearing_takes_one_partition_or_all() -> None:
    node = node_with()
    node.push("p", "a", "b")
    node.push("r", "c")

    event, count = decide_clear(node.queue, ends_of(node.queue, "p"), 1_000)
    assert event is not None
    node.commit(1, event)

    assert (count, stored(node)) == (2, ["c"])
    assert decide_clear(node.queue, ends_of(node.queue, "nowhere"), 1_000) == (None, 0)


def test_clearing_goes_in_steps_up_to_where_the_partitions_ended() -> None:
    node = node_with()
    node.push("p", "a", "b", "c")
    node.push("r", "d", "e")
    ends = ends_of(node.queue)

    counts = []
    while ends:
        event, count = decide_clear(node.queue, ends, 2)
        counts.append(count)
        if event is not None:
            node.commit(1, event)
        if len(counts) == 1:
            node.push("p", "f")
            node.push("r", "g")

    assert counts == [2, 1, 2]
    assert stored(node) == ["f", "g"]


def test_a_full_queue_refuses_a_push_whole_until_there_is_room() -> None:
    node = node_with(max_size=3)
    node.push("p", "a", "b")

    with pytest.raises(LimitReached, match="full"):
        node.push("p", "c", "d")
    assert node.queue.log.next_offset == 2
    node.push("p", "c")
    node.ack(node.pop(batch=2))

    node.push("p", "d", "e")
    with pytest.raises(LimitReached):
        node.push("p", "f")


def test_duplicates_need_no_room() -> None:
    node = node_with(max_size=2)
    node.push("p", "a", "b")

    assert node.push("p", "a", "b").duplicates == {0, 1}


def test_a_second_group_makes_finished_messages_wait_again() -> None:
    node = node_with(max_size=2)
    node.push("p", "a", "b")
    node.ack(node.pop("g", batch=2), group="g")
    node.push("p", "c")
    node.pop("h", mode="all")

    with pytest.raises(LimitReached):
        node.push("p", "d")
