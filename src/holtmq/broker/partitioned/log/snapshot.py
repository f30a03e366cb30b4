"""A partitioned queue as records and back: a checkpoint stores these instead of all events so far.

Owns: the layout, and what is copied at the moment of the checkpoint. Columns are raw bytes, so a million
messages take about 28 MB; chunks of the log have records of their own, so that no record is very long. Must
not touch: files, rules.
"""

from array import array
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import msgspec

from holtmq.broker.partitioned.captured import StateRecord, positions
from holtmq.broker.partitioned.events import IdsGiven, QueueConfigured, UnreadableEvent
from holtmq.broker.partitioned.groups.group import Group
from holtmq.broker.partitioned.groups.partition_leases import RecordedLease
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.dedup import MAX_ENTRIES, Fingerprinter, fingerprint
from holtmq.broker.partitioned.log.delivery_records import record_of
from holtmq.broker.partitioned.log.message_log import (
    ELSEWHERE,
    GONE,
    NO_PARTITION,
    Columns,
    LogState,
    Partition,
    from_bytes,
)
from holtmq.broker.partitioned.queue import PartitionedQueue, TransactionIdReader
from holtmq.broker.pausing import Pause
from holtmq.broker.records.changes import Kind

ChunkRows = MutableMapping[tuple[int, int], tuple[bytes, ...]]  # by number of the queue and of the chunk

VERSION: Final = 2
_READ: Final = (1, 2)  # in the first version every chunk is part of the queue's record
ALONE: Final = 1_024  # rows: a chunk with as many has a record of its own

_encode: Final = msgspec.msgpack.Encoder().encode
_first: Final = attrgetter("first")
_last_us: Final = attrgetter("last_us")
_has_holes: Final = attrgetter("holes")


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
    leases: list[RecordedLease] = field(default_factory=list)


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


