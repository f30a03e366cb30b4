"""Statistics of a partitioned queue: per queue, partition, group and message.

Owns: what "pending", "processing" and "completed" mean when several groups read one partition.
Must not touch: state. Costs O(1) for one partition or message, O(partitions) for the sums. Sums can be
computed in steps; the queue may change between two steps.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from holtmq.broker.partitioned.groups.group import QUEUE_MODE, Group
from holtmq.broker.partitioned.log.message_log import GONE, NO_PARTITION
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.steps import Steps, finish


class MessageState(Enum):
    """The state of a message over all groups, for operators."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Counts:
    """``total`` counts stored messages; pending, processing and completed add up to it."""

    total: int = 0
    pending: int = 0
    processing: int = 0
    completed: int = 0
    dead_letter: int = 0


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group's progress in one partition."""

    partition: int
    cursor: int
    lag: int
    retry_count: int
    consumed: int
    last_consumed_us: int  # 0: never
    oldest_us: int | None  # creation time of the oldest unsettled message
    lease_id: str | None
    lease_size: int
    lease_expires_at: float | None


@dataclass(frozen=True, slots=True)
class GroupCounts:
    members: int  # partitions with a cursor of its own
    lag: int
    processing: int
    ready: int  # messages claimable now
    partitions_lagging: int
    partitions_ready: int
    oldest_us: int | None
    consumed: int


def partition_counts(queue: PartitionedQueue, index: int, now: float, dead_letters: int = 0) -> Counts:
    """Completed: settled by every named group, or by ``QUEUE_MODE`` if there is no named group."""
    where = queue.partitions[index]
    settled = settled_before(queue, index)
    processing = 0
    for group in queue.groups.values():
        lease = group.leases.lease(index, now)
        if lease is not None:
            start = max(lease.first, settled)
            processing = max(processing, where.count(start, max(lease.end, start)))
    total = where.count(where.first)
    completed = where.count(where.first, settled)
    return Counts(total, total - completed - processing, processing, completed, dead_letters)


def queue_counts(queue: PartitionedQueue, now: float) -> Counts:
    return finish(count_queue(queue, now))


def count_queue(queue: PartitionedQueue, now: float) -> Steps[Counts]:
    """``queue_counts`` in steps."""
    total = pending = processing = completed = 0
    for index in list(queue.indexes.values()):
        yield
        if queue.partitions[index] is NO_PARTITION:
            continue  # deleted since the first step
        counts = partition_counts(queue, index, now)
        total += counts.total
        pending += counts.pending
        processing += counts.processing
        completed += counts.completed
    return Counts(total, pending, processing, completed, len(queue.dead_letters))


def dead_letters_by_partition(queue: PartitionedQueue) -> Counter[int]:
    return Counter(letter.partition for letter in queue.dead_letters)


def settled_before(queue: PartitionedQueue, index: int) -> int:
    """The first position that is not completed (see ``partition_counts``)."""
    named: list[int] = []
    nameless: int | None = None
    for group in queue.groups.values():
        cursor = group.cursor(index)
        if group.name == QUEUE_MODE:
            nameless = cursor
        elif cursor is not None:
            named.append(cursor)
    if named:
        return min(named)
    return queue.partitions[index].first if nameless is None else nameless


def message_state(queue: PartitionedQueue, offset: int, now: float) -> MessageState | None:
    """None when the message is not stored."""
    index = queue.log.partition(offset)
    if index == GONE:
        return None
    if queue.dead_letters.of_message(offset):
        return MessageState.DEAD_LETTER
    if queue.partitions[index].position_of(offset) < settled_before(queue, index):
        return MessageState.COMPLETED
    held = any(group.leases.lease(index, now) is not None for group in queue.groups.values())
    return MessageState.PROCESSING if held else MessageState.PENDING


def group_partition(queue: PartitionedQueue, group: Group, index: int, now: float) -> GroupPartition | None:
    """None when the group does not read this partition."""
    cursor = group.cursor(index)
    if cursor is None:
        return None
    where, leases = queue.partitions[index], group.leases
    own = leases.cursor(index) is not None
    lease = leases.lease(index, now)
    lag, head = where.count(cursor), where.live_from(cursor)
    return GroupPartition(
        partition=index,
        cursor=cursor,
        lag=lag,
        retry_count=leases.retries.get(index, 0),
        consumed=leases.consumed[index] if own else 0,
        last_consumed_us=leases.settled_at[index] if own else 0,
        oldest_us=queue.log.created_us(where.offsets[head - where.first]) if lag else None,
        lease_id=None if lease is None else lease.id,
        lease_size=0 if lease is None else lease.size,
        lease_expires_at=None if lease is None else lease.expires_at,
    )


def group_partitions(queue: PartitionedQueue, group: Group, now: float) -> Iterator[GroupPartition]:
    """One by one; partitions may be created and deleted meanwhile."""
    for index in list(queue.indexes.values()):
        if queue.partitions[index] is NO_PARTITION:
            continue
        place = group_partition(queue, group, index, now)
        if place is not None:
            yield place


def group_counts(queue: PartitionedQueue, group: Group, now: float) -> GroupCounts:
    return finish(count_group(queue, group, now))


def count_group(queue: PartitionedQueue, group: Group, now: float) -> Steps[GroupCounts]:
    """``group_counts`` in steps."""
    lag = ready = lagging = claimable = 0
    oldest_us: int | None = None
    for index in range(len(queue.partitions)):
        yield
        behind = group.lag(index)
        if not behind:
            continue
        lag += behind
        lagging += 1
        where = queue.partitions[index]
        head = where.live_from(group.cursor(index) or 0)
        head_us = queue.log.created_us(where.offsets[head - where.first])
        oldest_us = head_us if oldest_us is None else min(oldest_us, head_us)
        span = group.visible(index, now, queue.config)
        if span is not None:
            claimable += 1
            ready += where.count(*span)
    processing = sum(lease.size for lease in group.leases.live(now))
    consumed = sum(group.leases.consumed)
    return GroupCounts(group.members(), lag, processing, ready, lagging, claimable, oldest_us, consumed)


def count_lag(queue: PartitionedQueue, group: Group) -> Steps[tuple[int, int | None]]:
    """The group's unsettled messages, and when the oldest was created; in steps of a partition."""
    lag, oldest_us = 0, None
    for index in range(len(queue.partitions)):
        cursor = group.cursor(index)
        where = queue.partitions[index]
        behind = 0 if cursor is None else where.count(cursor)
        if behind:
            lag += behind
            head = where.live_from(cursor or 0)
            head_us = queue.log.created_us(where.offsets[head - where.first])
            oldest_us = head_us if oldest_us is None else min(oldest_us, head_us)
        yield
    return lag, oldest_us
