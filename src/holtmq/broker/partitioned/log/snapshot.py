"""A partitioned queue as bytes and back: a checkpoint stores this instead of all events so far.

Owns: the layout. Columns are raw bytes, so a million messages take about 28 MB and milliseconds.
Leases are not included: a restart ends them. Must not touch: files, rules.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from holtmq.broker.partitioned.events import IdsGiven, QueueConfigured, UnreadableEvent
from holtmq.broker.partitioned.groups.group import Group
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.dedup import MAX_ENTRIES, Fingerprinter, fingerprint
from holtmq.broker.partitioned.log.message_log import (
    GONE,
    NO_PARTITION,
    LogState,
    Partition,
    from_bytes,
)
from holtmq.broker.partitioned.queue import PartitionedQueue, TransactionIdReader
from holtmq.broker.pausing import Pause

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class _GroupState:
    name: str
    number: int
    start_us: int | None
    partition_starts: dict[str, int]
    conflates: bool
    cursors: bytes
    consumed: bytes
    settled_at: bytes
    retries: dict[int, int]
    holds: dict[int, int]
    # Added later: older snapshots do not have these.
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _QueueState:
    version: int
    number: int
    configured: QueueConfigured
    log: LogState
    dedup_floor: int
    partition_names: list[str]
    partition_created: bytes
    partition_firsts: bytes
    next_group: int
    groups: list[_GroupState]
    next_letter: int
    letters: list[DeadLetter]
    # Added later: older snapshots do not have these.
    given_ids: list[tuple[int, str]] = field(default_factory=list)
    holes: dict[int, list[int]] = field(default_factory=dict)  # partition -> offsets of deleted messages
    deleted_partitions: list[int] = field(default_factory=list)
    partition_last: bytes = b""
    paused: Pause | None = None


def snapshot(queue: PartitionedQueue) -> bytes:
    """The durable state of the queue, as bytes."""
    configured = QueueConfigured(queue.name, queue.namespace, queue.task, queue.config, queue.created_us)
    state = _QueueState(
        VERSION,
        queue.number,
        configured,
        queue.log.dump(),
        queue.dedup.floor,
        [partition.name for partition in queue.partitions],
        _column(partition.created_us for partition in queue.partitions),
        _column(partition.first for partition in queue.partitions),
        queue.next_group,
        [_group_state(group) for group in queue.groups.values()],
        queue.dead_letters.next_number,
        list(queue.dead_letters),
        queue.given_ids.dump(),
        {
            index: [where.offsets[position - where.first] for position in where.holes]
            for index, where in enumerate(queue.partitions)
            if where.holes is not None
        },
        [index for index, where in enumerate(queue.partitions) if where is NO_PARTITION],
        _column(partition.last_us for partition in queue.partitions),
        queue.paused,
    )
    return msgspec.msgpack.encode(state)


def restore(
    data: bytes,
    read_transaction_id: TransactionIdReader,
    *,
    fingerprint: Fingerprinter = fingerprint,
    max_dedup_entries: int = MAX_ENTRIES,
) -> PartitionedQueue:
    """The queue of a snapshot, without leases."""
    try:
        state = msgspec.msgpack.decode(data, type=_QueueState)
    except msgspec.MsgspecError as error:
        raise UnreadableEvent(f"not a queue snapshot: {error}") from error
    if state.version != VERSION:
        raise UnreadableEvent(f"queue snapshot of version {state.version}, this broker reads {VERSION}")
    queue = PartitionedQueue(
        state.number,
        state.configured,
        read_transaction_id,
        fingerprint=fingerprint,
        max_dedup_entries=max_dedup_entries,
    )
    queue.paused = state.paused
    queue.log.load(state.log)
    _restore_partitions(queue, state)
    queue.dedup.floor = state.dedup_floor
    queue.dedup.rebuild()
    for saved in state.groups:
        queue.adopt(_group(saved, queue))
    queue.next_group = state.next_group
    for letter in state.letters:
        queue.dead_letters.file(letter)
    queue.dead_letters.next_number = state.next_letter
    queue.given_ids.add(IdsGiven(tuple(state.given_ids)))
    return queue


def _restore_partitions(queue: PartitionedQueue, state: _QueueState) -> None:
    created, firsts = from_bytes("Q", state.partition_created), from_bytes("Q", state.partition_firsts)
    last, deleted = from_bytes("Q", state.partition_last), set(state.deleted_partitions)
    for index, name in enumerate(state.partition_names):
        if index in deleted:
            queue.partitions.append(NO_PARTITION)
            continue
        where = Partition(name, created[index], firsts[index])
        where.last_us = last[index] if last else 0
        queue.partitions.append(where)
        queue.indexes[name] = index
    # The offsets of each partition are not stored: they follow from the log's partition column.
    for first_offset, indexes in queue.log.partition_runs():
        for offset, index in enumerate(indexes, first_offset):
            if index != GONE:
                queue.partitions[index].offsets.append(offset)
    for index, gone in state.holes.items():
        where = queue.partitions[index]
        where.offsets = array("Q", sorted([*where.offsets, *gone]))
        where.holes = [where.position_of(offset) for offset in gone]
        queue.log.fill(gone)


def _column(values: Iterable[int]) -> bytes:
    return array("Q", values).tobytes()


def _group_state(group: Group) -> _GroupState:
    leases = group.leases
    return _GroupState(
        group.name,
        group.number,
        group.start_us,
        group.partition_starts,
        group.conflates,
        leases.cursors.tobytes(),
        leases.consumed.tobytes(),
        leases.settled_at.tobytes(),
        leases.retries,
        leases.holds,
        leases.marks,
    )


def _group(saved: _GroupState, queue: PartitionedQueue) -> Group:
    group = Group(saved.name, saved.number, queue.partitions, queue.log)
    group.start_us, group.partition_starts = saved.start_us, saved.partition_starts
    group.conflates = saved.conflates
    group.leases.cursors = from_bytes("Q", saved.cursors)
    group.leases.consumed = from_bytes("Q", saved.consumed)
    group.leases.settled_at = from_bytes("Q", saved.settled_at)
    group.leases.retries, group.leases.holds = saved.retries, saved.holds
    for partition, (attempt, end) in saved.marks.items():
        group.leases.mark(partition, attempt, end)
    return group