class Rows(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A chunk of a queue's log. It stands before the queue, whose record would be very long with it."""

    queue: int
    chunk: int
    columns: tuple[bytes, bytes, bytes, bytes]


class CapturedQueue:
    """The durable state of a queue at the moment when this is made; records are made later.

    To capture takes some 3 µs, 0.1 µs for each partition, and nothing for messages: it shares their columns.
    Few of the copies are objects that the garbage collector looks at: it does so in the same turn.
    """

    __slots__ = (
        "_configured",
        "_dedup_floor",
        "_deliveries",
        "_firsts",
        "_given_ids",
        "_groups",
        "_holes",
        "_lasts",
        "_letters",
        "_log",
        "_next_group",
        "_next_letter",
        "_partitions",
        "_paused",
        "number",
    )

    def __init__(self, queue: PartitionedQueue) -> None:
        self.number = queue.number
        self._configured = (queue.name, queue.namespace, queue.task, queue.config, queue.created_us)
        self._log = queue.log.capture()
        self._dedup_floor = queue.dedup.floor
        self._partitions = queue.partitions[:]  # name and creation do not change
        self._firsts = array("Q", map(_first, queue.partitions)).tobytes()
        self._lasts = array("Q", map(_last_us, queue.partitions)).tobytes()
        self._holes = _holes(queue.partitions)
        self._next_group = queue.next_group
        self._groups = tuple(map(_captured_group, queue.groups.values()))
        self._next_letter = queue.dead_letters.next_number
        self._letters = tuple(queue.dead_letters)
        self._given_ids = queue.given_ids.dump()
        self._paused = queue.paused
        log, letters = queue.deliveries, queue.dead_letters.numbers()
        self._deliveries = log.capture(letters) if log.next_number else None

    def records(self) -> Iterator[StateRecord]:
        """Long chunks, then all the rest."""
        log, columns = self._log, list[tuple[bytes, ...]]()
        for number, chunk in enumerate(log.columns(), log.base):
            if chunk is None:
                columns.append(())
                continue
            packed = _packed(chunk)
            if len(chunk[0]) >= ALONE:
                columns.append(ELSEWHERE)
                yield int(Kind.PARTITIONED_ROWS), _encode(Rows(self.number, number, packed))
            else:
                columns.append(packed)
        state = _QueueState(
            VERSION,
            self.number,
            QueueConfigured(*self._configured),
            (log.base, log.next_offset, log.last_created_us, log.starts, columns),
            self._dedup_floor,
            [partition.name for partition in self._partitions],
            _column(partition.created_us for partition in self._partitions),
            self._firsts,
            self._next_group,
            [_GroupState(*fields) for fields in self._groups],
            self._next_letter,
            list(self._letters),
            list(self._given_ids),
            self._holes,
            [index for index, where in enumerate(self._partitions) if where is NO_PARTITION],
            self._lasts,
            self._paused,
        )
        yield int(Kind.PARTITIONED_QUEUE), _encode(state)

    def deliveries(self) -> Iterator[StateRecord]:
        """The record of its delivery log, which follows the queue's."""
        if self._deliveries is not None:
            yield record_of(self.number, self._deliveries)

    def live(self) -> Iterator["array[int]"]:
        """The journal positions that the state refers to."""
        yield from self._log.positions()
        yield from positions(letter.journal_position for letter in self._letters)


def restore(
    data: bytes,
    read_transaction_id: TransactionIdReader,
    rows: ChunkRows | None = None,
    *,
    fingerprint: Fingerprinter = fingerprint,
    max_dedup_entries: int = MAX_ENTRIES,
) -> PartitionedQueue:
    """The queue of a snapshot. ``rows``: chunks that have records of their own."""
    try:
        state = msgspec.msgpack.decode(data, type=_QueueState)
    except msgspec.MsgspecError as error:
        raise UnreadableEvent(f"not a queue snapshot: {error}") from error
    if state.version not in _READ:
        raise UnreadableEvent(f"queue snapshot of version {state.version}, this broker reads {VERSION}")
    queue = PartitionedQueue(
        state.number,
        state.configured,
        read_transaction_id,
        fingerprint=fingerprint,
        max_dedup_entries=max_dedup_entries,
    )
    queue.paused = state.paused
    queue.log.load(_whole(state, {} if rows is None else rows))
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


def _whole(state: _QueueState, rows: ChunkRows) -> LogState:
    """The log with the chunks that have records of their own."""
    base, next_offset, last_created_us, starts, columns = state.log
    whole: list[tuple[bytes, ...]] = []
    for number, found in enumerate(columns, base):
        if found == ELSEWHERE:
            found = rows.pop((state.number, number), ())
            if not found:
                raise UnreadableEvent(f"the rows of chunk {number} of queue {state.number} are missing")
        whole.append(found)
    return base, next_offset, last_created_us, starts, whole


def _packed(columns: Columns) -> tuple[bytes, bytes, bytes, bytes]:
    first, second, third, fourth = columns
    return first.tobytes(), second.tobytes(), third.tobytes(), fourth.tobytes()


def _holes(partitions: Iterable[Partition]) -> dict[int, list[int]]:
    if not any(map(_has_holes, partitions)):
        return {}
    return {
        index: [where.offsets[position - where.first] for position in where.holes]
        for index, where in enumerate(partitions)
        if where.holes is not None
    }


def _column(values: Iterable[int]) -> bytes:
    return array("Q", values).tobytes()


def _captured_group(group: Group) -> tuple[Any, ...]:
    """The fields of its ``_GroupState``, in order."""
    leases = group.leases
    return (
        group.name,
        group.number,
        group.start_us,
        group.partition_starts.copy(),
        group.conflates,
        leases.cursors.tobytes(),
        leases.consumed.tobytes(),
        leases.settled_at.tobytes(),
        leases.retries.copy(),
        leases.holds.copy(),
        leases.marks.copy(),
        list(leases.recorded.values()),
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
    for lease in saved.leases:
        group.record(lease)
    return group
