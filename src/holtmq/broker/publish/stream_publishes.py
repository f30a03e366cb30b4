"""Publishes that go only to streams, gathered during one read and pushed together.

Owns: the publishes not written yet, and how many there may be. Must not touch: publishes that also go to
work queues (``publishing.py``), how a push is decided (``PartitionedService``), clocks.
"""

import sys
from collections.abc import Callable
from typing import Final

from holtmq.broker.partitioned.commands.pushing import room_left
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.publish.publish_properties import Traits
from holtmq.broker.publish.routes import Route
from holtmq.broker.streams.envelopes import Envelope, envelope_of, to_payload
from holtmq.broker.streams.stream_queue import StreamQueue

_BYTES_MAX: Final = 1 << 20  # a read is smaller, but bodies received in several frames may exceed it
_ENVELOPES_MAX: Final = 8  # per route: publishers either repeat their properties or change them every time
_ENVELOPE_BYTES_MAX: Final = 2_048


class StreamPublishes:
    """Combines the stream publishes of one read into one push: a push costs as much as six messages.

    No other code may run between the first ``take`` and ``write``. Then the room counted at first is still
    there at the end, and no reader can see that the messages were combined.
    """

    __slots__ = ("_bytes", "_items", "_new_id", "_now", "_room", "_service")

    def __init__(
        self,
        items: list[PushItem],
        service: PartitionedService,
        now: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        self._items = items  # shared with the flow, which checks it once per frame
        self._service = service
        self._now = now
        self._new_id = new_id
        self._room: dict[int, int] = {}  # by queue id: how many more messages fit
        self._bytes = 0

    def take(self, route: Route, traits: Traits, body: bytes) -> bool:
        """Accept a message for all streams of its route; if False, the caller must use ``publish``."""
        envelope = route.envelopes.get(traits)
        if envelope is None:
            envelope = self._envelope(route, traits)
            if envelope is None:
                return False
        items, room, streams = self._items, self._room, route.streams
        if not items:
            room.clear()
            if self._service.journal.failed is not None:
                raise self._service.journal.failed
        for stream in streams:
            left = room.get(stream.id)
            if left is None:
                left = room[stream.id] = self._room_of(stream)
            if left <= 0:
                return False
        partition, facts = envelope
        payload = to_payload(body)
        for stream in streams:
            room[stream.id] -= 1
            items.append(
                PushItem(stream.stored_as, partition, Body(self._new_id(), payload, None, None, facts))
            )
        self._bytes += len(payload) * len(streams)
        if self._bytes > _BYTES_MAX:
            self.write()
        return True

    def write(self) -> None:
        """Push the gathered messages as one journal record."""
        items = self._items[:]
        self._items.clear()  # even if the push fails, it is not tried again
        self._bytes = 0
        if items:
            self._service.push_with(items, self._now(), ())

    @staticmethod
    def _envelope(route: Route, traits: Traits) -> Envelope | None:
        if traits.extra_keys or traits.visible_bytes is not None:
            return None  # several keys to route, or a header that must be rewritten
        envelope = envelope_of(route.exchange.name, route.routing_key, traits)
        if len(traits.property_bytes) <= _ENVELOPE_BYTES_MAX:
            if len(route.envelopes) >= _ENVELOPES_MAX:
                route.envelopes.clear()
            route.envelopes[traits] = envelope
        return envelope

    def _room_of(self, stream: StreamQueue) -> int:
        if stream.deleted:
            return 0  # the route is older than the deletion
        log = stream.log
        if log is not None:
            return room_left(log)
        # The first message creates the log with the default limit.
        return 1 if self._service.store.default_config.max_size else sys.maxsize
