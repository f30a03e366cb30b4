"""Message flow: what arrives, is settled, delivered, expires, turn by turn.

Owns: the state that all of these share, the order of work within a turn, batches that become one atomic
record. Must not touch: topology changes (``broker.py``), sockets, clocks: the caller sets ``now_ms``. How a
message gets into its queues is in ``publish/``, how it becomes a dead letter in ``dead_lettering.py``.

Over 400 lines: every method works on the state of the open turn (queues to serve, records to write), and most
are on the path of each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Final

from holtmq.broker.damage import DamageList
from holtmq.broker.dead_lettering import DeadLettering, take_settled
from holtmq.broker.message import Message
from holtmq.broker.publish.delays import Delays
from holtmq.broker.publish.prepared import PreparedPublishes
from holtmq.broker.publish.publish_properties import PublishPropertiesCache
from holtmq.broker.publish.publishing import Publishing, PublishOutcome
from holtmq.broker.publish.record_batch import Batch, CrossKindJournal
from holtmq.broker.publish.stream_publishes import PendingPublish, StreamPublishes
from holtmq.broker.publish.taken_room import TakenRoom
from holtmq.broker.queue_timers import QueueTimers
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import encode_mark, encode_returned
from holtmq.broker.timer_wheel import ActionTimer, TimerWheel
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.vhost import QueueExchange, VHost
from holtmq.broker.turn_limits import TurnLimits
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.memory_budget import MemoryBudget
from holtmq.broker.work.paging import MemorySpill, MessagePager, Spill
from holtmq.broker.work.spilled_run import LostRun
from holtmq.broker.work.work_queue import DELIVERED_AT_ONCE, WorkQueue
from holtmq.journal.interface import Journal
from holtmq.wire.property_walker import PropertyWalkers

__all__ = ["Flow", "PublishOutcome"]

_queue: Final = attrgetter("queue")
_ALONE: Final = nullcontext()
_LOOKED_AT: Final = 50  # messages of a queue that is paged out, looked at in the time of one queue
_DELIVERED: Final = 4  # messages delivered in the time of one queue, with their part of the write


class Flow:
    """The part of the broker that moves messages. Runs on one thread, turn by turn."""

    __slots__ = (
        "batch",
        "changed",
        "cross_kind",
        "damage",
        "dead_lettering",
        "delays",
        "dirty",
        "journal",
        "late_letters",
        "memory",
        "now_ms",
        "on_dirty",
        "pager",
        "pending_publishes",
        "per_turn",
        "prepares",
        "publish_properties",
        "publishing",
        "queue_timers",
        "seq",
        "stream_publishes",
        "timers",
        "unfinished",
        "used",
        "used_exchanges",
        "vhosts",
        "walkers",
        "work_left",
    )

    def __init__(self, journal: Journal, vhosts: dict[str, VHost], spill: Spill | None = None) -> None:
        self.journal = journal
        self.publishing = Publishing(self)
        self.dead_lettering = DeadLettering(self)
        self.memory = MemoryBudget()
        self.damage = DamageList(journal)
        self.cross_kind: CrossKindJournal | None = None  # if there are partitioned queues
        self.stream_publishes: StreamPublishes | None = None  # likewise
        self.pending_publishes: list[PendingPublish] = []  # stream publishes of this read, not written yet
        self.pager = MessagePager(journal, spill or MemorySpill())
        self.vhosts = vhosts
        self.publish_properties = PublishPropertiesCache()
        self.walkers = PropertyWalkers()
        self.timers: TimerWheel[Callable[[], object]] = TimerWheel()
        self.now_ms = 0
        self.seq = 0
        # One large transaction at a time has numbers ahead of ``seq``, and room in queues.
        self.prepares: TakenRoom | None = None
        self.changed: dict[object, set[Queue]] = {}  # of each who asks: the queues that change from then on
        self.used: set[Queue] = set()  # queues used since the last sample of the figures
        self.used_exchanges: set[QueueExchange] = set()  # likewise
        self.dirty: list[Queue] = []  # queues with work in this turn
        self.unfinished: dict[WorkQueue, None] = {}  # with more work than one turn does
        self.late_letters: dict[WorkQueue, None] = {}  # filled faster than their dead letters are made
        self.on_dirty: Callable[[], None] = _nothing  # called when the first queue becomes dirty
        self.per_turn = TurnLimits()
        self.work_left = 0  # queues that this turn may still process
        self.delays = Delays(self)
        self.queue_timers = QueueTimers(self)
        self.batch: Batch | None = None  # open between ``begin`` and ``commit``

    def count(self, exchange: QueueExchange, messages: int, more_copies: int = 0) -> None:
        """Count messages that were published to an exchange, and their copies beyond one each."""
        exchange.published += messages
        if more_copies:
            exchange.more_copies += more_copies
        self.used_exchanges.add(exchange)

    def write_pending_publishes(self) -> None:
        """Write what this read has published to streams."""
        if self.pending_publishes and self.stream_publishes is not None:
            self.stream_publishes.write()

    def place(self, message: Message, queues: Sequence[WorkQueue]) -> None:
        """Append to each queue and mark it for this turn."""
        size = len(message.body)
        for queue in queues:
            fifo = queue.fifo
            if fifo is not None:
                fifo.inbox.append(message)
            else:
                queue.store.push(message)
            queue.bytes += size
            if message.expires_ms:
                queue.expiring = True
            if not queue.dirty:
                self.touch(queue)
            if queue.limited:
                self.enforce_limits(queue)
                if queue.outcasts.is_full:
                    self.late_letters[queue] = None

    def touch(self, queue: Queue) -> None:
        """Mark a changed queue, so that it is processed before the turn ends."""
        if not queue.dirty:
            queue.dirty = True
            if not self.dirty:
                self.on_dirty()
            self.dirty.append(queue)

    def enforce_limits(self, queue: WorkQueue) -> None:
        """Drop or dead-letter what is beyond the queue's length, after consumers had their chance."""
        options = queue.options
        if (options.max_length is not None and len(queue.store) > options.max_length) or (
            options.max_length_bytes is not None and queue.bytes > options.max_length_bytes
        ):
            queue.dispatch(self.now_ms, self.pager)
            if queue.shed_excess(self.pager):
                self.unfinished[queue] = None

    def ack(self, leases: Iterable[Lease]) -> None:
        """Acknowledge messages. An ack of a revoked lease counts if no other consumer took the message."""
        with self.together:
            self._ack(leases)

    @property
    def together(self) -> AbstractContextManager[None]:
        """Settlements of streams meanwhile are one record, whichever streams they are of."""
        return _ALONE if self.cross_kind is None else self.cross_kind.together

    def _ack(self, leases: Iterable[Lease]) -> None:
        queue: Queue | None = None
        done: list[Message] = []  # of this queue
        for lease in leases:
            if lease.queue is not queue:
                if queue is not None:
                    self.settle(queue, done)
                queue, done = lease.queue, []
            if lease.holder is not None:
                done.append(lease.message)
            elif isinstance(queue, WorkQueue) and queue.withdraw(lease.message):
                self.touch(queue)
        if queue is not None:
            self.settle(queue, done)

    def settle(self, queue: Queue, messages: list[Message]) -> None:
        """Acknowledge messages of one queue, whose leases the caller has ended."""
        if messages:
            queue.settle_all(messages)
            self.touch(queue)

    def reject(self, leases: Iterable[Lease]) -> None:
        """Reject messages: dead-letter or drop them."""
        with self.together:
            self._reject_all(leases)

    def _reject_all(self, leases: Iterable[Lease]) -> None:
        queue: Queue | None = None
        rejected: list[Message] = []  # of this queue
        for lease in leases:  # there may be 100,000, most of one queue
            if lease.queue is not queue:
                if queue is not None:
                    self._reject(queue, rejected)
                queue, rejected = lease.queue, []
            if lease.holder is None:
                if not isinstance(queue, WorkQueue) or not queue.take_out(lease.message):
                    continue
                queue.unacked += 1  # so that it is removed like a leased message
            rejected.append(lease.message)
        if queue is not None:
            self._reject(queue, rejected)

    def _reject(self, queue: Queue, messages: list[Message]) -> None:
        if messages:
            queue.reject_all(messages)
            self.touch(queue)

    def release(self, leases: Iterable[Lease], failed: bool = False) -> None:
        """Return messages to their old places in the queue; ``failed``: their consumer was lost."""
        with self.together:
            self._release(leases, failed)

    def _release(self, leases: Iterable[Lease], failed: bool) -> None:
        for queue, part in _by_queue(leases).items():
            if queue.deleted:
                continue
            waiting = queue.release(part, self.pager, failed)
            if isinstance(queue, WorkQueue):
                self._record_returned(queue, part)
                self.queue_timers.hold_back(queue, waiting)
            self.touch(queue)  # limits are enforced by the turn: the consumer may be about to leave

    def _record_returned(self, queue: WorkQueue, leases: list[Lease]) -> None:
        if queue.persisted and queue.options.deliveries_allowed is not None and not self.journal.failed:
            payload = encode_returned(
                (queue.id, lease.message.seq, queue.returned.get(lease.message.seq, 0))
                for lease in leases
                if lease.message.persistent
            )
            if payload and self.batch is not None:
                self.batch.add(Kind.RETURNED, payload)
            elif payload:
                self.journal.append(Kind.RETURNED, payload)

    def turn(self) -> None:
        """Complete this turn: deliver, expire, dead-letter, journal, page out.

        Of very many messages that leave their queues, and of very many queues, only some are handled; the
        next turn goes on with the others. Queues with something to journal are handled in any case: a confirm
        that follows an ack on its connection says that both are durable.
        """
        self.write_pending_publishes()
        self.dead_lettering.begin_turn()
        self.work_left = self.per_turn.queues
        later: list[Queue] = []
        while self.dirty:
            dirty, self.dirty = self.dirty, []
            self.used.update(dirty)
            if self.changed:
                for changed in self.changed.values():
                    changed.update(dirty)
            done = 0
            try:
                for queue in dirty:
                    done += 1
                    if self.work_left <= 0 and not queue.has_to_journal and not queue.deleted:
                        later.append(queue)
                        continue
                    queue.dirty = False
                    if not queue.deleted:
                        self.work_left -= 1
                        self._turn_queue(queue)
            finally:
                if done < len(dirty):  # an error in one queue must not stall the others
                    self.dirty[:0] = later + dirty[done:]
                    self.on_dirty()
        if later:
            self.dirty += later
            self.on_dirty()
        if self.unfinished:
            again, self.unfinished = self.unfinished, {}
            for unfinished in again:
                self.touch(unfinished)

    def complete(self) -> None:
        """Run turns until nothing is left to do: the node stops."""
        self.turn()
        while self.dirty and self.journal.failed is None:
            self.turn()

    def _turn_queue(self, queue: Queue) -> None:
        takes_acks = not queue.persisted or not (self.journal.failed or self.journal.stalled)
        is_cut = False  # there is more to deliver, in the next turn
        if queue.consumers and takes_acks:  # without a durable ack the message would be redelivered
            before = queue.figures.delivered
            queue.dispatch(self.now_ms, self.pager)
            delivered = queue.figures.delivered - before
            self.work_left -= delivered // _DELIVERED
            is_cut = delivered >= DELIVERED_AT_ONCE
        if not isinstance(queue, WorkQueue):
            return
        store = queue.store
        if is_cut:
            self.unfinished[queue] = None
        elif queue.expiring and len(store):
            self.queue_timers.expire(queue)
        if queue.limited and takes_acks and not is_cut:
            self.enforce_limits(queue)  # a policy may have lowered them
        if queue.outcasts and not self.dead_lettering.cast_out_some(queue):
            self.unfinished[queue] = None
        if store.unreadable:
            self._pass_over(queue)
        journal = self.journal
        if journal.failed:
            queue.settled.clear()  # nothing more can be written; a restart brings these back
            return
        if queue.settled:
            journal.append(Kind.SETTLED, take_settled(queue))
        if queue.delivered_upto > queue.delivered_recorded and (queue.unacked or queue.returned):
            queue.delivered_recorded = queue.delivered_upto
            journal.append(Kind.DELIVERED, encode_mark(queue.id, queue.delivered_upto))
        self._bound_memory(queue)

    def _bound_memory(self, queue: WorkQueue) -> None:
        """Keep the ready messages of all queues within the node's memory budget."""
        memory, store = self.memory, queue.store
        memory.note(queue, queue.bytes_in_memory)
        is_short = memory.is_exceeded
        if is_short or not queue.is_all_in_memory:
            self.work_left -= store.in_memory // _LOOKED_AT
            store.spill(self.pager, queue.bytes, is_short)
            memory.note(queue, queue.bytes_in_memory)
            if is_short and memory.is_exceeded:
                largest = memory.largest()
                if largest is not None and largest is not queue:
                    self.touch(largest)  # it is handled within this turn

    def _pass_over(self, queue: WorkQueue) -> None:
        """List the queue's unreadable messages as damaged, and continue without them."""
        for error in queue.store.take_unreadable():
            queue.bytes = max(0, queue.bytes - error.size)
            if isinstance(error, LostRun):
                self.damage.note_lost(queue.vhost, queue.name, error.messages, error.size, error.reason)
                continue
            self.damage.note("queue", queue.vhost, queue.name, error)
            if error.dropped and queue.persisted:  # a repair has dropped it: it will not come back
                queue.settled.append(error.position)
        if not len(queue):
            queue.bytes = 0

    def tick(self) -> None:
        """Run timers that are due at ``now_ms``; of very many only some, since other work waits."""
        due = self.timers.advance(self.now_ms / 1000, self.per_turn.timers)
        done = 0
        try:
            for timer in due:
                done += 1
                if not timer.cancelled:  # by one that was due at the same time
                    timer.payload()
        finally:
            for timer in due[done:]:  # an error in one timer must not lose the others
                self.timers.schedule(timer.at, timer.payload)

    @property
    def delayed(self) -> dict[int, tuple[bool, int]]:
        """Delayed messages: position -> persistent, due time."""
        return self.delays.waiting

    @property
    def in_batch(self) -> bool:
        """Whether a batch is open, between ``begin`` and ``commit``."""
        return self.batch is not None

    def on_the_way(self, queue: Queue) -> tuple[int, int]:
        """Messages and bytes for which a queue that refuses when it is full must keep room."""
        count, size = (0, 0) if self.batch is None else self.batch.on_the_way(queue)
        if self.prepares is not None:
            more, more_bytes = self.prepares.of(queue)
            count, size = count + more, size + more_bytes
        return count, size

    @property
    def batch_bytes(self) -> int:
        """Approximate size of the batch so far."""
        return 0 if self.batch is None else self.batch.size

    def begin(self, prepared: PreparedPublishes | None = None) -> None:
        """Open a batch: everything journalled until ``commit`` is one record, with what was prepared."""
        assert self.batch is None
        self.write_pending_publishes()  # earlier publishes are not part of the batch
        self.batch = Batch()
        self.batch.prepared = prepared

    def add_record(self, kind: int, payload: bytes) -> None:
        """Write this record with the open batch; the caller has applied what it says."""
        assert self.batch is not None
        self.batch.add(kind, payload)

    def abort(self) -> None:
        """Discard the batch."""
        self.batch = None

    def commit(self, settled: Iterable[Queue] = ()) -> bool:
        """Write the batch and what left these queues, then enqueue its messages. True if journalled."""
        batch = self.batch
        assert batch is not None
        for queue in settled:
            if not isinstance(queue, WorkQueue):
                continue
            self.dead_lettering.record_leaving(queue, queue.outcasts.take_all())
        for letter in batch.passed_on:  # grows in the loop; ends, since no letter passes a queue twice
            if letter[2] in letter[0].exchanges:
                self.dead_lettering.dead_letter(*letter)
        self.abort()
        records, streams = batch.records, batch.for_streams
        cross_kind = self.cross_kind
        positions: list[int] = []
        together = cross_kind is not None and (bool(streams) or cross_kind.pending)
        if batch.prepared is not None:
            assert not together
            positions = batch.prepared.write(records)
        elif together and cross_kind is not None:
            positions = cross_kind.write(records, streams)
        elif len(records) == 1:
            positions = [self.journal.append(*records[0])]
        elif records:
            positions = self.journal.append_batch(records)
        place = self.place
        for message, queues, index in batch.placements:
            if index >= 0:
                message.position = positions[index]
            place(message, queues)
        for index, persistent, due_ms in batch.delays:
            self.delays.schedule(positions[index], persistent, due_ms)
        for accepted in batch.accepted:
            self.delays.begin(accepted, positions[accepted.index])
        return bool(records) or together or (batch.prepared is not None and batch.prepared.is_journalled)

    def at(self, due_ms: int, action: Callable[[], object]) -> ActionTimer:
        """Run an action at a time. Until then the timer keeps alive what the action refers to."""
        return self.timers.schedule(due_ms / 1000, action)


def _by_queue(leases: Iterable[Lease]) -> dict[Queue, list[Lease]]:
    """Leases by their queue, in the given order. There may be 100,000, most or all of one queue."""
    every = list(leases)
    if len(set(map(_queue, every))) == 1:
        return {every[0].queue: every}
    parts: dict[Queue, list[Lease]] = {}
    for lease in every:
        parts.setdefault(lease.queue, []).append(lease)
    return parts


def _nothing() -> None:
    return None
