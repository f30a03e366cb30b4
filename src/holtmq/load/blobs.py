"""Many publishes as one block of bytes, with the send time stamped into each body.

Owns: the layout of a published and of a delivered message. Must not touch: sockets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from holtmq.load import frames
from holtmq.load.link import CHANNEL
from holtmq.load.workloads import Workload

_BLOB_BYTES: Final = 64 * 1024
_STAMP: Final = struct.Struct(">Q")
STAMP_BYTES: Final = 8
_FILLER: Final = b"holtload"


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets inside a delivered message."""

    prefix: bytes
    message_bytes: int
    body_at: int


def routing_key(workload: Workload, number: int, queue: str) -> str:
    """The routing key of the publishes with this number; all keys of a workload have the same length."""
    if workload.exchange_kind == "topic":
        return f"load.{number:04d}.used"
    return "" if workload.exchange_kind else queue


def body(workload: Workload) -> bytes:
    """A body with room for the stamp at its start."""
    size = workload.body_bytes - STAMP_BYTES
    return bytes(STAMP_BYTES) + (_FILLER * (size // len(_FILLER) + 1))[:size]


def _properties(workload: Workload, number: int) -> bytes:
    priority = number % workload.priorities + 1 if workload.priorities else None
    return frames.properties(persistent=workload.durable, priority=priority)


class Blob:
    """A block of publishes of equal length that is sent repeatedly."""

    def __init__(self, workload: Workload, exchange: str, queue: str, frame_max: int) -> None:
        text = body(workload)
        turns = max(workload.routing_keys, workload.priorities, 1)
        variants = []
        for number in range(turns):
            key, props = routing_key(workload, number, queue), _properties(workload, number)
            variants.append(frames.publish(CHANNEL, exchange, key, props, text, frame_max))
        self.message_bytes = len(variants[0])
        self.messages = max(_BLOB_BYTES // (self.message_bytes * turns), 1) * turns
        self.data = bytearray(b"".join(variants) * (self.messages // turns))
        self.view = memoryview(self.data)
        content = frames.content(CHANNEL, _properties(workload, 0), text, frame_max)
        head = frames.content(CHANNEL, _properties(workload, 0), b"", frame_max)
        self._body_at = self.message_bytes - len(content) + len(head) + frames.FRAME_HEAD.size
        self._shown = bytes(STAMP_BYTES)

    def whole(self, at: int) -> int:
        """How many messages end at or before a byte offset."""
        return at // self.message_bytes

    def end_of(self, messages: int) -> int:
        """The byte offset after this many messages."""
        return messages * self.message_bytes

    def stamp(self, first: int, now_ns: int) -> None:
        """Write the time into every message from ``first`` on. Only bytes that changed are written."""
        stamp = _STAMP.pack(now_ns)
        shown, size, data = self._shown, self.message_bytes, self.data
        start = first * size + self._body_at
        count = self.messages - first
        if first == 0:
            for at in range(STAMP_BYTES):
                if stamp[at] != shown[at]:
                    data[start + at :: size] = stamp[at : at + 1] * count
            self._shown = stamp
            return
        # Messages before ``first`` keep an older time, so the next full pass must write every byte.
        for at in range(STAMP_BYTES):
            data[start + at :: size] = stamp[at : at + 1] * count
        self._shown = bytes(255 - byte for byte in stamp)


def layout(workload: Workload, exchange: str, queue: str, consumer_tag: str, frame_max: int) -> Layout:
    """The layout of this workload's deliveries."""
    key = routing_key(workload, 0, queue)
    prefix = frames.deliver_prefix(CHANNEL, consumer_tag, exchange, key)
    deliver = len(prefix) + 8 + 1 + len(frames.short(exchange)) + len(frames.short(key)) + 1
    props = _properties(workload, 0)
    text = body(workload)
    head = frames.content(CHANNEL, props, b"", frame_max)
    return Layout(
        prefix,
        deliver + len(frames.content(CHANNEL, props, text, frame_max)),
        deliver + len(head) + frames.FRAME_HEAD.size,
    )


def stamp_at(buffer: bytearray, at: int) -> int:
    """The time stamped into the body that begins at ``at``."""
    value: int = _STAMP.unpack_from(buffer, at)[0]
    return value


def body_is_intact(buffer: bytearray, at: int, size: int) -> bool:
    """Whether the part after the stamp is what was sent."""
    tail = min(size - STAMP_BYTES, len(_FILLER))
    return buffer[at + STAMP_BYTES : at + STAMP_BYTES + tail] == _FILLER[:tail]
