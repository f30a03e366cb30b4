"""The few AMQP frames a load generator sends, and how it recognises those it receives.

Owns: their byte layout. Must not touch: sockets, counting, workloads.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from holtmq.wire.primitives import write_longstr, write_shortstr
from holtmq.wire.tables import FieldValue, encode_table

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD_FRAME: Final = 1
HEADER_FRAME: Final = 2
BODY_FRAME: Final = 3
HEARTBEAT_FRAME: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8  # type, channel, size, and the end octet

FRAME_HEAD: Final = struct.Struct(">BHI")
_HEADER: Final = struct.Struct(">HHQ")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_TUNE: Final = struct.Struct(">HIH")

# Methods as (class << 16 | method), as encoded in a frame.
CONNECTION_START: Final = 10 << 16 | 10
CONNECTION_START_OK: Final = 10 << 16 | 11
CONNECTION_TUNE: Final = 10 << 16 | 30
CONNECTION_TUNE_OK: Final = 10 << 16 | 31
CONNECTION_OPEN: Final = 10 << 16 | 40
CONNECTION_OPEN_OK: Final = 10 << 16 | 41
CONNECTION_CLOSE: Final = 10 << 16 | 50
CONNECTION_CLOSE_OK: Final = 10 << 16 | 51
CONNECTION_BLOCKED: Final = 10 << 16 | 60
CONNECTION_UNBLOCKED: Final = 10 << 16 | 61
CHANNEL_OPEN: Final = 20 << 16 | 10
CHANNEL_OPEN_OK: Final = 20 << 16 | 11
CHANNEL_CLOSE: Final = 20 << 16 | 40
EXCHANGE_DECLARE: Final = 40 << 16 | 10
EXCHANGE_DECLARE_OK: Final = 40 << 16 | 11
EXCHANGE_DELETE: Final = 40 << 16 | 20
EXCHANGE_DELETE_OK: Final = 40 << 16 | 21
QUEUE_DECLARE: Final = 50 << 16 | 10
QUEUE_DECLARE_OK: Final = 50 << 16 | 11
QUEUE_BIND: Final = 50 << 16 | 20
QUEUE_BIND_OK: Final = 50 << 16 | 21
QUEUE_DELETE: Final = 50 << 16 | 40
QUEUE_DELETE_OK: Final = 50 << 16 | 41
BASIC_QOS: Final = 60 << 16 | 10
BASIC_QOS_OK: Final = 60 << 16 | 11
BASIC_CONSUME: Final = 60 << 16 | 20
BASIC_CONSUME_OK: Final = 60 << 16 | 21
BASIC_CANCEL: Final = 60 << 16 | 30
BASIC_CANCEL_OK: Final = 60 << 16 | 31
BASIC_PUBLISH: Final = 60 << 16 | 40
BASIC_DELIVER: Final = 60 << 16 | 60
BASIC_ACK: Final = 60 << 16 | 80
BASIC_NACK: Final = 60 << 16 | 120
CONFIRM_SELECT: Final = 85 << 16 | 10
CONFIRM_SELECT_OK: Final = 85 << 16 | 11

ACK_BYTES: Final = 21
_DELIVERY_MODE_FLAG: Final = 1 << 12
_PRIORITY_FLAG: Final = 1 << 11
_BASIC_CLASS: Final = 60


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, key: int, *fields: bytes) -> bytes:
    return frame(METHOD_FRAME, channel, _U32.pack(key) + b"".join(fields))


def short(text: str) -> bytes:
    out = bytearray()
    write_shortstr(out, text)
    return bytes(out)


def long(raw: bytes) -> bytes:
    out = bytearray()
    write_longstr(out, raw)
    return bytes(out)


def table(entries: Mapping[str, FieldValue]) -> bytes:
    return encode_table(entries)


def u16(value: int) -> bytes:
    return _U16.pack(value)


def u32(value: int) -> bytes:
    return _U32.pack(value)


def tune_ok(channel_max: int, frame_max: int) -> bytes:
    """Without heartbeats: a busy connection shows that it is alive, and the byte stream stays regular."""
    return method(0, CONNECTION_TUNE_OK, _TUNE.pack(channel_max, frame_max, 0))


def read_tune(payload: bytes) -> tuple[int, int]:
    """Channel maximum and frame maximum of a ``connection.tune``."""
    channel_max, frame_max, _ = _TUNE.unpack_from(payload, 4)
    return channel_max, frame_max


def ack(channel: int, tag: int, *, multiple: bool) -> bytes:
    return method(channel, BASIC_ACK, struct.pack(">QB", tag, multiple))


def properties(*, persistent: bool, priority: int | None) -> bytes:
    """Property flags and values of a content header."""
    flags, values = 0, b""
    if persistent:
        flags |= _DELIVERY_MODE_FLAG
        values += b"\x02"
    if priority is not None:
        flags |= _PRIORITY_FLAG
        values += bytes((priority,))
    return _U16.pack(flags) + values


def content(channel: int, props: bytes, body: bytes, frame_max: int) -> bytes:
    """Header and body frames of one message."""
    out = frame(HEADER_FRAME, channel, _HEADER.pack(_BASIC_CLASS, 0, len(body)) + props)
    room = frame_max - FRAME_OVERHEAD
    for at in range(0, len(body), room):
        out += frame(BODY_FRAME, channel, body[at : at + room])
    return out


def publish(channel: int, exchange: str, key: str, props: bytes, body: bytes, frame_max: int) -> bytes:
    """One complete message, ready to be sent any number of times."""
    head = method(channel, BASIC_PUBLISH, b"\x00\x00", short(exchange), short(key), b"\x00")
    return head + content(channel, props, body, frame_max)


def deliver_prefix(channel: int, consumer_tag: str, exchange: str, key: str) -> bytes:
    """A ``basic.deliver`` frame up to, but not including, its delivery tag."""
    size = 4 + len(short(consumer_tag)) + 8 + 1 + len(short(exchange)) + len(short(key))
    return FRAME_HEAD.pack(METHOD_FRAME, channel, size) + _U32.pack(BASIC_DELIVER) + short(consumer_tag)


def close_reason(payload: bytes) -> str:
    """Code and text of a ``connection.close`` or ``channel.close``."""
    (code,) = _U16.unpack_from(payload, 4)
    return f"{code} {payload[7 : 7 + payload[6]].decode('utf-8', 'replace')}"
