"""Reading a partitioned queue by offset, without a lease or a cursor, for external readers.

Owns: the description of queues, exact sizes and counts of ranges, iteration over a range in bounded pieces,
the mirrored cursor of an external reader's group, and the delivery log's checkpoint records. Must not touch:
wire names, Arrow, clocks. Nothing here blocks a queue: a slow reader delays only itself.
"""

from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final

from holtmq.broker.errors import Conflict, NotFound
from holtmq.broker.partitioned.events import GroupStarted, QueueEvent, Sought
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.delivery_log import DeliveryRun
from holtmq.broker.partitioned.log.message_log import CHUNK_ROWS, GONE
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.partitioned.waiting.wide_pops import matches
from holtmq.broker.records.changes import Kind
from holtmq.journal.interface import ReadRuns, RecordUnreadable, Run
from holtmq.journal.run_reader import payloads, run_bytes
from holtmq.name_patterns import BadPattern, compile_pattern

PIECE_ROWS: Final = CHUNK_ROWS
PIECE_BYTES: Final = 4 << 20
SPAN_BYTES: Final = 64 << 20  # journal span of one piece; bounds the total size of its messages
_FIRST_PIECE: Final = 64  # rows; the size of messages is not known yet


class Relation(Enum):
    """Which table of a queue is read; the value is the suffix of the queue's name."""

    MESSAGES = ""
    DEAD_LETTERS = "$dlq"
    DELIVERIES = "$deliveries"


