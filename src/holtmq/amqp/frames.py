"""Frames: the envelope around every method, content header, body part and heartbeat.

Owns: encoding a frame, and splitting a byte stream into frames for clients, tests and a standby's listener.
Must not touch: payloads. The broker's own read path has a faster loop (``frame_loop.py``).
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from holtmq.wire.primitives import CodecError

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8  # kind, channel, size, end; frame_max counts them
FRAME_MIN_SIZE: Final = 4096  # the least frame_max
# The most a client may send before it has negotiated: room for a token as the password. (RabbitMQ takes 4
# KiB, since 4.0 8 KiB.) Anyone may send it, and a table in it may be decoded to ten times as much.
FIRST_PAYLOAD_MAX: Final = FRAME_MIN_SIZE + 16 * 1024 - FRAME_OVERHEAD

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

Frame: TypeAlias = tuple[int, int, bytes]  # kind, channel, payload

_HEAD: Final = struct.Struct(">BHI")
_END: Final = bytes((FRAME_END,))
_KINDS: Final = frozenset((FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT))


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Encode one frame. The caller keeps the payload within the negotiated frame_max."""
    try:
        return b"".join((_HEAD.pack(kind, channel, len(payload)), payload, _END))
    except struct.error:
        raise CodecError(f"no frame has kind {kind}, channel {channel}, {len(payload)} bytes") from None


class FrameReader:
    """Splits received bytes into frames, whatever the sizes of the reads.

    The frames before a broken one are still returned. The broken one stays at the head of the buffer, because
    the start of the next one is unknown, and every later call raises.
    """

    __slots__ = ("_buffer", "frame_max")

    def __init__(self, frame_max: int = 131072) -> None:
        self._buffer = bytearray()
        self.frame_max = frame_max  # bytes of a whole frame, 0: no limit; changes with connection.tune

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        at = 0
        try:
            while (frame := self._next(buffer, at)) is not None:
                frames.append(frame)
                at += len(frame[2]) + FRAME_OVERHEAD
        except CodecError:
            if not frames:
                raise
        del buffer[:at]
        return frames

    def _next(self, buffer: bytearray, at: int) -> Frame | None:
        if len(buffer) - at < _HEAD.size:
            return None
        kind: int
        channel: int
        size: int
        kind, channel, size = _HEAD.unpack_from(buffer, at)
        if kind not in _KINDS:
            if buffer.startswith(b"AMQP", at):
                raise CodecError(f"the peer offers protocol {bytes(buffer[at : at + 8])!r} instead of frames")
            raise CodecError(f"unknown frame type {kind}")
        if self.frame_max and size + FRAME_OVERHEAD > self.frame_max:
            raise CodecError(f"frame of {size + FRAME_OVERHEAD} bytes; the most is {self.frame_max}")
        end = at + _HEAD.size + size
        if len(buffer) <= end:
            return None
        if buffer[end] != FRAME_END:
            raise CodecError(f"frame ends with 0x{buffer[end]:02x} instead of 0x{FRAME_END:02x}")
        return kind, channel, bytes(buffer[at + _HEAD.size : end])
