"""The publishes of a large transaction: encoded in steps, then written and enqueued at one moment.

Owns: what can be done before that moment. Must not touch: queues and the journal until then; which
transactions are large (``amqp/transaction.py``).

Messages of others enter the queues meanwhile, and sequence numbers rise in the order of entry. So these
messages get numbers far ahead, and later ones continue behind them.

Over 400 lines: every kind of message ends in the same record and is applied at the same moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

from holtmq.broker.message import Message, encode_message, unplaced
from holtmq.broker.publish.due_message import DueMessage, Origin, number_of
from holtmq.broker.publish.lane import Lane
from holtmq.broker.publish.placings import Placing
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.record_batch import Accepted, Where
from holtmq.broker.publish.routes import DECODED, LOOKED_AT, SPECIAL, Route
from holtmq.broker.publish.taken_room import TakenRoom
from holtmq.broker.publish.wide_publishes import QueuesInParts
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.message_records import encode_delayed
from holtmq.broker.streams.envelopes import Envelope, envelope_of
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_options import Overflow
from holtmq.broker.topology.recent_history import RecentHistory
from holtmq.broker.topology.routing import RouteWalk
from holtmq.broker.topology.targets import durable_ids, splits_transient
from holtmq.broker.topology.vhost import QueueExchange, VHost
from holtmq.broker.work.outcasts import Outcasts, Reason
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.encoded_batch import EncodedBatch
from holtmq.journal.records import FRAME_SIZE

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow
    from holtmq.broker.prepared_settlements import PreparedSettlements

_AHEAD: Final = 1 << 24  # messages that others may publish meanwhile
_MESSAGE: Final = int(Kind.MESSAGE)
_JOIN: Final = 1_000  # items, to join the messages for one stream to the others
Publish = tuple[
    Route, PublishProperties, bytes, bytes, bool
]  # with header, body, and whether it is mandatory


class Outdated(Exception):
    """The topology has changed: prepare again, or in one go."""


class Unpreparable(Exception):
    """Pushes are spooled, or only some queues keep a message: in one go."""


class _Targets(NamedTuple):
    """The queues of some messages."""

    work_queues: tuple[WorkQueue, ...]
    durable_ids: bytes
    persists: bool  # also messages that are not persistent
    streams: tuple[StreamQueue, ...]


class PreparedPublishes:
    """Messages for work queues and streams, at once or after a delay."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._now_ms = flow.now_ms
        self._first = self._seq = flow.seq + _AHEAD
        self._versions: dict[int, tuple[Route, int]] = {}  # by vhost: what its routes were resolved with
        self._fresh: dict[Route, Route] = {}
        self._targets: dict[tuple[int, ...], _Targets] = {}  # by ids of the queues
        self.room = TakenRoom()  # in queues that refuse when they are full
        self._refused: dict[WorkQueue, Outcasts] = {}  # what full queues dead-letter instead
        self.is_partial = False  # a full queue has refused a message
        self._messages: list[Message] = []  # for work queues
        self._offsets: list[int] = []  # of their records; 0: none
        self._lanes: dict[WorkQueue, Lane] = {}
        self._counts: Counter[tuple[QueueExchange, int]] = Counter()  # messages by exchange, number of queues
        self._batch = EncodedBatch()
        self.settlements: PreparedSettlements | None = None  # in the same record
        self._delays = flow.delays.prepare()
        self._pushes = None if flow.cross_kind is None else flow.cross_kind.prepare()
        self._histories: dict[RecentHistory, RecentHistory] = {}  # what each of them keeps in addition
        self._accepted: list[Accepted] = []  # messages for very many queues, by the offsets of their records
        self._lined_up: set[Where] = set()  # exchanges of these; later messages must not overtake them
        self.wide: list[tuple[Publish, Placing]] = []  # those that were published; the caller places them
        self.unrouted: list[tuple[Route, bytes, bytes]] = []  # mandatory messages
        self.dropped = 0  # others without a queue

    def steps(self, publishes: Iterable[Publish]) -> Iterator[None]:
        """Prepare messages; an item is about 3 µs of work."""
        for publish in publishes:
            given, properties, header, body, mandatory = publish
            route = self._current(given)
            if route.is_wide or (self._lined_up and self.is_lined_up(route.vhost, route.exchange)):
                self._publish_in_steps(route, publish)
                is_routed = True
            elif route.simple and properties.plain:
                is_routed = self._add(route, route, properties, header, body)
            else:
                is_routed = yield from self._add_special(route, publish)
                yield from repeat(None, len(header) // DECODED)
            if not is_routed:
                if mandatory:
                    self.unrouted.append((given, header, body))
                else:
                    self.dropped += 1
            yield

    def _add(
        self,
        route: Route,
        targets: Route | _Targets,
        properties: PublishProperties,
        header: bytes,
        body: bytes,
    ) -> bool:
        """Prepare a message for these queues; False when there are none."""
        self._counts[route.exchange, len(targets.work_queues)] += 1
        if not targets.work_queues:
            return False
        self.place(self._message(route, targets.persists, properties, header, body), targets)
        return True

    def _add_special(self, route: Route, publish: Publish) -> Generator[None, None, bool]:
        """Prepare a message whose key is not enough to find its queues, or that may be refused."""
        _, properties, header, body, _ = publish
        walks: list[RouteWalk[Queue]] = []
        if route.streams and not properties.extra_keys:
            queues: Collection[Queue] = route.streams
        else:
            queues = yield from self._walk(route, properties, walks)
        vhost, exchange = route.vhost, route.exchange
        if len(queues) > vhost.widest:
            self._publish_in_steps(route, publish)
            return True
        accepting, refusing = self._asked(queues, len(body))
        targets = self.targets_of(accepting)
        delays = {delay.exchange.name: delay.delay_ms for walk in walks for delay in walk.delays}
        histories = dict.fromkeys(history for walk in walks for history in walk.histories)
        self._counts[exchange, len(accepting)] += 1
        if not (queues or delays or histories):
            return False
        message = self._message(route, route.persists, properties, header, body)
        for waits_at, delay_ms in delays.items():  # all keys, also BCC, are routed when it is due
            self.delay(message, vhost.name, waits_at, self._now_ms + delay_ms)
        message.header = properties.visible_header(header)
        for queue in refusing:
            self._refuse(queue, message)
        for history in histories:
            self.keep(history, message, properties.headers)
        if targets.streams:
            yield from self._push(route, properties, message, targets.streams)
        if targets.work_queues:
            message.persistent = properties.persistent or targets.persists
            self.place(message, targets)
        return bool(queues or delays)

    def _asked(self, queues: Collection[Queue], size: int) -> tuple[Collection[Queue], list[Queue]]:
        """The queues that take a message of this size, and those that are too full."""
        if not any(queue.refuses_when_full for queue in queues):
            return queues, []
        accepting: list[Queue] = []
        refusing: list[Queue] = []
        for queue in queues:
            if not queue.refuses_when_full:
                accepting.append(queue)
            elif self._flow.publishing.is_full(queue, size):
                refusing.append(queue)
            else:
                accepting.append(queue)
                self.room.publish(queue, size)
        return accepting, refusing

    def _refuse(self, queue: Queue, message: Message) -> None:
        self.is_partial = True
        if isinstance(queue, WorkQueue) and queue.options.overflow is Overflow.REJECT_PUBLISH_DLX:
            self._refused.setdefault(queue, Outcasts()).add(Reason.MAXLEN, unplaced(message))

    def _walk(
        self, route: Route, properties: PublishProperties, walks: list[RouteWalk[Queue]]
    ) -> Generator[None, None, Collection[Queue]]:
        """Find the queues of a message, or some of very many; adds the walks to them."""
        hashed = properties.hash_properties() if route.exchange.needs_properties else None
        queues: dict[str, Queue] = {}
        for key in (route.routing_key, *properties.extra_keys):
            yield from repeat(None, SPECIAL - 1)
            walk = route.vhost.walk(route.exchange, key, properties.headers, hashed)
            walks.append(walk)
            looked_at = 0
            for part in walk:
                queues.update([(queue.name, queue) for queue in part])
                if len(queues) > route.vhost.widest:
                    return queues.values()
                yield from repeat(None, walk.looked_at // LOOKED_AT - looked_at // LOOKED_AT)
                looked_at = walk.looked_at
        return queues.values()

    def join(self) -> Iterator[None]:
        """Put everything into one record, in items as those of ``steps``; nothing is added afterwards."""
        if self._pushes is not None:
            for _ in self._pushes.join(self._batch):
                yield from repeat(None, _JOIN)

    def push(
        self, message: Message, streams: Collection[StreamQueue], envelope: Envelope | None = None
    ) -> None:
        """Prepare a message for streams; the envelope, if it is known."""
        for stream in streams:
            assert self._pushes is not None
            self._pushes.add(stream, message, envelope)

    def _push(
        self,
        route: Route,
        properties: PublishProperties,
        message: Message,
        streams: Collection[StreamQueue],
    ) -> Iterator[None]:
        envelope = None
        if properties.visible_bytes is None:
            envelope = route.envelopes.get(properties)
            if envelope is None:
                envelope = envelope_of(route.exchange.name, route.routing_key, properties)
        self.push(message, streams, envelope)
        yield from repeat(None, len(streams) * (SPECIAL - 1))

    def _message(
        self, route: Route, persists: bool, properties: PublishProperties, header: bytes, body: bytes
    ) -> Message:
        self._seq += 1
        ttl = properties.ttl_ms
        return Message(
            self._seq,
            route.address,
            header,
            body,
            self._now_ms,
            0 if ttl is None else self._now_ms + ttl,
            properties.priority,
            properties.persistent or persists,
        )

    def place(self, message: Message, targets: Route | _Targets) -> None:
        """Put a message with a number of its own into these work queues."""
        offset = 0
        if message.persistent and targets.durable_ids:
            offset = self._batch.add(_MESSAGE, encode_message(message, targets.durable_ids))
        self._messages.append(message)
        self._offsets.append(offset)
        for queue in targets.work_queues:
            lane = self._lanes.get(queue)
            if lane is None:
                lane = self._lanes[queue] = Lane(queue)
            lane.add(message)

    def keep(self, history: RecentHistory, message: Message, headers: Mapping[str, object]) -> None:
        """Remember a message in an exchange that it passes."""
        kept = self._histories.get(history)
        if kept is None:
            kept = self._histories[history] = history.of_same_length()
        kept.keep(unplaced(message), headers)

    def delay(self, message: Message, vhost: str, exchange: str, due_ms: int) -> None:
        """Route a message from an exchange at a later time."""
        kind = Kind.DELAYED if message.persistent else Kind.PAGED
        offset = self._batch.add(kind, encode_delayed(message, vhost, exchange, due_ms))
        self._delays.add(offset, message.persistent, due_ms)

    def is_lined_up(self, vhost: VHost, exchange: QueueExchange) -> bool:
        """Whether messages of this exchange must wait for one for very many queues."""
        return (vhost.name, exchange.name) in self._lined_up

    def _publish_in_steps(self, route: Route, publish: Publish) -> None:
        _, properties, header, body, _ = publish
        vhost, exchange = route.vhost, route.exchange
        message = self._message(route, False, properties, header, body)
        accepted = self.accept(message, (vhost.name, exchange.name), Origin.PUBLISH, is_kept=True)
        number = accepted.number
        due = DueMessage(vhost, exchange.name, message, properties, True, number, may_be_refused=True)
        walks: list[RouteWalk[Queue]] = []
        accepted.placing = Placing(0, due, QueuesInParts(due.parts(exchange, (), walks)), walks)
        self.wide.append((publish, accepted.placing))
        self._counts[exchange, 1] += 1

    def accept(self, message: Message, where: Where, origin: Origin, is_kept: bool) -> Accepted:
        """Prepare a message for very many queues, which it enters after the record is written."""
        number = number_of(message, origin)
        kind = Kind.DELAYED if is_kept else Kind.PAGED
        offset = self._batch.add(kind, encode_delayed(message, *where, number))
        accepted = Accepted(offset, is_kept, number, where)
        self._accepted.append(accepted)
        self._lined_up.add(where)
        return accepted

    def targets_of(self, queues: Collection[Queue]) -> _Targets:
        """What is known of some queues. Raises Unpreparable."""
        ids = tuple([queue.id for queue in queues])
        found = self._targets.get(ids)
        if found is None:
            found = self._targets[ids] = _targets(queues)
        return found

    def _current(self, route: Route) -> Route:
        vhost = route.vhost
        version = self._versions.setdefault(id(vhost), (route, vhost.version))[1]
        if route.version == version:
            return route
        fresh = self._fresh.get(route)
        if fresh is None:
            fresh = Route(vhost, route.exchange, route.routing_key, route.address)
            if fresh.version != version:
                raise Outdated
            self._fresh[route] = fresh
        return fresh

    @property
    def now_ms(self) -> int:
        """When this was begun."""
        return self._now_ms

    def next_seq(self) -> int:
        """The number of one more message, which the caller places, delays or keeps."""
        self._seq += 1
        return self._seq

    def add_record(self, kind: int, payload: bytes) -> int:
        """Add a record of the caller; return its offset."""
        return self._batch.add(kind, payload)

    @property
    def size(self) -> int:
        """Bytes of the record so far."""
        return self._batch.size + (0 if self._pushes is None else self._pushes.size)

    @property
    def is_journalled(self) -> bool:
        """Whether there is anything to write."""
        return self._batch.size > FRAME_SIZE

    def check(self) -> None:
        """Outdated unless everything is still as it was prepared, Unpreparable if pushes are spooled."""
        if self._flow.seq >= self._first or any(
            route.vhost.version != version for route, version in self._versions.values()
        ):
            raise Outdated
        if self._pushes:
            if self._pushes.are_spooled:
                raise Unpreparable
            if self._pushes.is_outdated:
                raise Outdated
        if not self.room.is_there():  # messages have returned, or a policy has lowered a limit
            raise Outdated

    def write(self, records: list[tuple[int, bytes]]) -> list[int]:
        """Append the messages and these records as one, then enqueue; return the positions of ``records``."""
        flow = self._flow
        settled = () if self.settlements is None else self.settlements.decide()
        if self._pushes:
            self._batch.add(*self._pushes.record(settled))
        elif settled and flow.cross_kind is not None:
            self._batch.add(*flow.cross_kind.events_record(settled))
        others = [self._batch.add(kind, payload) for kind, payload in records]
        base = flow.journal.append_encoded(self._batch) if self.is_journalled else 0
        flow.seq = self._seq
        if self.settlements is not None:
            self.settlements.apply()
        for (exchange, queues), count in self._counts.items():
            flow.count(exchange, count, count * (queues - 1))
        for message, offset in zip(self._messages, self._offsets, strict=True):
            if offset:
                message.position = base + offset
        for lane in self._lanes.values():
            lane.enqueue(flow)
        for queue, outcasts in self._refused.items():
            if not queue.deleted:
                queue.outcasts.append(outcasts)
                flow.touch(queue)
                if queue.outcasts.is_full:
                    flow.late_letters[queue] = None
        if self._delays:
            flow.delays.start(self._delays, base)
        if self._pushes:
            self._pushes.apply(base)
            flow.delays.in_steps(self._pushes.expire_ids())
        for history, kept in self._histories.items():
            history.keep_all(kept)
        for accepted in self._accepted:
            flow.delays.begin(accepted, base + accepted.index)
        if self.settlements is not None:
            self.settlements.count_letters()
        return [base + offset for offset in others]


def _targets(queues: Collection[Queue]) -> _Targets:
    work_queues = tuple(queue for queue in queues if isinstance(queue, WorkQueue))
    streams = tuple(queue for queue in queues if isinstance(queue, StreamQueue))
    if splits_transient(queues):
        raise Unpreparable
    persists = any(queue.always_persists for queue in work_queues)
    return _Targets(work_queues, durable_ids(work_queues), persists, streams)
