"""The publishes of a large transaction: encoded in steps, then written and enqueued at one moment.

Owns: what can be done before that moment. Must not touch: queues and the journal until then; which
transactions are large (``amqp/transaction.py``).

Messages of others enter the queues meanwhile, and sequence numbers rise in the order of entry. So these
messages get numbers far ahead, and later ones continue behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holtmq.broker.message import Message, encode_message
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.routes import Route
from holtmq.broker.records.changes import Kind
from holtmq.journal.encoded_batch import EncodedBatch
from holtmq.journal.records import FRAME_SIZE

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow

_AHEAD: Final = 1 << 24  # messages that others may publish meanwhile
_MESSAGE: Final = int(Kind.MESSAGE)


class Outdated(Exception):
    """The topology has changed, or a message needs more than its route: prepare again, or in one go."""


class PreparedPublishes:
    """Plain messages on plain routes of one vhost."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._now_ms = flow.now_ms
        self._first = self._seq = flow.seq + _AHEAD
        self._versions: dict[int, tuple[Route, int]] = {}  # by vhost: what its routes were resolved with
        self._fresh: dict[Route, Route] = {}
        self._runs: list[
            tuple[Route, list[Message], list[int]]
        ] = []  # messages with one route, their offsets
        self._batch = EncodedBatch()

    def add(self, route: Route, properties: PublishProperties, header: bytes, body: bytes) -> bool:
        """Prepare a message; False when there is no queue for it."""
        route = self._current(route)
        if not route.queues:
            return False
        self._seq += 1
        persistent = properties.persistent or route.persists
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
        if persistent and route.durable_ids:
            offset = self._batch.add(_MESSAGE, encode_message(message, route.durable_ids))
        runs = self._runs
        if not runs or runs[-1][0] is not route:
            runs.append((route, [], []))
        _, messages, offsets = runs[-1]
        messages.append(message)
        offsets.append(offset)
        return True

    def _current(self, route: Route) -> Route:
        vhost = route.vhost
        version = self._versions.setdefault(id(vhost), (route, vhost.version))[1]
        if route.version == version:
            return route
        fresh = self._fresh.get(route)
        if fresh is None:
            fresh = Route(vhost, route.exchange, route.routing_key, route.address)
            if not fresh.simple or fresh.version != version:
                raise Outdated
            self._fresh[route] = fresh
        return fresh

    @property
    def size(self) -> int:
        """Bytes of the record so far."""
        return self._batch.size

    @property
    def is_journalled(self) -> bool:
        """Whether there is anything to write."""
        return self._batch.size > FRAME_SIZE

    def check(self) -> None:
        """Outdated, unless everything is still as it was prepared."""
        if self._flow.seq >= self._first or any(
            route.vhost.version != version for route, version in self._versions.values()
        ):
            raise Outdated

    def write(self, records: list[tuple[int, bytes]]) -> list[int]:
        """Append the messages and these records as one, then enqueue; return the positions of ``records``."""
        flow = self._flow
        others = [self._batch.add(kind, payload) for kind, payload in records]
        base = flow.journal.append_encoded(self._batch) if self.is_journalled else 0
        flow.seq = self._seq
        for route, messages, offsets in self._runs:
            for message, offset in zip(messages, offsets, strict=True):
                if offset:
                    message.position = base + offset
            _enqueue(flow, route, messages)
        return [base + offset for offset in others]


def _enqueue(flow: Flow, route: Route, messages: list[Message]) -> None:
    queue = route.only_queue
    if queue is None or queue.fifo is None or queue.limited:
        for message in messages:
            flow.place(message, route.work_queues)
        return
    queue.fifo.inbox += messages
    queue.bytes += sum([len(message.body) for message in messages])
    if any(message.expires_ms for message in messages):
        queue.expiring = True
    flow.touch(queue)
