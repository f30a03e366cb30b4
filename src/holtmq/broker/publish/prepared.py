"""The publishes of a large transaction: encoded in steps, then written and enqueued at one moment.

Owns: what can be done before that moment. Must not touch: queues and the journal until then; which
transactions are large (``amqp/transaction.py``).

Messages of others enter the queues meanwhile, and sequence numbers rise in the order of entry. So these
messages get numbers far ahead, and later ones continue behind them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from holtmq.broker.message import Message, encode_message
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.routes import Route
from holtmq.broker.records.changes import Kind
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.targets import durable_ids, splits_transient
from holtmq.broker.topology.vhost import QueueExchange
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.encoded_batch import EncodedBatch
from holtmq.journal.records import FRAME_SIZE

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow
    from holtmq.broker.prepared_settlements import PreparedSettlements

_AHEAD: Final = 1 << 24  # messages that others may publish meanwhile
_MESSAGE: Final = int(Kind.MESSAGE)


class Outdated(Exception):
    """The topology has changed: prepare again, or in one go."""


class Unpreparable(Exception):
    """A message is delayed, is for a stream or for very many queues, or may be refused: in one go."""


class _Targets(NamedTuple):
    """The queues of some messages."""

    work_queues: tuple[WorkQueue, ...]
    durable_ids: bytes
    persists: bool  # also messages that are not persistent
    only_queue: WorkQueue | None


class PreparedPublishes:
    """Messages for work queues of one vhost."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._now_ms = flow.now_ms
        self._first = self._seq = flow.seq + _AHEAD
        self._versions: dict[int, tuple[Route, int]] = {}  # by vhost: what its routes were resolved with
        self._fresh: dict[Route, Route] = {}
        self._targets: dict[tuple[int, ...], _Targets] = {}  # by ids of the queues
        self._needs_room: dict[WorkQueue, list[int]] = {}  # sizes for queues that refuse when they are full
        # Messages with the same targets, their offsets.
        self._runs: list[tuple[Route | _Targets, list[Message], list[int]]] = []
        self._counts: Counter[tuple[QueueExchange, int]] = Counter()  # messages by exchange, number of queues
        self._batch = EncodedBatch()
        self.settlements: PreparedSettlements | None = None  # in the same record

    def add(self, route: Route, properties: PublishProperties, header: bytes, body: bytes) -> bool:
        """Prepare a message; False when there is no queue for it."""
        route = self._current(route)
        targets: Route | _Targets = route
        if not (route.simple and properties.plain):
            targets = self._resolve(route, properties)
            for queue in targets.work_queues:
                if queue.refuses_when_full:
                    self._needs_room.setdefault(queue, []).append(len(body))
            header = properties.visible_header(header)
        self._counts[route.exchange, len(targets.work_queues)] += 1
        if not targets.work_queues:
            return False
        self._seq += 1
        persistent = properties.persistent or targets.persists
        ttl = properties.ttl_ms
        message = Message(
            self._seq,
            route.address,
            header,
            body,
            self._now_ms,
            0 if ttl is None else self._now_ms + ttl,
            properties.priority,
            persistent,
        )
        offset = 0
        if persistent and targets.durable_ids:
            offset = self._batch.add(_MESSAGE, encode_message(message, targets.durable_ids))
        runs = self._runs
        if not runs or runs[-1][0] is not targets:
            runs.append((targets, [], []))
        _, messages, offsets = runs[-1]
        messages.append(message)
        offsets.append(offset)
        return True

    def _resolve(self, route: Route, properties: PublishProperties) -> _Targets:
        """The queues of a message whose key is not enough to find them."""
        vhost, exchange = route.vhost, route.exchange
        hashed = properties.hash_properties() if exchange.needs_properties else None
        queues: dict[str, Queue] = {}
        for key in (route.routing_key, *properties.extra_keys):
            result = vhost.route(exchange, key, properties.headers, hashed)
            if result.delays or result.histories:
                raise Unpreparable
            queues.update((queue.name, queue) for queue in result.queues)
        ids = tuple(queue.id for queue in queues.values())
        found = self._targets.get(ids)
        if found is None:
            if len(queues) > vhost.widest:
                raise Unpreparable
            found = self._targets[ids] = _targets(queues.values())
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
        """The number of one more message, which the caller enqueues."""
        self._seq += 1
        return self._seq

    def add_record(self, kind: int, payload: bytes) -> int:
        """Add a record of the caller; return its offset."""
        return self._batch.add(kind, payload)

    def on_the_way(self, queue: WorkQueue) -> tuple[int, int]:
        """Messages and bytes for a queue that refuses when it is full."""
        sizes = self._needs_room.get(queue, [])
        return len(sizes), sum(sizes)

    @property
    def size(self) -> int:
        """Bytes of the record so far."""
        return self._batch.size

    @property
    def is_journalled(self) -> bool:
        """Whether there is anything to write."""
        return self._batch.size > FRAME_SIZE

    def check(self) -> None:
        """Outdated unless everything is still as it was prepared, Unpreparable if a queue is too full."""
        if self._flow.seq >= self._first or any(
            route.vhost.version != version for route, version in self._versions.values()
        ):
            raise Outdated
        for queue, sizes in self._needs_room.items():
            if queue.is_full(sizes[-1], len(sizes) - 1, sum(sizes) - sizes[-1]):
                raise Unpreparable

    def write(self, records: list[tuple[int, bytes]]) -> list[int]:
        """Append the messages and these records as one, then enqueue; return the positions of ``records``."""
        flow = self._flow
        others = [self._batch.add(kind, payload) for kind, payload in records]
        base = flow.journal.append_encoded(self._batch) if self.is_journalled else 0
        flow.seq = self._seq
        if self.settlements is not None:
            self.settlements.apply()
        for (exchange, queues), count in self._counts.items():
            flow.count(exchange, count, count * (queues - 1))
        for targets, messages, offsets in self._runs:
            for message, offset in zip(messages, offsets, strict=True):
                if offset:
                    message.position = base + offset
            _enqueue(flow, targets, messages)
        if self.settlements is not None:
            self.settlements.place_letters(base)
        return [base + offset for offset in others]


def _targets(queues: Collection[Queue]) -> _Targets:
    work_queues = tuple(queue for queue in queues if isinstance(queue, WorkQueue))
    if len(work_queues) < len(queues) or splits_transient(queues):
        raise Unpreparable
    only = work_queues[0] if len(work_queues) == 1 else None
    persists = any(queue.always_persists for queue in work_queues)
    return _Targets(work_queues, durable_ids(work_queues), persists, only)


def _enqueue(flow: Flow, targets: Route | _Targets, messages: list[Message]) -> None:
    queue = targets.only_queue
    # A queue that refuses messages has room for all of them (``check``).
    if queue is None or queue.fifo is None or (queue.limited and not queue.refuses_when_full):
        for message in messages:
            flow.place(message, targets.work_queues)
        return
    queue.fifo.inbox += messages
    queue.bytes += sum([len(message.body) for message in messages])
    if any(message.expires_ms for message in messages):
        queue.expiring = True
    flow.touch(queue)
