"""All partitioned queues of a node, and ``commit``, the only way to change them.

Owns: pairing events with journal records (one atomic batch, then apply), folding those records at start-up,
and the records of a checkpoint. Must not touch: decisions, wire names, clocks.

Over 400 lines: writing a change, applying it and folding it at a start must stay side by side.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from holtmq.broker.damage import DamageList
from holtmq.broker.partitioned.captured import Captured, StatePart, StateRecord, portions
from holtmq.broker.partitioned.events import (
    NO_QUEUE,
    Event,
    MessageDeleted,
    Pushed,
    QueueConfigured,
    QueueDeleted,
    QueueEvent,
    Subscribed,
    SubscriptionMoved,
    SubscriptionsForgotten,
    decode_all,
    encode,
)
from holtmq.broker.partitioned.extras.traces import Traced, TraceStore
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.groups.subscriptions import Subscriptions
from holtmq.broker.partitioned.log.after_repair import AfterRepair
from holtmq.broker.partitioned.log.bodies import (
    Body,
    BodyCache,
    Cipher,
    UnreadableBody,
    decode_body,
    transaction_id_of,
)
from holtmq.broker.partitioned.log.captured_queues import CapturedQueues
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.dedup import MAX_ENTRIES
from holtmq.broker.partitioned.log.dedup_budget import DedupBudget
from holtmq.broker.partitioned.log.delivery_records import restore_deliveries
from holtmq.broker.partitioned.log.loose_bodies import LooseBodies
from holtmq.broker.partitioned.log.message_log import NO_PARTITION
from holtmq.broker.partitioned.log.pending_visibility import PendingVisibility
from holtmq.broker.partitioned.log.snapshot import ChunkRows, Rows, restore
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import QueueConfig, names_of
from holtmq.broker.records.changes import Kind
from holtmq.journal.interface import Journal, RecordUnreadable

CACHE_BYTES: Final = 64 << 20
UNREADABLE: Final = "unreadable"  # transaction id of a dead letter whose message cannot be read
_WEIGHED_BYTES: Final = 1 << 20
_PIECE: Final = 256  # messages read at a time when there may be too many bytes

Change = tuple[int, Event]  # queue number (NO_QUEUE if the event belongs to no queue) and event


class MessagesSetAside(RecordUnreadable):
    """Unreadable messages were removed from their queues; the caller retries with the rest."""


class Counters(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Numbers that must not be used twice."""

    next_queue: int
    next_trace: int


_counters: Final = msgspec.msgpack.Decoder(Counters)
_rows: Final = msgspec.msgpack.Decoder(Rows)
_encode: Final = msgspec.msgpack.Encoder().encode


