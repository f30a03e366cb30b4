"""Frames: the envelope around every method, content header, body piece and heartbeat.

Owns: the plain way to write frames and to cut a byte stream into them, for tests, clients and load tools.
Must not touch: what is inside a payload. The broker's own read path has a loop of its own, made for speed.
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
FRAME_MIN_SIZE: Final = 4096  # no peer may negotiate less, nor send more before it has negotiated

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

Frame: TypeAlias = tuple[int, int, bytes]  # kind, channel, payload

_HEAD: Final = struct.Struct(">BHI")
_END: Final = bytes((FRAME_END,))
_KINDS: Final = frozenset((FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT))


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame. The caller has cut the payload to the negotiated frame_max."""
    try:
        return b"".join((_HEAD.pack(kind, channel, len(payload)), payload, _END))
    except struct.error:
        raise CodecError(f"no frame has kind {kind}, channel {channel}, {len(payload)} bytes") from None


class FrameReader:
    """Cuts what arrives into frames, however it was split on the way.

    What follows a broken frame cannot be found again, so it stays at the head of the buffer: whole frames
    before the damage are still handed out, every later call raises.
    """

    __slots__ = ("_buffer", "frame_max")

    def __init__(self, frame_max: int = 131072) -> None:
        self._buffer = bytearray()
        self.frame_max = frame_max  # of a whole frame, 0 for no limit; connection.tune changes it

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes."""
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
