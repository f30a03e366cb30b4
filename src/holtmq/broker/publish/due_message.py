"""A message in the journal that has to enter its queues: where it came from, and what that means for its way.

Owns: the origin that a DELAYED record tells by its due time, the message's queues, its headers on arrival.
Must not touch: when it is placed (``delays.py``), and how (``placings.py``).

A message that was delayed has the time at which its delay ends. One that enters very many queues as soon as
possible has a number in place of it, beyond any time: messages with lower numbers are placed first, also
after a restart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holtmq.broker.message import Message
from holtmq.broker.work.dead_letter import cycling_queues
from holtmq.wire.properties import PROPERTIES_AT, with_headers

if TYPE_CHECKING:
    from holtmq.broker.publish.publish_properties import PublishProperties
    from holtmq.broker.topology.destinations import Queue
    from holtmq.broker.topology.routing import RouteWalk
    from holtmq.broker.topology.vhost import QueueExchange, VHost

_NUMBERS: Final = 1 << 62


class Origin(Enum):
    """Why a message is placed now."""

    DELAY = "its delay has ended"
    PUBLISH = "published in a batch, for very many queues"
    LETTER = "dead-lettered, to very many queues"


def number_of(message: Message, origin: Origin) -> int:
    """The number in place of a due time."""
    return _NUMBERS | message.seq << 1 | (origin is Origin.LETTER)


def origin_of(due_ms: int) -> Origin:
    """What a due time, or the number in its place, says."""
    if due_ms < _NUMBERS:
        return Origin.DELAY
    return Origin.LETTER if due_ms & 1 else Origin.PUBLISH


class DueMessage(NamedTuple):
    """A message as its record has it."""

    vhost: VHost
    exchange: str
    message: Message
    properties: PublishProperties
    is_kept: bool  # its record outlives a restart
    due_ms: int
    may_be_refused: bool = False  # by a full queue: its publisher waits for the outcome

    @property
    def origin(self) -> Origin:
        return origin_of(self.due_ms)

    def parts(
        self, exchange: QueueExchange | None, only: Collection[int], walks: list[RouteWalk[Queue]]
    ) -> Iterator[list[Queue]]:
        """The queues that it enters, or ``only`` these; adds the walks to them."""
        vhost, properties, message = self.vhost, self.properties, self.message
        if only:  # its other queues have it already
            ids = frozenset(only)
            yield [queue for queue in vhost.queues.values() if queue.id in ids]
            return
        assert exchange is not None
        served = self.origin is Origin.DELAY
        cycling = cycling_queues(message.header) if self.origin is Origin.LETTER else frozenset[str]()
        for key in (message.routing_key, *properties.extra_keys):
            hashed = properties.hash_properties()
            walk = vhost.walk(exchange, key, properties.headers, hashed, delay_served=served)
            walks.append(walk)
            if not cycling:
                yield from walk
                continue
            for part in walk:
                yield [queue for queue in part if queue.name not in cycling]

    def arrived(self, seq: int, now_ms: int) -> Message:
        """The message as it enters its queues."""
        message = msgspec.structs.replace(self.message, seq=seq, arrived_ms=now_ms)
        if message.expires_ms:
            message.expires_ms += now_ms - self.message.arrived_ms
        if self.origin is Origin.PUBLISH:
            message.header = self.properties.visible_header(message.header)
        elif self.origin is Origin.DELAY and self.properties.delay_ms:
            message.header = _delay_served(message.header, self.properties)
        return message


def _delay_served(header: bytes, properties: PublishProperties) -> bytes:
    """Negate x-delay, as RabbitMQ's plugin does, to show that the message has waited; remove BCC."""
    headers = {key: value for key, value in properties.headers.items() if key != "BCC"}
    headers["x-delay"] = -properties.delay_ms
    property_bytes = with_headers(header[PROPERTIES_AT:], headers, drop_expiration=False)
    return header[:PROPERTIES_AT] + property_bytes