@dataclass(frozen=True, slots=True)
class RangeInfo:
    """The extent of one relation: numbers ``first`` to ``next - 1``, ``live`` of them stored."""

    name: str
    queue: PartitionedQueue
    relation: Relation
    first: int
    next: int
    live: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """A row filter; blank and None match all. Times are of creation unless stated; ``to_us`` is exclusive."""

    partition: str = ""
    from_us: int | None = None
    to_us: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive messages of the log, with their bodies; reading continues at ``next``."""

    offsets: "array[int] | range"  # a range if nothing is missing: it needs no memory per message
    created: "array[int]"
    partitions: "array[int]"
    runs: Sequence[Run]
    next: int
    gone: int  # offsets in this piece whose message is no longer stored


def find(store: PartitionedStore, name: str) -> RangeInfo:
    """Find a queue or one of its relations by name."""
    queue = store.queues.get(name)
    relation = Relation.MESSAGES
    if queue is None:
        for found in (Relation.DEAD_LETTERS, Relation.DELIVERIES):
            if name.endswith(found.value):
                queue, relation = store.queues.get(name.removesuffix(found.value)), found
    if queue is None:
        raise NotFound(f"queue {name} does not exist")
    return describe(queue, relation)


def describe(queue: PartitionedQueue, relation: Relation = Relation.MESSAGES) -> RangeInfo:
    name = queue.name + relation.value
    if relation is Relation.DEAD_LETTERS:
        letters = queue.dead_letters
        first = next((letter.number for letter in letters), letters.next_number)
        return RangeInfo(name, queue, relation, first, letters.next_number, len(letters))
    if relation is Relation.DELIVERIES:
        runs = queue.deliveries
        kept = runs.next_number - runs.first_number
        return RangeInfo(name, queue, relation, runs.first_number, runs.next_number, kept)
    log = queue.log
    end = log.visible_end
    hidden = log.count_live(end, log.next_offset) if end < log.next_offset else 0
    return RangeInfo(name, queue, relation, min(log.first_offset, end), end, log.live - hidden)


def matching(
    store: PartitionedStore, pattern: str, namespace: str, task: str
) -> Generator[None, None, list[RangeInfo]]:
    """Queues whose full name matches a pattern, of a namespace and/or task; runs in steps."""
    try:
        wanted = compile_pattern(pattern) if pattern else None
    except BadPattern as error:
        raise Conflict(str(error)) from None
    found: list[RangeInfo] = []
    for queue in list(store.queues.values()):
        is_there = store.by_number.get(queue.number) is queue and matches(namespace, task, queue)
        if is_there and (wanted is None or wanted.covers(queue.name)):
            found.append(describe(queue))
        yield
    return found


def offset_at(info: RangeInfo, at_us: int) -> int:
    """The first number at or after a time: of creation (messages), failure (dead letters) or settlement."""
    if info.relation is Relation.DEAD_LETTERS:
        letters = info.queue.dead_letters
        return next((letter.number for letter in letters if letter.failed_us >= at_us), info.next)
    if info.relation is Relation.DELIVERIES:
        runs = info.queue.deliveries.runs(info.first, info.next)
        return next((run.number for run in runs if run.settled_us >= at_us), info.next)
    return min(info.queue.log.offset_at(at_us), info.next)


def count(info: RangeInfo, first: int, stop: int) -> int:
    """How many rows of the range are still stored."""
    if info.relation is Relation.MESSAGES:
        return info.queue.log.count_live(first, stop)
    if info.relation is Relation.DEAD_LETTERS:
        return sum(1 for letter in info.queue.dead_letters if first <= letter.number < stop)
    return max(0, min(stop, info.next) - max(first, info.first))


class Pieces:
    """Iterates over a range in pieces of about ``piece_bytes()``. The queue may change between two pieces.

    The last piece ends at ``stop`` and may be empty. Without ``with_bodies`` no body is read. This is not a
    generator because a generator would keep its last piece in memory until a slow reader asks for the next.
    """

    def __init__(
        self,
        store: PartitionedStore,
        queue: PartitionedQueue,
        first: int,
        stop: int,
        chosen: Chosen = Chosen(),
        with_bodies: bool = True,
        piece_bytes: Callable[[], int] = lambda: PIECE_BYTES,
    ) -> None:
        log = queue.log
        if chosen.from_us is not None:
            first = max(first, log.offset_at(chosen.from_us))
        self._store = store
        self._queue = queue
        self._at = first
        self._end = stop if chosen.to_us is None else max(first, min(stop, log.offset_at(chosen.to_us)))
        self._stop = stop
        self._more = True
        self._partition = chosen.partition
        self._piece_bytes = piece_bytes
        self._step = _FIRST_PIECE if with_bodies else PIECE_ROWS
        self._read = store.journal.run_reader(Kind.PARTITIONED_BODY) if with_bodies else None

    def __iter__(self) -> "Pieces":
        return self

    def __next__(self) -> Piece:
        if not self._more:
            raise StopIteration
        if self._at >= self._end:
            self._more = False
            empty: array[int] = array("Q")
            return Piece(empty, empty, empty, [], self._stop, 0)
        until = min(self._end, self._at + self._step)
        try:
            piece = _piece(self._queue, self._at, until, self._partition, self._read)
        except RecordUnreadable:
            # Unreadable messages become holes and count as gone. If none was found, a retry would fail again.
            if not self._store.set_aside(_positions(self._queue, self._at, until)):
                raise
            return next(self)
        self._at = piece.next
        self._more = self._at < self._stop
        self._step = min(PIECE_ROWS, 4 * self._step)
        if piece.runs:
            mean = max(1, run_bytes(piece.runs) // len(piece.offsets))
            self._step = min(self._step, max(1, self._piece_bytes() // mean))
        return piece


def _positions(queue: PartitionedQueue, first: int, stop: int) -> list[int]:
    found: list[int] = []
    for _, where, _, parts in queue.log.stretches(first, stop):
        found += [at for at, part in zip(where, parts, strict=True) if part != GONE]
    return found


def _piece(queue: PartitionedQueue, at: int, until: int, partition: str, read: ReadRuns | None) -> Piece:
    log = queue.log
    if not partition and log.live == log.next_offset - log.first_offset and at >= log.first_offset:
        return _whole_piece(queue, at, until, read)
    offsets: array[int] = array("Q")
    created: array[int] = array("Q")
    partitions: array[int] = array("I")
    positions: array[int] = array("Q")
    wanted = queue.indexes.get(partition, GONE) if partition else None
    gone = until - at
    for first, where, times, parts in log.stretches(at, until):
        missing = parts.count(GONE)
        gone -= len(parts) - missing
        if wanted is None and not missing:
            offsets.extend(range(first, first + len(parts)))
            positions += where
            created += times
            partitions += parts
            continue
        for row, index in enumerate(parts):
            if index == GONE or (wanted is not None and index != wanted):
                continue
            offsets.append(first + row)
            positions.append(where[row])
            created.append(times[row])
            partitions.append(index)
    if read is None or not positions:
        return Piece(offsets, created, partitions, [], until, gone)
    fit = _fitting(positions)
    if fit < len(positions):
        until = offsets[fit]
        gone = until - at - log.count_live(at, until)
        for column in (offsets, created, partitions, positions):
            del column[fit:]
    return Piece(offsets, created, partitions, read(positions), until, gone)


def _whole_piece(queue: PartitionedQueue, at: int, until: int, read: ReadRuns | None) -> Piece:
    """A piece of a queue without holes: columns are copied whole, without a check per message."""
    created: array[int] = array("Q")
    partitions: array[int] = array("I")
    positions: array[int] = array("Q")
    for _, where, times, parts in queue.log.stretches(at, until):
        positions += where
        created += times
        partitions += parts
    fit = len(positions) if read is None else _fitting(positions)
    for column in (created, partitions, positions):
        del column[fit:]
    runs = [] if read is None or not positions else read(positions)
    return Piece(range(at, at + fit), created, partitions, runs, at + fit, 0)


def _fitting(positions: "array[int]") -> int:
    """How many of these records to read at once, at least one. A record ends before the next one starts."""
    if not positions or 0 <= positions[-1] - positions[0] <= SPAN_BYTES:
        return len(positions)
    span = 0
    for place, (one, following) in enumerate(pairwise(positions), 1):
        span += max(0, following - one)
        if span > SPAN_BYTES:
            return place
    return len(positions)


def fit_bytes(
    store: PartitionedStore, queue: PartitionedQueue, first: int, stop: int, most: int
) -> Iterator[tuple[int, int] | None]:
    """Where a range must stop to hold at most ``most`` bytes of stored messages: exact (stop, bytes).

    Yields None after every bounded step, so that the caller can let other tasks run.
    """
    total = 0
    for piece in Pieces(store, queue, first, stop):
        for offset, record in zip(piece.offsets, payloads(piece.runs), strict=True):
            if total + len(record) > most:
                yield offset, total
                return
            total += len(record)
        yield None
    yield stop, total


def letters(queue: PartitionedQueue, first: int, stop: int, chosen: Chosen) -> list[DeadLetter]:
    """The chosen dead letters, by number; times are failure times."""
    index = queue.indexes.get(chosen.partition, -1) if chosen.partition else None
    return [
        letter
        for letter in queue.dead_letters
        if first <= letter.number < stop
        and (index is None or letter.partition == index)
        and (chosen.from_us is None or letter.failed_us >= chosen.from_us)
        and (chosen.to_us is None or letter.failed_us < chosen.to_us)
    ]


def deliveries(queue: PartitionedQueue, first: int, stop: int, chosen: Chosen) -> Iterator[DeliveryRun]:
    """The chosen delivery runs, by number; times are settlement times."""
    index = queue.indexes.get(chosen.partition, -1) if chosen.partition else None
    for run in queue.deliveries.runs(first, stop):
        if (
            (index is None or run.partition == index)
            and (chosen.from_us is None or run.settled_us >= chosen.from_us)
            and (chosen.to_us is None or run.settled_us < chosen.to_us)
        ):
            yield run


def decide_mirror(queue: PartitionedQueue, group: str, offset: int, now: float) -> Sequence[QueueEvent]:
    """Mirror an external reader's progress as a group: move its cursors to ``offset`` in every partition.

    Refused while workers hold leases of the group: both would move the same cursor.
    """
    if not 0 <= offset <= queue.log.next_offset:
        raise Conflict(
            f"offset {offset} is outside of queue {queue.name}, which ends at {queue.log.next_offset}"
        )
    reader = queue.groups.get(group)
    if reader is not None and next(reader.leases.live(now), None) is not None:
        raise Conflict(
            f"group {group} of queue {queue.name} has workers with leases; mirror to another group"
        )
    if reader is None:
        number = queue.next_group
        return GroupStarted(group, number, 0), Sought(number, offset)
    return (Sought(reader.number, offset),)
