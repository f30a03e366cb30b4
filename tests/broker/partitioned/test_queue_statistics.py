"""Figures per queue, partition, group and message, with one group and with several."""

from partitioned_support import Node, node_with

from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.statistics import (
    Counts,
    MessageState,
    dead_letters_by_partition,
    group_counts,
    group_partitions,
    message_state,
    partition_counts,
    queue_counts,
)


def busy() -> Node:
    """Partition p: one completed, two processing, one pending. Partition r: one dead letter, one pending."""
    node = node_with()
    node.push("p", "a", "b", "c", "d")
    node.now += 1
    node.push("r", "e", "f")
    node.ack(node.pop(partition="p"))
    node.ack(node.pop(partition="r"), AckStatus.DEAD_LETTER)
    node.pop(batch=2, partition="p")
    return node


def test_a_queue_is_counted_by_partition_and_in_sum() -> None:
    node = busy()

    assert partition_counts(node.queue, 0, node.now) == Counts(4, 1, 2, 1, 0)
    assert partition_counts(node.queue, 1, node.now, 1) == Counts(2, 1, 0, 1, 1)
    assert queue_counts(node.queue, node.now) == Counts(6, 2, 2, 2, 1)
    assert dead_letters_by_partition(node.queue) == {1: 1}


def test_expired_leases_are_not_processing() -> None:
    node = busy()
    node.now += 300

    assert queue_counts(node.queue, node.now) == Counts(6, 4, 0, 2, 1)


def test_with_named_groups_completed_means_passed_by_all_of_them() -> None:
    node = busy()
    node.now += 300
    node.ack(node.pop("g", batch=3, partition="p"), group="g")
    assert partition_counts(node.queue, 0, node.now) == Counts(4, 1, 0, 3, 0)

    node.ack(node.pop("h", batch=2, partition="p"), group="h")
    assert partition_counts(node.queue, 0, node.now) == Counts(4, 2, 0, 2, 0)


def test_a_message_has_one_state() -> None:
    node = busy()

    assert [message_state(node.queue, offset, node.now) for offset in range(6)] == [
        MessageState.COMPLETED,
        MessageState.PROCESSING,
        MessageState.PROCESSING,
        MessageState.PROCESSING,  # its partition is held: it cannot be had
        MessageState.DEAD_LETTER,
        MessageState.PENDING,
    ]
    assert message_state(node.queue, 99, node.now) is None


def test_a_group_is_counted_with_its_lag_and_what_it_could_have_now() -> None:
    node = busy()
    counts = group_counts(node.queue, node.queue.groups["__QUEUE_MODE__"], node.now)

    assert (counts.members, counts.lag, counts.processing) == (2, 4, 2)
    assert (counts.ready, counts.partitions_lagging, counts.partitions_ready) == (1, 2, 1)
    assert counts.oldest_us == node.queue.log.created_us(1)
    assert counts.consumed == 2


def test_a_groups_places_show_cursor_lease_and_time() -> None:
    node = busy()
    held, free = group_partitions(node.queue, node.queue.groups["__QUEUE_MODE__"], node.now)

    assert (held.cursor, held.lag, held.lease_size, held.lease_id is not None) == (1, 3, 2, True)
    assert (free.cursor, free.lag, free.lease_id, free.consumed) == (1, 1, None, 1)
    assert free.last_consumed_us == int(node.now * 1e6)
