"""A consumer on a channel: turns messages into basic.deliver frames.

Owns: prefetch, the leases of one consumer, the delivery hot path.
Must not touch: sockets; frames go to the connection's outbox.
"""

import struct
from itertools import repeat
from typing import TYPE_CHECKING, Final

from holtmq.amqp.ack_timeout import AckTimeout
from holtmq.amqp.delivery_heads import frame_heads
from holtmq.broker.message import Message
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.leases import Holder, Lease
from holtmq.wire.properties import PROPERTIES_AT, with_added_headers
from holtmq.wire.tables import FieldTable, Long

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel

UNLIMITED: Final = 1 << 30
_TAG: Final = struct.Struct(">QB").pack
_TAG_BYTES: Final = 9
_FRAME: Final = struct.Struct(">BHI").pack
_DELIVER: Final = b"\x00\x3c\x00\x3c"
_OVERHEAD: Final = 64  # bytes per delivery, roughly; only the outbox limit depends on it


class Consumer(Holder):
    """Receives the messages for one consumer tag."""

    __slots__ = (
        "_heads",
        "_starts",
        "_timeout",
        "arguments",
        "channel",
        "exclusive",
        "no_ack",
        "overdue",
        "prefetch",
        "priority",
        "queue",
        "tag",
        "tag_bytes",
    )

    def __init__(
        self,
        channel: "Channel",
        tag: str,
        queue: Queue,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        priority: int,
        arguments: FieldTable | None = None,
    ) -> None:
        super().__init__()
        self.arguments = arguments or {}
        self.channel = channel
        self.tag = tag
        raw = tag.encode("utf-8", "surrogateescape")
        self.tag_bytes = bytes((len(raw),)) + raw
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch  # 0: unlimited
        self.priority = priority
        self._starts: dict[int, bytes] = {}  # by length of exchange and key: at most 512 entries
        self._heads = frame_heads(channel.number)
        self.overdue: set[int] = set()  # taken back after a timeout and not settled: no deliveries until then
        timeout_ms = self.arguments.get("x-consumer-timeout")
        self._timeout = AckTimeout(channel, self, queue, timeout_ms if isinstance(timeout_ms, int) else None)

    @property
    def joins_group(self) -> bool:
        """Whether it reads a stream as a member of a group, which counts failures; else it reads alone."""
        return "x-consumer-group" in self.arguments

    def room(self) -> int:
        """How many more messages may be delivered now."""
        channel = self.channel
        if not channel.flowing or channel.outbox.is_full or self.overdue:
            return 0
        if self.no_ack:
            return UNLIMITED
        room = self.prefetch - len(self.held) if self.prefetch else UNLIMITED
        if channel.global_prefetch:
            room = min(room, channel.global_prefetch - channel.consumer_leases())
        return room

    def deliver(self, queue: Queue, messages: list[Message]) -> None:
        """Lease the messages and write their frames."""
        channel = self.channel
        ledger = channel.ledger
        number = ledger.last
        ledger.last += len(messages)
        if not self.no_ack:
            if channel.flow.now_ms >= self.note_due_ms:
                self.note_delivery(channel.flow.now_ms, number + 1)
            numbers = list(range(number + 1, ledger.last + 1))
            leases = list(map(Lease, numbers, repeat(queue), messages, repeat(self)))
            ledger.by_number.update(zip(numbers, leases, strict=True))
            self.held.update(zip(numbers, leases, strict=True))
        outbox = channel.outbox
        chunks = outbox.chunks
        max_body = channel.max_payload
        fresh = queue.is_first_delivery(messages)
        starts, heads = self._starts, self._heads
        header_heads, body_heads = heads.header, heads.body
        redelivered = size = 0
        # Repeated publishes share these objects, and the same header means the same body size: the bytes
        # between delivery tag and body are then joined once.
        address = header = start = middle = b""
        for message in messages:
            number += 1
            body = message.body
            size += len(body)
            if message.header is header and message.address is address and fresh:
                if not middle:
                    length, body_bytes = len(header), len(body)
                    head = header_heads.get(length) or heads.before_header(length)
                    tail = (
                        body_heads[body_bytes] if body_bytes in body_heads else heads.before_body(body_bytes)
                    )
                    middle = b"".join((address, head, header, tail))
                chunks += start, _TAG(number, redelivered), middle, body, b"\xce"
                continue
            address, header, middle = message.address, message.header, b""
            if not fresh:
                redelivered = int(queue.is_redelivered(message))
                channel.counts.redelivered += redelivered
                channel.messages.redelivered += redelivered
                queue.figures.redelivered += redelivered
                if redelivered and queue.counts_deliveries:
                    header = with_delivery_count(header, queue.times_returned(message))
            length = len(address)
            start = starts.get(length) or self._start(length)
            if len(body) > max_body:
                chunks.append(start + _TAG(number, redelivered) + address + b"\xce")
                chunks += content_frames(channel.number, header, body, max_body)
                header = b""
                continue
            length, body_bytes = len(header), len(body)
            head = header_heads.get(length) or heads.before_header(length)
            tail = body_heads[body_bytes] if body_bytes in body_heads else heads.before_body(body_bytes)
            chunks += start, _TAG(number, redelivered), address, head, header, tail, body, b"\xce"
        size += len(messages) * (_OVERHEAD + len(messages[0].header))
        outbox.grew(size)
        channel.messages.used_ms = channel.flow.now_ms
        if self.no_ack:
            channel.counts.delivered_auto_ack += len(messages)
            channel.messages.delivered_no_ack += len(messages)
            queue.figures.delivered_no_ack += len(messages)
            queue.settle_all(messages)
            return
        channel.counts.delivered_manual_ack += len(messages)
        if not self._timeout.armed and (queue.has_ack_timeout or self._timeout.is_own):
            self._timeout.delivered()

    def cancelled(self, queue: Queue) -> None:
        """The queue was deleted: tell the client."""
        self.channel.consuming.lost(self)

    def _start(self, address_bytes: int) -> bytes:
        """The frame up to the delivery tag, for this total length of exchange and key."""
        method = _DELIVER + self.tag_bytes
        start = self._starts[address_bytes] = (
            _FRAME(1, self.channel.number, len(method) + _TAG_BYTES + address_bytes) + method
        )
        return start


def content_frames(channel_number: int, header: bytes, body: bytes, max_body: int) -> list[bytes]:
    """The content header frame and the body frames."""
    frames = [_FRAME(2, channel_number, len(header)) + header + b"\xce"]
    for start in range(0, len(body), max_body):
        part = body[start : start + max_body]
        frames += (_FRAME(3, channel_number, len(part)), part, b"\xce")
    return frames


def with_delivery_count(header: bytes, count: int) -> bytes:
    """Add ``x-delivery-count`` to a content header, as RabbitMQ's quorum queues do."""
    added: FieldTable = {"x-delivery-count": Long(count)}
    return header[:PROPERTIES_AT] + with_added_headers(header[PROPERTIES_AT:], added)
