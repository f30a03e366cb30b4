"""Publishes that go only to streams, collected during one read and pushed together.

Owns: the publishes not written yet, and how many there may be. Must not touch: publishes that also go to
work queues (``publishing.py``), how a push is decided (``PartitionedService``), clocks.
"""

import sys
from collections.abc import Callable
from functools import partial
from itertools import chain, repeat
from typing import Final, TypeVar

from holtmq.broker.message import split_address
from holtmq.broker.partitioned.commands.pushing import DEFAULT_PARTITION, room_left
from holtmq.broker.partitioned.log.bodies import AmqpMetadata, Body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.publish.routes import Route
from holtmq.broker.streams.envelopes import (
    PARTITION_HEADER,
    Envelope,
    envelope_of,
    partition_named,
    to_payload,
)
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.targets import QueueSet
from holtmq.wire.properties import PROPERTIES_AT

_BYTES_MAX: Final = 1 << 20  # a read is smaller, but bodies received in several frames may exceed it
_ENVELOPES_MAX: Final = 8  # per route: publishers either repeat their properties or change them every time
_ENVELOPE_BYTES_MAX: Final = 2_048
# A third of the time of the classes themselves:
_item: Final = partial(tuple.__new__, PushItem)
_new_metadata: Final = partial(tuple.__new__, AmqpMetadata)
T = TypeVar("T")


PendingPublish = tuple[
    tuple[StreamQueue, ...], str, AmqpMetadata, bytes
]  # streams, partition, properties, body


class StreamPublishes:
    """Combines the stream publishes of one read into one push: a push costs as much as six messages.

    No other code may run between the first ``take`` and ``write``. Then the room counted at first is still
    there at the end, and no reader can see that the messages were combined.
    """

    __slots__ = (
        "_address",
        "_bytes",
        "_exchange",
        "_header",
        "_is_limited",
        "_key",
        "_metadata",
        "_new_ids",
        "_now",
        "_partition",
        "_pending",
        "_queues",
        "_room",
        "_service",
        "_streams",
    )

    def __init__(
        self,
        pending: list[PendingPublish],
        service: PartitionedService,
        now: Callable[[], float],
        new_ids: Callable[[int], list[str]],
    ) -> None:
        self._pending = pending  # shared with the flow, which checks it once per frame
        self._service = service
        self._now = now
        self._new_ids = new_ids
        self._room: dict[int, int] = {}  # by queue id: how many more messages fit
        self._bytes = 0
        # What ``take_plain`` has last resolved:
        self._queues: QueueSet | None = None
        self._streams: tuple[StreamQueue, ...] = ()
        self._is_limited = True
        self._address = b"\x00\x00"
        self._exchange = self._key = ""
        self._partition = DEFAULT_PARTITION
        self._header = b""
        self._metadata = AmqpMetadata("", "", b"")

    def take_plain(self, queues: QueueSet, address: bytes, header: bytes, priority: int, body: bytes) -> bool:
        """Accept a message whose properties need no special handling (``property_walker.py``).

        If False, the caller must use the general path. Accepts nothing that ``take`` would treat otherwise.
        """
        pending = self._pending
        if queues is not self._queues or not pending:
            self._turn_to(queues)
        if self._is_limited and not self._has_room(self._streams):
            return False
        if address != self._address:
            self._exchange, self._key = split_address(address)
            self._partition = partition_named(None, self._key)
            self._address, self._header = address, b""
        if header != self._header:
            if PARTITION_HEADER in header:
                return False
            self._metadata = _new_metadata((self._exchange, self._key, header[PROPERTIES_AT:], priority))
            self._header = header
        if self._is_limited:
            self._use_room(self._streams)
        streams = self._streams
        pending.append((streams, self._partition, self._metadata, body))
        self._bytes += len(body) * len(streams)
        if self._bytes > _BYTES_MAX:
            self.write()
        return True

    def _turn_to(self, queues: QueueSet) -> None:
        if queues is not self._queues:
            self._queues = queues
            self._streams = tuple(queue for queue in queues.queues if isinstance(queue, StreamQueue))
        self._has_room(self._streams)
        self._is_limited = any(self._room.get(stream.id) != sys.maxsize for stream in self._streams)

    def take(self, route: Route, properties: PublishProperties, body: bytes) -> bool:
        """Accept a message for all streams of its route; if False, the caller must use ``publish``."""
        envelope = route.envelopes.get(properties)
        if envelope is None:
            envelope = self._envelope(route, properties)
            if envelope is None:
                return False
        if not self._has_room(route.streams):
            return False
        self._use_room(route.streams)
        partition, metadata = envelope
        self._pending.append((route.streams, partition, metadata, body))
        self._bytes += len(body) * len(route.streams)
        if self._bytes > _BYTES_MAX:
            self.write()
        return True

    def _has_room(self, streams: tuple[StreamQueue, ...]) -> bool:
        room = self._room
        if not self._pending:
            room.clear()
            if self._service.journal.failed is not None:
                raise self._service.journal.failed
        for stream in streams:
            left = room.get(stream.id)
            if left is None:
                left = room[stream.id] = self._room_of(stream)
            if left <= 0:
                return False
        return True

    def _use_room(self, streams: tuple[StreamQueue, ...]) -> None:
        room = self._room
        for stream in streams:
            if room[stream.id] != sys.maxsize:
                room[stream.id] -= 1

    def write(self) -> None:
        """Push the collected messages as one journal record."""
        pending = self._pending[:]
        self._pending.clear()  # even if the push fails, it is not tried again
        self._bytes = 0
        if pending:
            self._service.push_with(self._items(pending), self._now(), ())

    def _items(self, pending: list[PendingPublish]) -> list[PushItem]:
        """The messages as pushes, one for each stream. Column by column takes half the time."""
        names = [stream.stored_as for row in pending for stream in row[0]]  # each row has one at least
        partitions = [row[1] for row in pending]
        metadata = [row[2] for row in pending]
        payloads = [to_payload(row[3]) for row in pending]
        if len(names) > len(pending):
            copies = [len(row[0]) for row in pending]
            partitions, metadata, payloads = (
                _repeated(partitions, copies),
                _repeated(metadata, copies),
                _repeated(payloads, copies),
            )
        bodies = map(Body, self._new_ids(len(names)), payloads, repeat(None), repeat(None), metadata)
        return [*map(_item, zip(names, partitions, bodies, strict=True))]

    @staticmethod
    def _envelope(route: Route, properties: PublishProperties) -> Envelope | None:
        if properties.extra_keys or properties.visible_bytes is not None:
            return None  # several keys to route, or a header that must be rewritten
        envelope = envelope_of(route.exchange.name, route.routing_key, properties)
        if len(properties.property_bytes) <= _ENVELOPE_BYTES_MAX:
            if len(route.envelopes) >= _ENVELOPES_MAX:
                route.envelopes.clear()
            route.envelopes[properties] = envelope
        return envelope

    def _room_of(self, stream: StreamQueue) -> int:
        if stream.deleted:
            return 0  # the route is older than the deletion
        log = stream.log
        if log is not None:
            return room_left(log)
        # The first message creates the log with the default limit.
        return 1 if self._service.store.default_config.max_size else sys.maxsize


def _repeated(column: list[T], copies: list[int]) -> list[T]:
    """Each value as many times as its message has streams."""
    return list(chain.from_iterable(map(repeat, column, copies)))
