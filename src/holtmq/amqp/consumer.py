"""A consumer on a channel: from messages to basic.deliver frames.

Owns: prefetch, the leases of one consumer, the delivery hot path. Must not touch: sockets; frames go
to the connection's outbox.
"""

import struct
from itertools import repeat
from typing import TYPE_CHECKING, Final

from holtmq.amqp.ack_timeout import AckTimeout
from holtmq.broker.message import Message
from holtmq.broker.work.leases import Holder, Lease
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.wire.properties import PROPERTIES_AT, raw_headers, with_headers
from holtmq.wire.tables import FieldTable, Long

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel

UNLIMITED: Final = 1 << 30
_TAG: Final = struct.Struct(">QB").pack
_TAG_BYTES: Final = 9
_FRAME: Final = struct.Struct(">BHI").pack
_END_AND_FRAME: Final = struct.Struct(">BBHI").pack
_DELIVER: Final = b"\x00\x3c\x00\x3c"
_HEADS_MAX: Final = 1_024
_MIDDLES_MAX: Final = 64  # not refilled: with headers that never repeat it would only churn
_LARGE_OVERHEAD: Final = 512


class Consumer(Holder):
    """Takes messages for one consumer tag."""

    __slots__ = (
        "_heads",
        "_timeout",
        "arguments",
        "cancel_requeue",
        "channel",
        "exclusive",
        "no_ack",
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
        queue: WorkQueue,
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
        self._heads: dict[bytes, _Head] = {}
        self._timeout = AckTimeout(channel, self, queue)

    @property
    def joins_group(self) -> bool:
        """Whether it shares a stream with others, which then count what fails; else it reads for itself."""
        return "x-consumer-group" in self.arguments

    def room(self) -> int:
        """How many messages may be on their way to the client now."""
        channel = self.channel
        if not channel.flowing or channel.outbox.is_full:
            return 0
        if self.no_ack:
            return UNLIMITED
        room = self.prefetch - len(self.held) if self.prefetch else UNLIMITED
        if channel.global_prefetch:
            room = min(room, channel.global_prefetch - channel.consumer_leases())
        return room

    def deliver(self, queue: WorkQueue, messages: list[Message]) -> None:
        """Lease the messages and write their frames."""
        channel = self.channel
        ledger = channel.ledger
        number = ledger.last
        ledger.last += len(messages)
        if not self.no_ack:
            self.note_delivery(channel.flow.now_ms, number + 1)
            numbers = list(range(number + 1, ledger.last + 1))
            leases = list(map(Lease, numbers, repeat(queue), messages, repeat(self)))
            ledger.by_number.update(zip(numbers, leases, strict=True))
            self.held.update(zip(numbers, leases, strict=True))
        outbox = channel.outbox
        chunks = outbox.chunks
        max_body = channel.max_payload
        # Nothing that waits here has been out before: the common case, asked once.
        before = queue.redelivered_upto
        fresh = (
            not queue.returned
            and messages[0].seq > before
            and (not before or min([message.seq for message in messages]) > before)
        )
        redelivered = size = frame_size = 0
        # Messages of one publisher share these objects, and equal headers mean bodies of equal size.
        address = header = start = middle = b""
        for message in messages:
            number += 1
            body = message.body
            if message.header is not header or message.address is not address or not fresh:
                address, header = message.address, message.header
                if not fresh:
                    redelivered = int(queue.is_redelivered(message))
                    if redelivered and queue.counts_deliveries:
                        header = with_delivery_count(header, queue.returned.get(message.seq, 1))
                head = self._heads.get(address) or self._head(address)
                if len(body) > max_body:
                    chunks.append(head.start + _TAG(number, redelivered) + address + b"\xce")
                    chunks += content_frames(channel.number, header, body, max_body)
                    size += len(body) + _LARGE_OVERHEAD
                    header = b""
                    continue
                start = head.start
                middle = head.middles.get(header) or head.middle(header, body)
                frame_size = len(start) + _TAG_BYTES + len(middle) + len(body) + 1
            chunks += start, _TAG(number, redelivered), middle, body, b"\xce"
            size += frame_size
        outbox.grew(size)
        if self.no_ack:
            queue.settle_all(messages)
        elif not self._timeout.armed:
            self._timeout.delivered()

    def cancelled(self, queue: WorkQueue) -> None:
        """The queue is gone: tell the client."""
        self.channel.consuming.lost(self)

    def _head(self, address: bytes) -> "_Head":
        if len(self._heads) >= _HEADS_MAX:
            self._heads.clear()
        head = self._heads[address] = _Head(self.channel.number, self.tag_bytes, address)
        return head


class _Head:
    """The bytes of a delivery that repeat: all but the delivery tag and the body."""

    __slots__ = ("_channel_number", "_end", "middles", "start")

    def __init__(self, channel_number: int, tag_bytes: bytes, address: bytes) -> None:
        self._channel_number = channel_number
        method = _DELIVER + tag_bytes
        self.start = _FRAME(1, channel_number, len(method) + 9 + len(address)) + method
        self._end = address + b"\xce"
        # Between delivery tag and body, by content header: publishers repeat those, too.
        self.middles: dict[bytes, bytes] = {}

    def middle(self, header: bytes, body: bytes) -> bytes:
        """End of the method frame, the header frame, and the start of the body frame if there is one."""
        number = self._channel_number
        middle = b"".join((self._end, _FRAME(2, number, len(header)), header))
        if body:
            middle += _END_AND_FRAME(0xCE, 3, number, len(body))
        if len(self.middles) < _MIDDLES_MAX:
            self.middles[header] = middle
        return middle


def content_frames(channel_number: int, header: bytes, body: bytes, max_body: int) -> list[bytes]:
    """A content header frame and as many body frames as the body needs."""
    frames = [_FRAME(2, channel_number, len(header)) + header + b"\xce"]
    for start in range(0, len(body), max_body):
        part = body[start : start + max_body]
        frames += (_FRAME(3, channel_number, len(part)), part, b"\xce")
    return frames


def with_delivery_count(header: bytes, count: int) -> bytes:
    """A header that says how often the message came back, as quorum queues do."""
    properties = header[PROPERTIES_AT:]
    headers = {**raw_headers(properties), "x-delivery-count": Long(count)}
    return header[:PROPERTIES_AT] + with_headers(properties, headers, drop_expiration=False)
