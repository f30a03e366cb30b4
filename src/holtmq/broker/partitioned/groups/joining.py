"""How a group joins a queue, seeks, has its starts moved, and is deleted.

Owns: when a subscription record is created and how it becomes a start on a queue. Must not touch: state
(queue and subscriptions apply the events), clocks.
"""

from collections.abc import Generator
from dataclasses import dataclass

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.events import (
    GroupDeleted,
    GroupStarted,
    Sought,
    Subscribed,
    SubscriptionMoved,
    SubscriptionsForgotten,
)
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.groups.subscriptions import (
    Scope,
    StartMode,
    StartRequest,
    Subscription,
    Subscriptions,
)
from holtmq.broker.partitioned.log.message_log import NO_PARTITION
from holtmq.broker.partitioned.queue import PartitionedQueue


def decide_subscription(
    subscriptions: Subscriptions,
    queue: PartitionedQueue | None,
    group: str,
    scope: Scope,
    request: StartRequest,
    now: float,
    lookback: float,
) -> Subscribed | None:
    """The record that a pop of ``scope`` creates, even if it finds nothing; None when it creates none.

    ``queue`` is the one the scope names, if it exists. A group that reads it already but has no record gets
    one that starts at the oldest message, whatever this pop requests.
    """
    if group == QUEUE_MODE:
        return None
    where = scope if queue is None else Scope(queue.name, scope.partition, queue.namespace, queue.task)
    wider = subscriptions.lookup(group, where)
    if wider is not None and not request.explicit:
        return None
    reader = None if queue is None else queue.groups.get(group)
    if wider is None and reader is not None and reader.start_us is not None:
        request = StartRequest(StartMode.ALL)
    return subscriptions.decide(group, scope, request, now, lookback)


def decide_join(
    subscriptions: Subscriptions,
    queue: PartitionedQueue,
    group: str,
    *,
    partition: str = "",
    made: Subscribed | None = None,
    conflates: bool = False,
) -> GroupStarted | None:
    """The start a pop gives its group on a queue; None when it has one. Call once per queue and pop.

    ``made`` is the record that this pop has just created and applied: a record for the queue or partition
    replaces a start that came from a wider one.
    """
    reader = queue.groups.get(group)
    fresh = made is not None and made.queue == queue.name
    if reader is not None and not fresh:
        # A group that popped only single partitions has no start for the others yet.
        started = partition in reader.partition_starts if partition else False
        if started or reader.start_us is not None:
            return None
    record = subscriptions.lookup(group, Scope(queue.name, partition, queue.namespace, queue.task))
    start_us = 0 if group == QUEUE_MODE or record is None else _start_us(queue, record, made is not None)
    number = queue.next_group if reader is None else reader.number
    only = partition if partition and group != QUEUE_MODE else None
    return GroupStarted(group, number, start_us, only, conflates if reader is None else reader.conflates)


def _start_us(queue: PartitionedQueue, record: Subscription, just_made: bool) -> int:
    if record.mode is not StartMode.NEW:
        return record.timestamp_us
    after_newest = queue.log.last_created_us + 1
    if just_made and record.created_us == record.timestamp_us:
        return after_newest  # no look-back: only later pushes, even if the clock was set back
    return min(record.timestamp_us, after_newest)


@dataclass(frozen=True, slots=True)
class SeekDecision:
    events: tuple[GroupStarted | Sought, ...]
    offset: int
    partitions: int  # how many it moves


def decide_seek(
    queue: PartitionedQueue,
    group: str,
    timestamp_us: int | None,
    partition: str | None = None,
    *,
    offset: int | None = None,
) -> SeekDecision:
    """Continue from the first message at or after a time, or with None after the newest message.

    ``offset``: from this offset of the queue instead.
    """
    index: int | None = None
    if partition is not None:
        index = queue.indexes.get(partition)
        if index is None:
            raise NotFound(f"partition {partition} of queue {queue.name} does not exist")
    elif not queue.indexes:
        raise NotFound(f"queue {queue.name} has no partitions")
    reader = queue.groups.get(group)
    number = queue.next_group if reader is None else reader.number
    if offset is None:
        offset = queue.log.visible_end if timestamp_us is None else queue.log.offset_at(timestamp_us)
    offset = min(offset, queue.log.visible_end)
    sought = Sought(number, offset, index)
    count = 1 if index is not None else len(queue.indexes)
    if reader is None:
        return SeekDecision((GroupStarted(group, number, 0), sought), offset, count)
    return SeekDecision((sought,), offset, count)


@dataclass(slots=True)
class SeekEffect:
    """What a seek would do, in messages."""

    skipped: int = 0  # not read yet, and never will be
    repeated: int = 0  # read already, and delivered again
    partitions: int = 0
    leases: int = 0  # that end


def count_seek(
    queue: PartitionedQueue, group: str, decision: SeekDecision, now: float
) -> Generator[None, None, SeekEffect]:
    """Count, in steps, what a decided seek would do."""
    effect, reader = SeekEffect(), queue.groups.get(group)
    chosen = decision.events[-1].partition if isinstance(decision.events[-1], Sought) else None
    for index in range(len(queue.partitions)) if chosen is None else (chosen,):
        yield
        where = queue.partitions[index]
        if where is NO_PARTITION:
            continue
        there = where.position_of(decision.offset)
        here = None if reader is None else reader.cursor(index)
        here = where.first if here is None else max(here, where.first)
        if there > here:
            effect.skipped += where.count(here, there)
        elif there < here:
            effect.repeated += where.count(there, here)
        effect.partitions += 1
        effect.leases += reader is not None and reader.leases.lease(index, now) is not None
    return effect


def decide_group_deletion(queue: PartitionedQueue, group: str) -> tuple[GroupDeleted | None, int]:
    """Delete the group's cursors and leases on this queue; (event, partitions where it had a cursor)."""
    reader = queue.groups.get(group)
    return (None, 0) if reader is None else (GroupDeleted(reader.number), reader.members())


def forget_subscriptions(group: str = "", queue: str = "") -> SubscriptionsForgotten:
    """Delete the records of a deleted group or queue, so that a new one of that name starts clean."""
    if not group and not queue:
        raise NotFound("name a group, a queue or both")
    return SubscriptionsForgotten(group, queue)


def decide_move(subscriptions: Subscriptions, group: str, timestamp_us: int) -> tuple[SubscriptionMoved, int]:
    """Move every recorded start of a group; (event, records moved)."""
    return SubscriptionMoved(group, timestamp_us), subscriptions.count(group)


def decide_starts(queue: PartitionedQueue, group: str, timestamp_us: int) -> list[GroupStarted]:
    """Move the starts of a group on one queue, but not its cursors."""
    reader = queue.groups.get(group)
    if reader is None:
        return []
    whole = (None,) if reader.start_us is not None else ()
    return [
        GroupStarted(group, reader.number, timestamp_us, name) for name in (*whole, *reader.partition_starts)
    ]
