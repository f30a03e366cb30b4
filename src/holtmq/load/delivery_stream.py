"""Counting deliveries in a byte stream by arithmetic, and acking them in blocks.

Owns: the proof that the arithmetic holds. Equal messages have equal length, and a channel numbers its
deliveries 1, 2, 3. So when the last complete message of a read is at the expected offset and has the
expected number, every message before it was there too. Anything else is parsed frame by frame.
Must not touch: sockets and clocks.
"""

from __future__ import annotations

import struct
from typing import Final

from holtmq.amqp.frames import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD, FRAME_OVERHEAD
from holtmq.load import frames
from holtmq.load.errors import LoadError
from holtmq.load.read_buffer import ReadBuffer

_TAG: Final = struct.Struct(">Q")
_BUFFER_BYTES: Final = 512 * 1024
_ACK_BLOCK: Final = 256


class DeliveryStream(ReadBuffer):
    """The deliveries of one consumer."""

    def __init__(self, prefix: bytes, message_bytes: int, body_at: int) -> None:
        super().__init__(max(_BUFFER_BYTES, 8 * message_bytes))
        self._prefix = prefix
        self._size = message_bytes
        self._tag_at = len(prefix)
        self.body_at = body_at
        self.last_at = -1  # offset of the last complete message of the last read, -1 when unknown
        self.first_at = -1
        self._body_left = 0
        self._in_message = False

    def added(self, size: int) -> int:
        """Process ``size`` bytes written into ``room()``; return how many deliveries they completed.

        Until ``settle`` is called the messages can be inspected in ``buffer``.
        """
        total = self._filled + size
        self._filled = total
        self.last_at = self.first_at = -1
        if self._in_message:
            return self._read_frames()
        message = self._size
        whole = total // message
        end = whole * message
        buffer = self.buffer
        prefix = self._prefix
        if whole:
            last = end - message
            if (
                _TAG.unpack_from(buffer, last + self._tag_at)[0] != self.count + whole
                or not buffer.startswith(prefix, last)
                or buffer[end - 1] != FRAME_END
            ):
                return self._read_frames()
            self.last_at = last
            self.first_at = 0
        rest = total - end
        if rest and not buffer.startswith(prefix[:rest], end):
            self.last_at = self.first_at = -1
            return self._read_frames()
        self.count += whole
        self._done = end
        return whole

    def _read_frames(self) -> int:
        self.slow_reads += 1
        before = self.count
        buffer, at, total = self.buffer, 0, self._filled
        while at + FRAME_OVERHEAD <= total:
            kind, _, size = frames.FRAME_HEAD.unpack_from(buffer, at)
            end = at + FRAME_OVERHEAD + size
            if end > total:
                break
            self._take(kind, bytes(buffer[at + 7 : end - 1]))
            at = end
        self._done = at
        return self.count - before

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == FRAME_METHOD:
            key = int.from_bytes(payload[:4], "big")
            if key == frames.BASIC_DELIVER:
                self._in_message = True
            else:
                refuse_or_ignore(key, payload)
        elif kind == FRAME_HEADER:
            self._body_left = int.from_bytes(payload[4:12], "big")
            self._finish_if_whole()
        elif kind == FRAME_BODY:
            self._body_left -= len(payload)
            self._finish_if_whole()

    def _finish_if_whole(self) -> None:
        if self._body_left <= 0:
            self._in_message = False
            self.count += 1


class AckWriter:
    """Acks for a range of delivery tags, one frame each, without packing each one.

    256 acks differ only in their last tag byte, so a block is built once and its upper bytes are
    replaced when the range moves on: 0.02 µs per ack, where packing each costs 0.3.
    """

    def __init__(self, channel: int) -> None:
        self._block = bytearray(
            b"".join(frames.ack(channel, low, multiple=False) for low in range(_ACK_BLOCK))
        )
        self._high = 0

    def each(self, after: int, upto: int) -> bytes:
        """Acks for the tags ``after + 1`` to ``upto``."""
        parts = []
        tag = after + 1
        while tag <= upto:
            high, low = divmod(tag, _ACK_BLOCK)
            if high != self._high:
                self._set_high(high)
            stop = min(_ACK_BLOCK - 1, low + upto - tag)
            parts.append(bytes(self._block[low * frames.ACK_BYTES : (stop + 1) * frames.ACK_BYTES]))
            tag += stop - low + 1
        return b"".join(parts)

    def _set_high(self, high: int) -> None:
        for position, (old, new) in enumerate(
            zip(self._high.to_bytes(7, "big"), high.to_bytes(7, "big"), strict=True)
        ):
            if old != new:
                self._block[11 + position :: frames.ACK_BYTES] = bytes((new,)) * _ACK_BLOCK
        self._high = high


def refuse_or_ignore(key: int, payload: bytes) -> None:
    """Raise if a method outside the measured traffic ends the round; else ignore it."""
    if key in (frames.CONNECTION_CLOSE, frames.CHANNEL_CLOSE):
        raise LoadError(f"the broker closed: {frames.close_reason(payload)}")
    if key == frames.BASIC_CANCEL:
        raise LoadError("the broker cancelled a consumer")
    if key not in (frames.CONNECTION_BLOCKED, frames.CONNECTION_UNBLOCKED):
        raise LoadError(f"the broker sent unexpected method {key:#x}")