class PartitionedStore:
    """All queues of a node. ``listeners`` get each event once applied, a push once it is visible."""

    def __init__(self, journal: Journal, cache_bytes: int = CACHE_BYTES) -> None:
        self.journal = journal
        self.cipher: Cipher | None = None
        self.default_config = QueueConfig()
        self.queues: dict[str, PartitionedQueue] = {}
        self.by_number: dict[int, PartitionedQueue] = {}
        self.aging: dict[int, PartitionedQueue] = {}  # queues that drop messages by age
        self.dedup_budget = DedupBudget(MAX_ENTRIES)
        self.subscriptions = Subscriptions()
        self.traces = TraceStore()
        self.next_queue = NO_QUEUE + 1
        self.cache = BodyCache(cache_bytes)
        self.damage = DamageList(journal)
        self.listeners: list[Callable[[PartitionedQueue, QueueEvent], None]] = []  # called in this order
        # Raises LimitReached if there may be no queue of this name, with so many other new ones.
        self.check_new: Callable[[str, int], None] = _unlimited
        self._pending_visibility = PendingVisibility(journal, self._show)
        self._capturing: CapturedQueues | None = None  # not complete: a queue is captured before it changes
        self._state_parts: dict[int, StatePart] = {}
        self._after_repair: AfterRepair | None = None  # while folding, once a repair was met
        self._rows: ChunkRows = {}  # while folding: of the queue that follows
        self.loose_bodies = LooseBodies()  # while folding

    def add_state_part(self, part: StatePart) -> None:
        for kind in part.kinds:
            self._state_parts[kind] = part

    def commit(
        self,
        changes: Sequence[Change],
        records: Sequence[bytes] = (),
        bodies: Sequence[Body] = (),
        state_records: Sequence[StateRecord] = (),
        work_records: Sequence[StateRecord] = (),
    ) -> list[int]:
        """Write everything as one atomic batch, then apply it.

        ``records`` and ``bodies`` are the messages of all ``Pushed`` events, in order. ``work_records``
        belong to work queues, which apply them; their positions are returned.
        """
        batch: list[StateRecord] = [(_BODY, record) for record in records]
        batch += state_records
        if changes:
            batch.append(self.events_record(changes))
        batch += work_records
        positions = self.journal.append_batch(batch)
        work_positions = positions[len(positions) - len(work_records) :]
        count = len(records)
        beside = positions[count : count + len(state_records)]
        if count:
            if len(positions) > count:
                del positions[count:]
            self.cache.add(positions, bodies)
        self._apply(changes, positions)
        if state_records:
            self._fold_state(state_records, beside)
        return work_positions

    def events_record(self, changes: Sequence[Change]) -> StateRecord:
        """The record of these events, for a caller that writes it behind the bodies, and then ``apply``s."""
        return _EVENTS, b"".join([encode(number, event) for number, event in changes])

    def apply(self, changes: Sequence[Change], positions: Sequence[int]) -> None:
        """Apply events whose record the caller has appended; the bodies are at ``positions``."""
        self._apply(changes, positions)

    def commit_state(self, state_records: Sequence[StateRecord]) -> list[int]:
        """Write and fold records of state parts, bodies before their record; return the positions."""
        positions = self.journal.append_batch(state_records)
        self._fold_state(state_records, positions)
        return positions

    def _fold_state(self, state_records: Sequence[StateRecord], positions: Sequence[int]) -> None:
        for position, (kind, payload) in zip(positions, state_records, strict=True):
            if kind == _BODY:
                self.loose_bodies.add(position)
            else:
                self._state_parts[kind].fold(position, kind, payload)

    def apply_stored(
        self, changes: Iterable[Change], positions: Sequence[int], hidden_by: str | None = None
    ) -> None:
        """Apply events that a state part's record contains; the message bodies are at ``positions``.

        ``hidden_by``: no reader sees the messages until this owner's batch is complete (``reveal``).
        """
        if self._after_repair is None:
            self._apply(changes, positions, hidden_by)
        else:
            self._apply_fitting(changes, positions, hidden_by)

    def reveal(self, owner: str) -> None:
        """The batch whose messages the owner has hidden is complete."""
        self._pending_visibility.reveal(owner)

    def hidden_by(self, owner: str) -> dict[int, int]:
        """From which offset on the owner hides messages, by number of the queue."""
        return self._pending_visibility.hidden_by(owner)

    def hide_restored(self, owner: str, offsets: Mapping[int, int]) -> None:
        """Hide messages that a checkpoint contained, as ``hidden_by`` has returned it."""
        for number, offset in offsets.items():
            self._pending_visibility.hide_restored(owner, self.by_number[number], offset)

    def _apply_fitting(
        self, changes: Iterable[Change], positions: Sequence[int], hidden_by: str | None
    ) -> None:
        """Apply events after a dropped stretch, each by itself: some may refer to what was there."""
        assert self._after_repair is not None
        at = 0
        for number, event in changes:
            start, queue = at, self.by_number.get(number)
            at += len(event.partitions) if isinstance(event, Pushed) else 0
            try:
                fitted = event if queue is None else self._after_repair.fitted(queue, event)  # type: ignore[arg-type]
                if fitted is not None:
                    self._apply([(number, fitted)], positions[start:at], hidden_by)
            except (LookupError, AssertionError):
                self.damage.dropped += 1

    def _apply(
        self, changes: Iterable[Change], positions: Sequence[int], hidden_by: str | None = None
    ) -> None:
        at = 0
        listeners, capturing = self.listeners, self._capturing
        for number, event in changes:
            if capturing is not None:
                capturing.before_change(number)
            if isinstance(event, Pushed):
                queue = self.by_number[number]
                count = len(event.partitions)
                queue.apply(event, positions if count == len(positions) else positions[at : at + count])
                at += count
                if hidden_by is not None:
                    self._pending_visibility.hide(hidden_by, queue, event.first_offset)
                self._pending_visibility.add(queue, event)
                continue
            elif isinstance(event, Subscribed | SubscriptionMoved | SubscriptionsForgotten):
                self.subscriptions.apply(event)
                continue
            elif isinstance(event, Traced):
                self.traces.apply(event)
                continue
            elif isinstance(event, QueueConfigured) and number not in self.by_number:
                queue = self._create(number, event)
            elif isinstance(event, QueueDeleted):
                queue = self._drop(number)
            else:
                queue = self.by_number[number]
                queue.apply(event)
                if isinstance(event, QueueConfigured):
                    self._note_aging(queue)
            for tell in listeners:
                tell(queue, event)

    def _show(self, queue: PartitionedQueue, event: Pushed) -> None:
        queue.show(event)
        if self.by_number.get(queue.number) is queue:
            for tell in self.listeners:
                tell(queue, event)

    def draft(self, name: str, now: float, ahead: int = 0) -> tuple[PartitionedQueue, QueueConfigured]:
        """A queue to decide the first push on, and the event that creates it."""
        namespace, task = names_of(name)
        configured = QueueConfigured(name, namespace, task, self.default_config, micros(now))
        return PartitionedQueue(self.next_queue + ahead, configured, self.read_transaction_id), configured

    def _create(self, number: int, configured: QueueConfigured) -> PartitionedQueue:
        queue = PartitionedQueue(
            number, configured, self.read_transaction_id, max_dedup_entries=self.dedup_budget.share
        )
        self.queues[queue.name] = self.by_number[number] = queue
        self.next_queue = max(self.next_queue, number + 1)
        self._note_aging(queue)
        return queue

    def _note_aging(self, queue: PartitionedQueue) -> None:
        if queue.config.retention_enabled or queue.config.max_wait_seconds:
            self.aging[queue.number] = queue
        else:
            self.aging.pop(queue.number, None)

    def _drop(self, number: int) -> PartitionedQueue:
        queue = self.by_number.pop(number)
        self._pending_visibility.forget(queue)
        self.dedup_budget.forgotten_by_deleted += queue.dedup.forgotten_early
        for where in ("partitioned queue", "dead letters"):
            self.damage.forget(where, "", queue.name)
        del self.queues[queue.name]
        self.aging.pop(number, None)
        self.traces.forget_queue(number)
        return queue

    def bodies(self, positions: Sequence[int]) -> list[Body]:
        """The messages at these journal positions, from the cache where possible."""
        found = self.cache.get_all(positions)
        if all(found):
            return found  # type: ignore[return-value]  # just checked
        missing = [position for position, body in zip(positions, found, strict=True) if body is None]
        cipher = self.cipher
        try:
            records = self.journal.read_many(missing, _BODY)
        except RecordUnreadable as error:
            if self.set_aside(missing):
                raise MessagesSetAside(str(error), error.position, error.reason) from error
            raise
        read = [decode_body(record, cipher) for _, record in records]
        self.cache.add(missing, read)
        fresh = iter(read)
        return [next(fresh) if body is None else body for body in found]

    def bodies_within(self, positions: Sequence[int], most: int) -> tuple[list[Body], int]:
        """The first of these messages, at least one, until ``most`` bytes are reached; and the bytes left."""
        bodies: list[Body] = []
        at = 0
        while at < len(positions) and (most > 0 or not bodies):
            piece = positions[at : at + _PIECE]
            # The journal span bounds the bytes: do not read a piece that exceeds the bound by itself.
            while len(piece) > 1 and max(piece) - min(piece) > most:
                piece = piece[: len(piece) // 2]
            for body in self.bodies(piece):
                bodies.append(body)
                most -= len(body.payload)
                if most <= 0:
                    break
            at += len(piece)
        return bodies, most

    def body(self, position: int) -> Body:
        return self.bodies((position,))[0]

    def weigh(self, positions: Sequence[int]) -> list[int]:
        """Payload sizes for these positions, in order; stops after about 1 MiB was read from disk.

        A message that cannot be read is removed, and weighs nothing.
        """
        sizes: list[int] = []
        read = 0
        for position, known in zip(positions, self.cache.get_all(positions), strict=True):
            if known is not None:
                sizes.append(len(known.payload))
                continue
            size = self._weigh_stored(position)
            sizes.append(size)
            read += size
            if read > _WEIGHED_BYTES:
                break
        return sizes

    def _weigh_stored(self, position: int) -> int:
        try:
            record = self.journal.read(position, _BODY)[1]
        except RecordUnreadable:
            self.set_aside([position])
            return 0
        try:
            return len(decode_body(record, self.cipher).payload)
        except UnreadableBody:  # its key may come back
            return len(record)

    def read_transaction_id(self, _offset: int, position: int) -> str | None:
        """The transaction id of a message; None when it cannot be read."""
        body = self.cache.get(position)
        if body is not None:
            return body.transaction_id
        try:
            return transaction_id_of(self.journal.read(position, _BODY)[1])
        except RecordUnreadable:
            return None

    def letter_body(self, queue: PartitionedQueue, letter: DeadLetter) -> Body:
        """A dead letter's message; a placeholder when it cannot be read."""
        try:
            return self.body(letter.journal_position)
        except RecordUnreadable as error:
            self.damage.note("dead letters", "", queue.name, error, letter.offset)
            return Body(UNREADABLE, b"null")

    def note_rot(self, error: RecordUnreadable) -> None:
        """Remove the messages of an unreadable part of the journal before a consumer asks for them."""
        stretch = range(error.position, error.position + max(error.size, 1))
        found: list[int] = []
        for queue in self.by_number.values():
            rows = queue.log.find_positions(stretch, stretch.start, stretch.stop - 1)
            found += [position for _, position in rows]
        self.set_aside(found)

    def set_aside(self, positions: Sequence[int]) -> int:
        """Remove the unreadable ones of these messages from their queues; return how many.

        Each becomes a hole, as if it had been deleted: groups skip it, and range reads report it as gone.
        """
        errors: dict[int, RecordUnreadable] = {}
        for position in positions:
            try:
                self.journal.read(position, _BODY)
            except RecordUnreadable as error:
                errors[position] = error
        if not errors:
            return 0
        count, lowest, highest = 0, min(errors), max(errors)
        for queue in list(self.by_number.values()):
            changes: list[Change] = []
            for offset, position in queue.log.find_positions(errors, lowest, highest):
                index = queue.log.partition(offset)
                place = queue.partitions[index].position_of(offset)
                changes.append((queue.number, MessageDeleted(index, place)))
                self.damage.note("partitioned queue", "", queue.name, errors[position], offset)
            if changes:
                self.commit(changes)
                count += len(changes)
        return count

    def find(self, number: int, index: int) -> PartitionedQueue | None:
        """The queue with this number; None when it has no such partition."""
        queue = self.by_number.get(number)
        if queue is None or index >= len(queue.partitions) or queue.partitions[index] is NO_PARTITION:
            return None
        return queue

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        """Apply one journal record at start-up; records must come in order."""
        if kind == _BODY:
            self.loose_bodies.add(position)
        elif kind == _EVENTS:
            changes = decode_all(payload)
            wanted = sum([len(event.partitions) for _, event in changes if isinstance(event, Pushed)])
            self.apply_stored(changes, self.loose_bodies.take(wanted))
        elif kind == Kind.PARTITIONED_QUEUE:
            share = self.dedup_budget.share
            queue = restore(payload, self.read_transaction_id, self._rows, max_dedup_entries=share)
            self.queues[queue.name] = self.by_number[queue.number] = queue
            self._note_aging(queue)
        elif kind == Kind.PARTITIONED_ROWS:
            rows_of_queue = _rows.decode(payload)
            self._rows[rows_of_queue.queue, rows_of_queue.chunk] = rows_of_queue.columns
        elif kind == Kind.PARTITIONED_COUNTERS:
            counters = _counters.decode(payload)
            self.next_queue, self.traces.next_number = counters.next_queue, counters.next_trace
        elif kind == Kind.DELIVERY_STATE:
            restore_deliveries(payload, self.by_number)
        elif kind in self._state_parts:
            self._state_parts[kind].fold(position, kind, payload)
        else:
            raise ValueError("no such kind")

    def mended(self, position: int | None) -> None:
        """A repair dropped part of the journal here: earlier bodies belong to no later record.

        ``position``: where, if it was not inside a batch. Then the head of a batch may be lost and its last
        bodies, with their event, may follow.
        """
        self.loose_bodies.forget(position)
        if self._after_repair is None:
            self._after_repair = AfterRepair()
        self._after_repair.begin(self.by_number.values())

    def recovered(self) -> None:
        """The journal is folded. From now on events are decided on this state."""
        self._after_repair = None
        deque(self.subscriptions.free(), maxlen=0)
        for queue in self.queues.values():
            if queue.room is not None:
                queue.room.count_all(queue)

    def capture(self) -> Captured:
        """The whole state as it is now."""
        captured = self.begin_capture()
        self.capture_more()
        return captured

    def begin_capture(self) -> Captured:
        """The whole state as it is now; its queues are captured by ``capture_more`` or before a change."""
        self.capture_more()  # of another capture: only one is told of changes
        queues = CapturedQueues(self.by_number)
        self._capturing = None if queues.is_complete else queues
        subscriptions, traces = self.subscriptions.capture(), list(self.traces)
        counters = Counters(self.next_queue, self.traces.next_number)
        parts = [part.capture() for part in dict.fromkeys(self._state_parts.values())]

        def records() -> Iterator[StateRecord]:
            yield from queues.records()
            events: Iterable[Subscribed | Traced] = chain(subscriptions, traces)
            for some in portions(events):
                yield _EVENTS, b"".join([encode(NO_QUEUE, event) for event in some])
            yield int(Kind.PARTITIONED_COUNTERS), _encode(counters)
            for part in parts:
                yield from part.records

        def live() -> Iterator["array[int]"]:
            yield from queues.live()
            for part in parts:
                yield from part.live

        return Captured(records(), live())

    def capture_more(self, most: int | None = None) -> bool:
        """Capture so many queues as they were at ``begin_capture``; return whether all are captured."""
        if self._capturing is not None:
            self._capturing.capture(most)
            if self._capturing.is_complete:
                self._capturing = None
        return self._capturing is None


_BODY: Final = int(Kind.PARTITIONED_BODY)
_EVENTS: Final = int(Kind.PARTITIONED)


def _unlimited(_name: str, _ahead: int) -> None:
    return None
