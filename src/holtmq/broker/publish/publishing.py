"""Incoming messages: publish, enqueue, delay, and what is journalled as one record.

Owns: how a message gets into its queues; batches that become one atomic record. Must not touch: how
messages leave (``flow.py``), topology changes (``broker.py``), sockets, clocks: the caller sets
``now_ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Final

from holtmq.broker.damage import DamageList
from holtmq.broker.message import Message, encode_message, unplaced
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.publish.publish_properties import Traits, TraitsCache
from holtmq.broker.publish.record_batch import Batch, CrossKindJournal
from holtmq.broker.publish.routes import Route
from holtmq.broker.publish.stream_publishes import StreamPublishes
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import (
    decode_delayed,
    encode_delayed,
)
from holtmq.broker.timer_wheel import TimerWheel
from holtmq.broker.topology.queue_arguments import Overflow
from holtmq.broker.topology.targets import durable_ids
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.memory_budget import MemoryBudget
from holtmq.broker.work.paging import MemorySpill, MessagePager, Spill
from holtmq.broker.work.work_queue import Reason, WorkQueue
from holtmq.journal.interface import Journal, RecordUnreadable
from holtmq.wire.properties import PROPERTIES_AT, with_headers
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
        "_batch",
        "cross_kind",
        "damage",
        "delayed",
        "dirty",
        "gathered",
        "journal",
        "memory",
        "now_ms",
        "on_dirty",
        "pager",
        "seq",
        "stream_publishes",
        "timers",
        "traits",
        "vhosts",
        "walkers",
    )

    def __init__(self, journal: Journal, vhosts: dict[str, VHost], spill: Spill | None = None) -> None:
        self.journal = journal
        self.memory = MemoryBudget()
        self.damage = DamageList(journal)
        self.cross_kind: CrossKindJournal | None = None  # if there are partitioned queues
        self.stream_publishes: StreamPublishes | None = None  # likewise
        self.gathered: list[PushItem] = []  # stream publishes of this read, not written yet
        self.pager = MessagePager(journal, spill or MemorySpill())
        self.vhosts = vhosts
        self.traits = TraitsCache()
        self.walkers = PropertyWalkers()
        self.timers: TimerWheel[Callable[[], None]] = TimerWheel()
        self.now_ms = 0
        self.seq = 0
        self.dirty: list[WorkQueue] = []  # queues with work in this turn
        self.on_dirty: Callable[[], None] = _nothing  # called when the first queue becomes dirty
        self.delayed: dict[int, tuple[bool, int]] = {}  # position -> persistent, due time
        self._batch: Batch | None = None

    def publish(self, route: Route, traits: Traits, header: bytes, body: bytes) -> PublishOutcome:
        """Publish a message. (Plain AMQP publishes take a faster path, ``amqp/publish_run.py``.)"""
        self.seq = seq = self.seq + 1
        ttl = traits.ttl_ms
        now_ms = self.now_ms
        persistent = traits.persistent or route.persists
        message = Message(
            seq,
            route.address,
            header,
            body,
            now_ms,
            0 if ttl is None else now_ms + ttl,
            traits.priority,
            persistent,
        )
        batch = self._batch
        if not route.simple or not traits.plain or batch is not None:
            if batch is None or not route.simple or not traits.plain or route.version != route.vhost.version:
                return self._publish_special(route, traits, message)
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
                fifo = queue.fifos[traits.priority]
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

    def publish_in_read(self, route: Route, traits: Traits, header: bytes, body: bytes) -> PublishOutcome:
        """``publish`` for a caller that calls ``write_gathered`` before it does anything but publish."""
        if (
            route.streams
            and self.stream_publishes is not None
            and self.stream_publishes.take(route, traits, body)
        ):
            return _JOURNALLED
        return self.publish(route, traits, header, body)

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

    def _publish_special(self, route: Route, traits: Traits, message: Message) -> PublishOutcome:
        """Publish anything but a plain message on a plain route."""
        if self.gathered:
            self.write_gathered()  # they were published first
        queues: dict[str, WorkQueue] = {}
        delays: dict[str, int] = {}
        # A transaction's routes may be older than the topology at its commit.
        needs = not route.simple or self._batch is not None
        for key in (route.routing_key, *traits.extra_keys):
            if not needs and key is route.routing_key:
                queues.update((queue.name, queue) for queue in route.queues)
                continue
            result = route.vhost.route(
                route.exchange,
                key,
                traits.headers,
                traits.hash_properties() if route.exchange.needs_properties else None,
            )
            queues.update((queue.name, queue) for queue in result.queues)
            delays.update((delay.exchange.name, delay.delay_ms) for delay in result.delays)
        for exchange, delay_ms in delays.items():  # all keys, also BCC, are routed when it is due
            self._delay(message, route.vhost.name, exchange, self.now_ms + delay_ms)
        if traits.visible_bytes is not None:
            message.header = message.header[:PROPERTIES_AT] + traits.visible_bytes
        if not message.persistent and any(queue.always_persists for queue in queues.values()):
            message.persistent = True
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
        size, batch = len(message.body), self._batch
        ahead = (0, 0) if batch is None else batch.on_the_way(queue)
        if queue.is_full(size, *ahead):
            queue.dispatch(self.now_ms, self.pager)  # consumers first: they may make room
            self.touch(queue)
            if queue.is_full(size, *ahead):
                return True
        if batch is not None:
            batch.send(queue, size)
        return False

    def _record_and_place(self, message: Message, queues: Sequence[WorkQueue]) -> bool:
        ids = durable_ids(list(queues)) if message.persistent else b""
        batch = self._batch
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

    def _place_unconfirmed(
        self, vhost: VHost, queues: Collection[WorkQueue], message: Message, origin: WorkQueue | None = None
    ) -> bool:
        """Enqueue a message that has no publisher to refuse to; a full queue may dead-letter it instead."""
        assert self._batch is not None
        if not message.persistent and any(queue.always_persists for queue in queues):
            message.persistent = True
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
                self._batch.passed_on.append((vhost, queue, exchange, Reason.MAXLEN, message))
        return bool(accepted)

    def _enforce_limits(self, queue: WorkQueue) -> None:
        options = queue.options
        if (options.max_length is not None and len(queue.store) > options.max_length) or (
            options.max_length_bytes is not None and queue.bytes > options.max_length_bytes
        ):
            queue.dispatch(self.now_ms, self.pager)
            queue.shed_excess(self.pager)

    @property
    def in_batch(self) -> bool:
        """Whether a batch is open, between ``begin`` and ``commit``."""
        return self._batch is not None

    @property
    def batch_bytes(self) -> int:
        """Approximate size of the batch so far."""
        return 0 if self._batch is None else self._batch.size

    def begin(self) -> None:
        """Open a batch: everything journalled until ``commit`` is one record."""
        assert self._batch is None
        self.write_gathered()  # earlier publishes are not part of the batch
        self._batch = Batch()

    def add_record(self, kind: int, payload: bytes) -> None:
        """Write this record with the open batch; the caller has applied what it says."""
        assert self._batch is not None
        self._batch.add(kind, payload)

    def abort(self) -> None:
        """Discard the batch."""
        self._batch = None

    def commit(self) -> bool:
        """Write the batch, then enqueue its messages. True if something was journalled."""
        batch = self._batch
        assert batch is not None
        self.abort()
        records, streams = batch.records, batch.for_streams
        cross_kind = self.cross_kind
        positions: list[int] = []
        together = cross_kind is not None and (bool(streams) or cross_kind.pending)
        if together and cross_kind is not None:
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
            self.schedule_delayed(positions[index], persistent, due_ms)
        return bool(records) or together

    def publish_later(self, route: Route, header: bytes, body: bytes, delay_ms: int) -> None:
        """Accept a persistent message that is routed after a delay."""
        self.seq += 1
        message = Message(self.seq, route.address, header, body, self.now_ms, 0, 0, True)
        self._delay(message, route.vhost.name, route.exchange.name, self.now_ms + delay_ms)

    def _delay(self, message: Message, vhost: str, exchange: str, due_ms: int) -> None:
        payload = encode_delayed(message, vhost, exchange, due_ms)
        kind = Kind.DELAYED if message.persistent else Kind.PAGED
        if self._batch is not None:
            self._batch.delays.append((self._batch.add(kind, payload), message.persistent, due_ms))
            return
        self.schedule_delayed(self.journal.append(kind, payload), message.persistent, due_ms)

    def schedule_delayed(self, position: int, persistent: bool, due_ms: int) -> None:
        """Set a timer for a delayed message in the journal (also after a restart)."""
        self.delayed[position] = (persistent, due_ms)
        self.at(due_ms, lambda: self._delay_ended(position))

    def _delay_ended(self, position: int) -> None:
        waiting = self.delayed.pop(position, None)
        if waiting is None or self.journal.failed:
            return
        try:
            self._place_delayed(position, waiting[0])
        except RecordUnreadable as error:
            self.damage.note("delayed", "", "", error)
            if not error.dropped:
                self.delayed[position] = waiting  # without a timer: it stays in the journal
            elif waiting[0]:
                self.journal.append(Kind.DELAY_ENDED, position.to_bytes(8, "little"))
        except BaseException:
            self.abort()
            self.delayed[position] = waiting  # so that a checkpoint keeps it, and a restart tries again
            raise

    def _place_delayed(self, position: int, persistent: bool) -> None:
        _, vhost_name, exchange_name, message = decode_delayed(self.journal.read(position)[1])
        vhost = self.vhosts.get(vhost_name)
        exchange = vhost.exchanges.get(exchange_name) if vhost is not None else None
        self.begin()
        assert self._batch is not None
        if persistent:
            self._batch.add(Kind.DELAY_ENDED, position.to_bytes(8, "little"))
        if vhost is not None and exchange is not None:
            self.seq += 1
            message.seq = self.seq
            if message.expires_ms:
                message.expires_ms += self.now_ms - message.arrived_ms
            message.arrived_ms = self.now_ms
            traits = self.traits.of(message.header)
            queues: dict[str, WorkQueue] = {}
            for key in (message.routing_key, *traits.extra_keys):
                result = vhost.route(
                    exchange, key, traits.headers, traits.hash_properties(), delay_served=True
                )
                queues.update((queue.name, queue) for queue in result.queues)
            if traits.delay_ms:
                message.header = _delay_served(message.header, traits)
            self._place_unconfirmed(vhost, queues.values(), message)
        self.commit()

    def at(self, due_ms: int, action: Callable[[], None]) -> None:
        """Run an action at a time."""
        self.timers.schedule(due_ms / 1000, action)


def _delay_served(header: bytes, traits: Traits) -> bytes:
    """Negate x-delay, as RabbitMQ's plugin does, to show that the message has waited; remove BCC."""
    headers = {key: value for key, value in traits.headers.items() if key != "BCC"}
    headers["x-delay"] = -traits.delay_ms
    properties = with_headers(header[PROPERTIES_AT:], headers, drop_expiration=False)
    return header[:PROPERTIES_AT] + properties


def _nothing() -> None:
    return None
