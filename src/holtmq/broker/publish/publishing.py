"""Incoming messages: which queues take them, and what is journalled.

Owns: how a message gets into its queues. Must not touch: delayed messages (``delays.py``), how messages leave
(``flow.py``, ``dead_lettering.py``), topology changes (``broker.py``), sockets, clocks.

Over 400 lines: all ways in end in the same few methods that record and place a message.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import msgspec

from holtmq.broker.message import Message, encode_message, unplaced
from holtmq.broker.publish.due_message import DueMessage, Origin
from holtmq.broker.publish.placings import Placing
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.record_batch import Batch
from holtmq.broker.publish.routes import Route
from holtmq.broker.publish.wide_publishes import QueuesInParts, in_steps
from holtmq.broker.records.changes import Kind
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_options import Overflow
from holtmq.broker.topology.recent_history import RecentHistory
from holtmq.broker.topology.routing import RouteWalk
from holtmq.broker.topology.targets import durable_ids
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.outcasts import Reason
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow


class PublishOutcome(IntEnum):
    """The result of a publish."""

    PLACED = 0  # in memory: confirmed at once
    JOURNALLED = 1  # confirmed when durable
    UNROUTED = 2  # no queue matched
    REFUSED = 3  # a queue was full
    IN_STEPS = 4  # for very many queues: the caller runs ``take_steps``


Steps = Generator[None, None, PublishOutcome]
_PLACED: Final = PublishOutcome.PLACED
_JOURNALLED: Final = PublishOutcome.JOURNALLED
_UNROUTED: Final = PublishOutcome.UNROUTED
_MESSAGE: Final = int(Kind.MESSAGE)
_LETTERS: Final = 50  # that a publisher waits for: about 2 ms


class Publishing:
    """Accepts messages and puts them into queues, or into the journal until their delay ends."""

    __slots__ = ("_flow", "_steps")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._steps: Steps | None = None

    def publish(
        self, route: Route, properties: PublishProperties, header: bytes, body: bytes
    ) -> PublishOutcome:
        """Publish a message. (Plain AMQP publishes take a faster path, ``amqp/publish_run.py``.)

        IN_STEPS: ``take_steps`` is what is left to do. In a batch the message is part of its record, and is
        placed afterwards; if the caller awaits that, it runs ``place`` for each of ``batch.accepted``.
        """
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
                or batch.lined_up
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
        if flow.late_letters:
            self._keep_up()
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
        batch = flow.batch
        walks: list[RouteWalk[Queue]] = []
        found = QueuesInParts(_parts(route, properties, walks, batch is not None))
        widest = route.vhost.widest
        # To look for the first queues takes 2 ms, and perhaps very many connections publish in this turn.
        is_wide = route.is_wide and route.version == route.vhost.version
        if batch is not None:
            is_wide = is_wide or (route.vhost.name, route.exchange.name) in batch.lined_up
        queues = [] if is_wide else found.find(widest)
        if len(queues) > widest or not found.looked_at:
            if batch is not None:
                return self._accept(batch, route, properties, message, found, walks)
            self._steps = self._in_steps(route, properties, message, found, walks)
            return PublishOutcome.IN_STEPS
        has_delays = self._pass_exchanges(route, properties, message, walks)
        accepted, journalled = self.enqueue(message, queues)
        route.exchange.more_copies += accepted - 1
        return _outcome(message, len(queues), accepted, journalled, has_delays)

    def _accept(
        self,
        batch: Batch,
        route: Route,
        properties: PublishProperties,
        message: Message,
        found: QueuesInParts,
        walks: list[RouteWalk[Queue]],
    ) -> PublishOutcome:
        """Write a message for very many queues with the batch, as a whole; it enters them afterwards."""
        where = route.vhost.name, route.exchange.name
        accepted = self._flow.delays.accept(message, where, Origin.PUBLISH, is_kept=True)
        if batch.awaits_placing:
            number = accepted.number
            due = DueMessage(route.vhost, where[1], message, properties, True, number, may_be_refused=True)
            accepted.placing = Placing(0, due, found, walks)
        return PublishOutcome.IN_STEPS

    def place(self, placing: Placing) -> Steps:
        """Place a message that a batch has accepted; the result is its outcome."""
        flow, due = self._flow, placing.due
        yield
        yield from flow.delays.placings.in_steps(placing)
        if flow.journal.failed is not None:
            raise flow.journal.failed
        exchange = due.vhost.exchanges.get(due.exchange)
        if exchange is not None:
            flow.count(exchange, 0, placing.accepted - 1)
        return _outcome(due.message, placing.wanted, placing.accepted, True, placing.has_delays)

    def take_steps(self) -> Steps:
        """What is left of the publish that returned IN_STEPS; the result is its outcome."""
        steps, self._steps = self._steps, None
        assert steps is not None
        return steps

    def _in_steps(
        self,
        route: Route,
        properties: PublishProperties,
        message: Message,
        found: QueuesInParts,
        walks: list[RouteWalk[Queue]],
    ) -> Steps:
        visible = msgspec.structs.replace(message, header=properties.visible_header(message.header))
        wanted, accepted, journalled = yield from in_steps(self._flow, visible, found, self.enqueue)
        route.exchange.more_copies += accepted - 1
        has_delays = self._pass_exchanges(route, properties, message, walks)
        return _outcome(message, wanted, accepted, journalled, has_delays)

    def _pass_exchanges(
        self,
        route: Route,
        properties: PublishProperties,
        message: Message,
        walks: list[RouteWalk[Queue]],
    ) -> bool:
        """Do what the exchanges on the way do: delay the message, keep it. True if it is delayed."""
        flow = self._flow
        delays = {delay.exchange.name: delay.delay_ms for walk in walks for delay in walk.delays}
        for exchange, delay_ms in delays.items():  # all keys, also BCC, are routed when it is due
            flow.delays.add(message, route.vhost.name, exchange, flow.now_ms + delay_ms)
        message.header = properties.visible_header(message.header)
        for history in dict.fromkeys(history for walk in walks for history in walk.histories):
            history.keep(unplaced(message), properties.headers)
        return bool(delays)

    def enqueue(self, message: Message, queues: Sequence[Queue]) -> tuple[int, bool]:
        """Place a message in those of these queues that accept it; how many, and whether it is journalled."""
        flow = self._flow
        accepted: list[Queue] = []
        for queue in queues:
            if not self._refuses(queue, message):
                accepted.append(queue)
            elif isinstance(queue, WorkQueue) and queue.options.overflow is Overflow.REJECT_PUBLISH_DLX:
                queue.outcasts.add(Reason.MAXLEN, unplaced(message))
                flow.touch(queue)
                if queue.outcasts.is_full:
                    flow.late_letters[queue] = None
        journalled = self._record_and_place(message, accepted)
        if flow.late_letters:
            self._keep_up()
        return len(accepted), journalled

    def _keep_up(self) -> None:
        """Let a publisher wait for dead letters of its queue, if they are made too slowly."""
        flow = self._flow
        if flow.batch is not None or flow.journal.failed is not None:
            return
        late, flow.late_letters = flow.late_letters, {}
        flow.write_pending_publishes()
        for queue in late:
            if not queue.deleted:
                flow.dead_lettering.cast_out_for(queue, _LETTERS)

    def _refuses(self, queue: Queue, message: Message) -> bool:
        flow = self._flow
        if not queue.refuses_when_full:
            return False
        if self.is_full(queue, len(message.body)):
            return True
        if flow.batch is not None:
            flow.batch.send(queue, len(message.body))
        return False

    def is_full(self, queue: Queue, size: int) -> bool:
        """Whether a queue has no room for a message of this size, behind what is on its way."""
        flow = self._flow
        ahead = flow.on_the_way(queue)
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
        if any(queue.is_full(size, *flow.on_the_way(queue)) for queue in limited):
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


def _parts(
    route: Route, properties: PublishProperties, walks: list[RouteWalk[Queue]], resolve: bool
) -> Iterator[Sequence[Queue]]:
    """The queues of all keys of a message; adds the walks to them, for which the key is not enough.

    ``resolve``: the route may be older than the topology, since a transaction has kept it.
    """
    vhost = route.vhost
    known = route.version == vhost.version if resolve else True
    for key in (route.routing_key, *properties.extra_keys):
        if known and route.simple and key is route.routing_key:
            yield route.queues
            continue
        hashed = properties.hash_properties() if route.exchange.needs_properties else None
        walk = vhost.walk(route.exchange, key, properties.headers, hashed)
        walks.append(walk)
        yield from walk


def _outcome(
    message: Message, wanted: int, accepted: int, journalled: bool, has_delays: bool
) -> PublishOutcome:
    if accepted < wanted:
        return PublishOutcome.REFUSED
    if not wanted and not has_delays:
        return PublishOutcome.UNROUTED
    return _JOURNALLED if journalled or (has_delays and message.persistent) else _PLACED
