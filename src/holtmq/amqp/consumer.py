"""A consumer on a channel: from messages to basic.deliver frames.

Owns: prefetch, the leases of one consumer, the delivery hot path. Must not touch: sockets; frames go
to the connection's outbox.
"""

import struct
from typing import TYPE_CHECKING, Final

from holtmq.broker.leases import Holder, Lease
from holtmq.broker.message import Message
from holtmq.broker.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel

UNLIMITED: Final = 1 << 30
_TAG: Final = struct.Struct(">QB").pack
_FRAME: Final = struct.Struct(">BHI").pack
_END_AND_FRAME: Final = struct.Struct(">BBHI").pack
_DELIVER: Final = b"\x00\x3c\x00\x3c"
_HEADS_MAX: Final = 1_024


class Consumer(Holder):
    """Takes messages for one consumer tag."""

    __slots__ = (
        "_heads",
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
    ) -> None:
        super().__init__()
        self.channel = channel
        self.tag = tag
        raw = tag.encode("utf-8", "surrogateescape")
        self.tag_bytes = bytes((len(raw),)) + raw
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch  # 0: unlimited
        self.priority = priority
        self._heads: dict[bytes, tuple[bytes, bytes]] = {}

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
        outbox = channel.outbox
        chunks = outbox.chunks
        heads = self._heads
        channel_number = channel.number
        max_body = channel.max_payload
        # Nothing that waits here has been out before: the common case, asked once.
        fresh = not queue.returned and messages[0].seq > queue.redelivered_upto
        size = 0
        no_ack = self.no_ack
        by_number, held = ledger.by_number, self.held
        for message in messages:
            number += 1
            if not no_ack:
                by_number[number] = held[number] = Lease(number, queue, message, self)
            head = heads.get(message.address)
            if head is None:
                head = self._head(message.address)
            header, body = message.header, message.body
            redelivered = 0 if fresh else int(queue.is_redelivered(message))
            if redelivered and queue.counts_deliveries:
                header = channel.with_delivery_count(header, queue.returned.get(message.seq, 1))
            length = len(body)
            if 0 < length <= max_body:
                frame = b"".join(
                    (
                        head[0],
                        _TAG(number, redelivered),
                        head[1],
                        _FRAME(2, channel_number, len(header)),
                        header,
                        _END_AND_FRAME(0xCE, 3, channel_number, length),
                        body,
                        b"\xce",
                    )
                )
                size += len(frame)
                chunks.append(frame)
            else:
                chunks.append(head[0] + _TAG(number, redelivered) + head[1])
                chunks += content_frames(channel_number, header, body, max_body)
                size += length + 512
        ledger.last = number
        outbox.grew(size)
        if no_ack:
            queue.settle_all(messages)

    def cancelled(self, queue: WorkQueue) -> None:
        """The queue is gone: tell the client."""
        self.channel.consumer_lost(self)

    def _head(self, address: bytes) -> tuple[bytes, bytes]:
        start = _DELIVER + self.tag_bytes
        length = len(start) + 9 + len(address)
        head = _FRAME(1, self.channel.number, length) + start, address + b"\xce"
        if len(self._heads) >= _HEADS_MAX:
            self._heads.clear()
        self._heads[address] = head
        return head


def content_frames(channel_number: int, header: bytes, body: bytes, max_body: int) -> list[bytes]:
    """A content header frame and as many body frames as the body needs."""
    frames = [_FRAME(2, channel_number, len(header)) + header + b"\xce"]
    for start in range(0, len(body), max_body):
        part = body[start : start + max_body]
        frames += (_FRAME(3, channel_number, len(part)), part, b"\xce")
    return frames
