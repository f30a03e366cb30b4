"""Incoming messages: publish, enqueue, and what is journalled as one record.

Owns: how a message gets into its queues; batches that become one atomic record. Must not touch: delayed
messages (``delays.py``), how messages leave (``flow.py``), topology changes (``broker.py``), sockets, clocks:
the caller sets ``now_ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Final

from holtmq.broker.damage import DamageList
from holtmq.broker.message import Message, encode_message, unplaced
from holtmq.broker.publish.delays import Delays
from holtmq.broker.publish.prepared import PreparedPublishes
from holtmq.broker.publish.publish_properties import PublishProperties, PublishPropertiesCache
from holtmq.broker.publish.record_batch import Batch, CrossKindJournal
from holtmq.broker.publish.routes import Route
from holtmq.broker.publish.stream_publishes import Gathered, StreamPublishes
from holtmq.broker.records.changes import Kind
from holtmq.broker.timer_wheel import TimerWheel
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.queue_arguments import Overflow
from holtmq.broker.topology.recent_history import RecentHistory
from holtmq.broker.topology.targets import durable_ids
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.memory_budget import MemoryBudget
from holtmq.broker.work.paging import MemorySpill, MessagePager, Spill
from holtmq.broker.work.work_queue import Reason, WorkQueue
from holtmq.journal.interface import Journal
from holtmq.wire.properties import PROPERTIES_AT
from holtmq.wire.property_walker import PropertyWalkers


class PublishOutcome(IntEnum):
    """The result of a publish."""

    PLACED = 0  # in memory: confirmed at once
    JOURNALLED = 1  # confirmed when durable
    UNROUTED = 2  # no queue matched
    REFUSED = 3  # a queue was full


_PLACED: Final = PublishOutcome.PLACED
_JOURNALLED: Final = PublishOutcome.JOURNALLED
_UNROUTED: Final = PublishOutcome.UNROUTED
_MESSAGE: Final = int(Kind.MESSAGE)


class Publishing:
    """Accepts messages and puts them into queues, or into the journal until their delay ends."""

    __slots__ = (
        "batch",
        "cross_kind",
        "damage",
        "delays",
        "dirty",
        "gathered",
        "journal",
        "memory",
        "now_ms",
        "on_dirty",
        "pager",
        "prepares",
        "publish_properties",
        "seq",
        "stream_publishes",
        "timers",
        "used_exchanges",
        "vhosts",
        "walkers",
    )

    def __init__(self, journal: Journal, vhosts: dict[str, VHost], spill: Spill | None = None) -> None:
        self.journal = journal
        self.memory = MemoryBudget()
        self.damage = DamageList(journal)
        self.cross_kind: CrossKindJournal | None = None  # if there are partitioned queues
        self.stream_publishes: StreamPublishes | None = None  # likewise
        self.gathered: list[Gathered] = []  # stream publishes of this read, not written yet
        self.pager = MessagePager(journal, spill or MemorySpill())
        self.vhosts = vhosts
        self.publish_properties = PublishPropertiesCache()
        self.walkers = PropertyWalkers()
        self.timers: TimerWheel[Callable[[], object]] = TimerWheel()
        self.now_ms = 0
        self.seq = 0
        self.prepares = False  # one large transaction at a time has numbers ahead of ``seq``
        self.used_exchanges: set[Exchange[WorkQueue]] = set()  # since the last sample of the figures
        self.dirty: list[WorkQueue] = []  # queues with work in this turn
        self.on_dirty: Callable[[], None] = _nothing  # called when the first queue becomes dirty
        self.delays = Delays(self)
        self.batch: Batch | None = None  # open between ``begin`` and ``commit``

    def publish(
        self, route: Route, properties: PublishProperties, header: bytes, body: bytes
    ) -> PublishOutcome:
        """Publish a message. (Plain AMQP publishes take a faster path, ``amqp/publish_run.py``.)"""
        exchange = route.exchange
        exchange.published += 1  # count(), inlined
        self.used_exchanges.add(exchange)
        self.seq = seq = self.seq + 1
        ttl = properties.ttl_ms
        now_ms = self.now_ms
        persistent = properties.persistent or route.persists
        message = Message(
            seq,
            route.address,
            header,
            body,
            now_ms,
            0 if ttl is None else now_ms + ttl,
            properties.priority,
            persistent,
        )
        batch = self.batch
        if not route.simple or not properties.plain or batch is not None:
            if (
                batch is None
                or not route.simple
                or not properties.plain
                or route.version != route.vhost.version
            ):
                return self._publish_special(route, properties, message)
            if not route.queues:
                return _UNROUTED
            ids = route.durable_ids if persistent else b""
            index = batch.add(_MESSAGE, encode_message(message, ids)) if ids else -1
            batch.placements.append((message, route.queues, index))
            return _JOURNALLED if ids else _PLACED
        outcome = _PLACED
        if persistent and route.durable_ids:
            if self.gathered:
                self.write_gathered()
            message.position = self.journal.append(_MESSAGE, encode_message(message, route.durable_ids))
            outcome = _JOURNALLED
        queue = route.only_queue
        if queue is not None:  # place(), inlined for the most common route
            fifo = queue.fifo
            if fifo is None:
                fifo = queue.fifos[properties.priority]
            fifo.inbox.append(message)
            queue.bytes += len(body)
            if ttl is not None:
                queue.expiring = True
            if not queue.dirty:
                self.touch(queue)
            return outcome
        if not route.queues:
            return _UNROUTED
        self.place(message, route.queues)
        return outcome

    def publish_in_read(
        self, route: Route, properties: PublishProperties, header: bytes, body: bytes
    ) -> PublishOutcome:
        """``publish`` for a caller that calls ``write_gathered`` before it does anything but publish."""
        if (
            route.streams
            and self.stream_publishes is not None
            and self.stream_publishes.take(route, properties, body)
        ):
            self.seq += 1
            self.count(route.exchange, 1)
            return _JOURNALLED
        return self.publish(route, properties, header, body)

    def count(self, exchange: Exchange[WorkQueue], messages: int) -> None:
        """Count messages that were published to an exchange."""
        exchange.published += messages
        self.used_exchanges.add(exchange)

    def write_gathered(self) -> None:
        """Write what this read has published to streams."""
        if self.gathered and self.stream_publishes is not None:
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
                self._enforce_limits(queue)

    def touch(self, queue: WorkQueue) -> None:
        """Mark a changed queue, so that it is processed before the turn ends."""
        if not queue.dirty:
            queue.dirty = True
            if not self.dirty:
                self.on_dirty()
            self.dirty.append(queue)

    def _publish_special(
        self, route: Route, properties: PublishProperties, message: Message
    ) -> PublishOutcome:
        """Publish anything but a plain message on a plain route."""
        if self.gathered:
            self.write_gathered()  # they were published first
        queues: dict[str, WorkQueue] = {}
        delays: dict[str, int] = {}
        histories: dict[RecentHistory, None] = {}
        # A transaction's routes may be older than the topology at its commit.
        needs = not route.simple or self.batch is not None
        for key in (route.routing_key, *properties.extra_keys):
            if not needs and key is route.routing_key:
                queues.update((queue.name, queue) for queue in route.queues)
                continue
            result = route.vhost.route(
                route.exchange,
                key,
                properties.headers,
                properties.hash_properties() if route.exchange.needs_properties else None,
            )
            queues.update((queue.name, queue) for queue in result.queues)
            delays.update((delay.exchange.name, delay.delay_ms) for delay in result.delays)
            histories.update(dict.fromkeys(result.histories))
        for exchange, delay_ms in delays.items():  # all keys, also BCC, are routed when it is due
            self.delays.add(message, route.vhost.name, exchange, self.now_ms + delay_ms)
        if properties.visible_bytes is not None:
            message.header = message.header[:PROPERTIES_AT] + properties.visible_bytes
        for history in histories:
            history.keep(unplaced(message), properties.headers)
        accepted: list[WorkQueue] = []
        for queue in queues.values():
            if not self._refuses(queue, message):
                accepted.append(queue)
            elif queue.options.overflow is Overflow.REJECT_PUBLISH_DLX:
                queue.outcasts.append((Reason.MAXLEN, unplaced(message)))
                self.touch(queue)
        journalled = self._record_and_place(message, accepted)
        if len(accepted) < len(queues):
            return PublishOutcome.REFUSED
        if not queues and not delays:
            return PublishOutcome.UNROUTED
        return (
            PublishOutcome.JOURNALLED
            if journalled or (delays and message.persistent)
            else PublishOutcome.PLACED
        )

    def _refuses(self, queue: WorkQueue, message: Message) -> bool:
        if not queue.refuses_when_full:
            return False
        if self.is_full(queue, message):
            return True
        if self.batch is not None:
            self.batch.send(queue, len(message.body))
        return False

    def is_full(self, queue: WorkQueue, message: Message) -> bool:
        """Whether a queue has no room for a message, behind those of the open batch."""
        size, batch = len(message.body), self.batch
        ahead = (0, 0) if batch is None else batch.on_the_way(queue)
        if not queue.is_full(size, *ahead):
            return False
        queue.dispatch(self.now_ms, self.pager)  # consumers first: they may make room
        self.touch(queue)
        return queue.is_full(size, *ahead)

    def _record_and_place(self, message: Message, queues: Sequence[WorkQueue]) -> bool:
        if not message.persistent and any(queue.always_persists for queue in queues):
            losing = [queue for queue in queues if queue.forgets_transient]
            if losing:
                self._record_and_place(unplaced(message), losing)
                queues = [queue for queue in queues if not queue.forgets_transient]
            message.persistent = True
        ids = durable_ids(list(queues)) if message.persistent else b""
        batch = self.batch
        if batch is not None:
            index = batch.add(Kind.MESSAGE, encode_message(message, ids)) if ids else -1
            batch.placements.append((message, queues, index))
            return bool(ids) or any(queue.is_stream for queue in queues)
        streams = [(queue, message) for queue in queues if queue.is_stream]
        if streams:
            # A partitioned queue journals transient messages too; here in one record with the work queues.
            assert self.cross_kind is not None
            records = [(int(Kind.MESSAGE), encode_message(message, ids))] if ids else []
            positions = self.cross_kind.write(records, streams)
            queues = [queue for queue in queues if not queue.is_stream]
            if ids:
                message.position = positions[0]
        elif ids:
            message.position = self.journal.append(Kind.MESSAGE, encode_message(message, ids))
        self.place(message, queues)
        return bool(ids) or bool(streams)

    def place_unconfirmed(
        self, vhost: VHost, queues: Collection[WorkQueue], message: Message, origin: WorkQueue | None = None
    ) -> bool:
        """Enqueue a message that has no publisher to refuse to; a full queue may dead-letter it instead."""
        assert self.batch is not None
        full: list[WorkQueue] = []
        accepted: list[WorkQueue] = []
        for queue in queues:
            refused = queue is not origin and self._refuses(queue, message)
            (full if refused else accepted).append(queue)
        if accepted:
            self._record_and_place(message, accepted)
        for queue in full:
            exchange = queue.options.dead_letter_exchange
            if queue.options.overflow is Overflow.REJECT_PUBLISH_DLX and exchange is not None:
                self.batch.passed_on.append((vhost, queue, exchange, Reason.MAXLEN, message))
        return bool(accepted)

    def forward(self, message: Message, queues: Sequence[WorkQueue]) -> bool:
        """In a batch, place a message that an operator moves; False: one of the queues is full."""
        batch, size = self.batch, len(message.body)
        assert batch is not None
        limited = [queue for queue in queues if queue.refuses_when_full]
        if any(queue.is_full(size, *batch.on_the_way(queue)) for queue in limited):
            return False
        for queue in limited:
            batch.send(queue, size)
        if queues:
            self._record_and_place(message, queues)
        return True

    def add_record(self, kind: int, payload: bytes) -> None:
        """Write this record with the open batch; the caller has applied what it says."""
        assert self.batch is not None
        self.batch.add(kind, payload)

    def _enforce_limits(self, queue: WorkQueue) -> None:
        options = queue.options
        if (options.max_length is not None and len(queue.store) > options.max_length) or (
            options.max_length_bytes is not None and queue.bytes > options.max_length_bytes
        ):
            queue.dispatch(self.now_ms, self.pager)
            queue.shed_excess(self.pager)

    @property
    def delayed(self) -> dict[int, tuple[bool, int]]:
        """Delayed messages: position -> persistent, due time."""
        return self.delays.waiting

    @property
    def in_batch(self) -> bool:
        """Whether a batch is open, between ``begin`` and ``commit``."""
        return self.batch is not None

    @property
    def batch_bytes(self) -> int:
        """Approximate size of the batch so far."""
        return 0 if self.batch is None else self.batch.size

    def begin(self, prepared: PreparedPublishes | None = None) -> None:
        """Open a batch: everything journalled until ``commit`` is one record, with what was prepared."""
        assert self.batch is None
        self.write_gathered()  # earlier publishes are not part of the batch
        self.batch = Batch()
        self.batch.prepared = prepared

    def abort(self) -> None:
        """Discard the batch."""
        self.batch = None

    def commit(self) -> bool:
        """Write the batch, then enqueue its messages. True if something was journalled."""
        batch = self.batch
        assert batch is not None
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
            place(message, [queue for queue in queues if not queue.is_stream] if streams else queues)
        for index, persistent, due_ms in batch.delays:
            self.delays.schedule(positions[index], persistent, due_ms)
        return bool(records) or together or (batch.prepared is not None and batch.prepared.is_journalled)

    def publish_later(self, route: Route, header: bytes, body: bytes, delay_ms: int) -> None:
        """Accept a persistent message that is routed after a delay."""
        self.seq += 1
        message = Message(self.seq, route.address, header, body, self.now_ms, 0, 0, True)
        self.delays.add(message, route.vhost.name, route.exchange.name, self.now_ms + delay_ms)

    def recall(self, vhost: VHost, history: RecentHistory, queues: Collection[WorkQueue]) -> None:
        """Put the recent messages of an exchange into queues that were just bound to it."""
        inside = self.batch is not None
        if not inside:
            self.begin()
        try:
            for kept in history.messages():
                self.seq += 1
                again = unplaced(kept)
                again.seq = self.seq
                if again.expires_ms:
                    again.expires_ms += self.now_ms - again.arrived_ms
                again.arrived_ms = self.now_ms
                self.place_unconfirmed(vhost, queues, again)
        except BaseException:
            if not inside:
                self.abort()
            raise
        if not inside:
            self.commit()

    def at(self, due_ms: int, action: Callable[[], object]) -> None:
        """Run an action at a time."""
        self.timers.schedule(due_ms / 1000, action)


def _nothing() -> None:
    return None
