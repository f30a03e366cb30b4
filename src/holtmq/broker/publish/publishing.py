"""Incoming messages: which queues take them, and what is journalled.

Owns: how a message gets into its queues. Must not touch: delayed messages (``delays.py``), how messages leave
(``flow.py``, ``dead_lettering.py``), topology changes (``broker.py``), sockets, clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from holtmq.broker.message import Message, encode_message, unplaced
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.routes import Route
from holtmq.broker.records.changes import Kind
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_options import Overflow
from holtmq.broker.topology.recent_history import RecentHistory
from holtmq.broker.topology.targets import durable_ids
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.work_queue import Reason, WorkQueue
from holtmq.wire.properties import PROPERTIES_AT

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow


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

    __slots__ = ("_flow",)

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def publish(
        self, route: Route, properties: PublishProperties, header: bytes, body: bytes
    ) -> PublishOutcome:
        """Publish a message. (Plain AMQP publishes take a faster path, ``amqp/publish_run.py``.)"""
        flow = self._flow
        exchange = route.exchange
        exchange.published += 1  # count(), inlined
        flow.used_exchanges.add(exchange)
        flow.seq = seq = flow.seq + 1
        ttl = properties.ttl_ms
        now_ms = flow.now_ms
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
        batch = flow.batch
        if not route.simple or not properties.plain or batch is not None:
            if (
                batch is None
                or not route.simple
                or not properties.plain
                or route.version != route.vhost.version
            ):
                return self._publish_special(route, properties, message)
            exchange.more_copies += len(route.queues) - 1
            if not route.queues:
                return _UNROUTED
            ids = route.durable_ids if persistent else b""
            index = batch.add(_MESSAGE, encode_message(message, ids)) if ids else -1
            batch.placements.append((message, route.work_queues, index))
            return _JOURNALLED if ids else _PLACED
        outcome = _PLACED
        if persistent and route.durable_ids:
            if flow.pending_publishes:
                flow.write_pending_publishes()
            message.position = flow.journal.append(_MESSAGE, encode_message(message, route.durable_ids))
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
                flow.touch(queue)
            return outcome
        exchange.more_copies += len(route.queues) - 1
        if not route.queues:
            return _UNROUTED
        flow.place(message, route.work_queues)
        return outcome

    def publish_in_read(
        self, route: Route, properties: PublishProperties, header: bytes, body: bytes
    ) -> PublishOutcome:
        """``publish``, for a caller that calls ``write_pending_publishes`` before any other operation."""
        flow = self._flow
        if (
            route.streams
            and flow.stream_publishes is not None
            and flow.stream_publishes.take(route, properties, body)
        ):
            flow.seq += 1
            flow.count(route.exchange, 1, len(route.queues) - 1)
            return _JOURNALLED
        return self.publish(route, properties, header, body)

    def _publish_special(
        self, route: Route, properties: PublishProperties, message: Message
    ) -> PublishOutcome:
        """Publish anything but a plain message on a plain route."""
        flow = self._flow
        if flow.pending_publishes:
            flow.write_pending_publishes()  # they were published first
        queues: dict[str, Queue] = {}
        delays: dict[str, int] = {}
        histories: dict[RecentHistory, None] = {}
        # A transaction's routes may be older than the topology at its commit.
        needs = not route.simple or flow.batch is not None
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
            flow.delays.add(message, route.vhost.name, exchange, flow.now_ms + delay_ms)
        if properties.visible_bytes is not None:
            message.header = message.header[:PROPERTIES_AT] + properties.visible_bytes
        for history in histories:
            history.keep(unplaced(message), properties.headers)
        accepted: list[Queue] = []
        for queue in queues.values():
            if not self._refuses(queue, message):
                accepted.append(queue)
            elif isinstance(queue, WorkQueue) and queue.options.overflow is Overflow.REJECT_PUBLISH_DLX:
                queue.outcasts.append((Reason.MAXLEN, unplaced(message)))
                flow.touch(queue)
        route.exchange.more_copies += len(accepted) - 1
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

    def _refuses(self, queue: Queue, message: Message) -> bool:
        flow = self._flow
        if not queue.refuses_when_full:
            return False
        if self.is_full(queue, message):
            return True
        if flow.batch is not None:
            flow.batch.send(queue, len(message.body))
        return False

    def is_full(self, queue: Queue, message: Message) -> bool:
        """Whether a queue has no room for a message, behind those of the open batch."""
        flow = self._flow
        size, batch = len(message.body), flow.batch
        ahead = (0, 0) if batch is None else batch.on_the_way(queue)
        if not queue.is_full(size, *ahead):
            return False
        queue.dispatch(flow.now_ms, flow.pager)  # consumers first: they may make room
        flow.touch(queue)
        return queue.is_full(size, *ahead)

    def _record_and_place(self, message: Message, queues: Sequence[Queue]) -> bool:
        flow = self._flow
        if not message.persistent and any(queue.always_persists for queue in queues):
            losing = [queue for queue in queues if queue.forgets_transient]
            if losing:
                self._record_and_place(unplaced(message), losing)
                queues = [queue for queue in queues if not queue.forgets_transient]
            message.persistent = True
        ids = durable_ids(list(queues)) if message.persistent else b""
        work_queues = [queue for queue in queues if isinstance(queue, WorkQueue)]
        streams = [(queue, message) for queue in queues if isinstance(queue, StreamQueue)]
        batch = flow.batch
        if batch is not None:
            index = batch.add(Kind.MESSAGE, encode_message(message, ids)) if ids else -1
            batch.placements.append((message, work_queues, index))
            batch.for_streams += streams
            return bool(ids) or bool(streams)
        if streams:
            # A partitioned queue journals transient messages too; here in one record with the work queues.
            assert flow.cross_kind is not None
            records = [(int(Kind.MESSAGE), encode_message(message, ids))] if ids else []
            positions = flow.cross_kind.write(records, streams)
            if ids:
                message.position = positions[0]
        elif ids:
            message.position = flow.journal.append(Kind.MESSAGE, encode_message(message, ids))
        flow.place(message, work_queues)
        return bool(ids) or bool(streams)

    def place_unconfirmed(
        self, vhost: VHost, queues: Collection[Queue], message: Message, origin: Queue | None = None
    ) -> bool:
        """Enqueue a message that has no publisher to refuse to; a full queue may dead-letter it instead."""
        flow = self._flow
        assert flow.batch is not None
        full: list[Queue] = []
        accepted: list[Queue] = []
        for queue in queues:
            refused = queue is not origin and self._refuses(queue, message)
            (full if refused else accepted).append(queue)
        if accepted:
            self._record_and_place(message, accepted)
        for queue in full:
            exchange = queue.options.dead_letter_exchange
            overflow = queue.options.overflow
            if (
                isinstance(queue, WorkQueue)
                and overflow is Overflow.REJECT_PUBLISH_DLX
                and exchange is not None
            ):
                flow.batch.passed_on.append((vhost, queue, exchange, Reason.MAXLEN, message))
        return bool(accepted)

    def forward(self, message: Message, queues: Sequence[Queue]) -> bool:
        """In a batch, place a message that an operator moves; False: one of the queues is full."""
        flow = self._flow
        batch, size = flow.batch, len(message.body)
        assert batch is not None
        limited = [queue for queue in queues if queue.refuses_when_full]
        if any(queue.is_full(size, *batch.on_the_way(queue)) for queue in limited):
            return False
        for queue in limited:
            batch.send(queue, size)
        if queues:
            self._record_and_place(message, queues)
        return True

    def publish_later(self, route: Route, header: bytes, body: bytes, delay_ms: int) -> None:
        """Accept a persistent message that is routed after a delay."""
        flow = self._flow
        flow.seq += 1
        message = Message(flow.seq, route.address, header, body, flow.now_ms, 0, 0, True)
        flow.delays.add(message, route.vhost.name, route.exchange.name, flow.now_ms + delay_ms)

    def recall(self, vhost: VHost, history: RecentHistory, queues: Collection[Queue]) -> None:
        """Put the recent messages of an exchange into queues that were just bound to it."""
        flow = self._flow
        inside = flow.batch is not None
        if not inside:
            flow.begin()
        try:
            for kept in history.messages():
                flow.seq += 1
                again = unplaced(kept)
                again.seq = flow.seq
                if again.expires_ms:
                    again.expires_ms += flow.now_ms - again.arrived_ms
                again.arrived_ms = flow.now_ms
                self.place_unconfirmed(vhost, queues, again)
        except BaseException:
            if not inside:
                flow.abort()
            raise
        if not inside:
            flow.commit()
