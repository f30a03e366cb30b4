"""The few AMQP frames a load generator sends, and how it recognises those it receives.

Owns: their byte layout. Must not touch: sockets, counting, workloads.
"""

from __future__ import annotations

import struct
from typing import Final

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FRAME_OVERHEAD, encode_frame
from holtmq.amqp.methods import (
    BasicAck,
    BasicCancel,
    BasicDeliver,
    BasicNack,
    BasicPublish,
    ChannelClose,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
    Method,
)
from holtmq.wire.primitives import write_shortstr
from holtmq.wire.properties import Properties, encode_header, encode_properties

FRAME_HEAD: Final = struct.Struct(">BHI")
ACK_BYTES: Final = 21


def key(kind: type[Method]) -> int:
    """The number of a method, as encoded in a frame."""
    return kind.class_id << 16 | kind.method_id


# Methods as (class << 16 | method), as encoded in a frame: those that are recognised by their bytes.
CONNECTION_CLOSE: Final = key(ConnectionClose)
CONNECTION_BLOCKED: Final = key(ConnectionBlocked)
CONNECTION_UNBLOCKED: Final = key(ConnectionUnblocked)
CHANNEL_CLOSE: Final = key(ChannelClose)
BASIC_CANCEL: Final = key(BasicCancel)
BASIC_DELIVER: Final = key(BasicDeliver)
BASIC_ACK: Final = key(BasicAck)
BASIC_NACK: Final = key(BasicNack)


def method(channel: int, what: Method) -> bytes:
    """The frame of a method."""
    return encode_frame(FRAME_METHOD, channel, encode_method(what))


def short(text: str) -> bytes:
    out = bytearray()
    write_shortstr(out, text)
    return bytes(out)


def ack(channel: int, tag: int, *, multiple: bool) -> bytes:
    return method(channel, BasicAck(tag, multiple))


def properties(*, persistent: bool, priority: int | None) -> bytes:
    """Property flags and values of a content header."""
    return encode_properties(Properties(delivery_mode=2 if persistent else None, priority=priority))


def content(channel: int, props: bytes, body: bytes, frame_max: int) -> bytes:
    """Header and body frames of one message."""
    out = encode_frame(FRAME_HEADER, channel, encode_header(len(body), props))
    room = frame_max - FRAME_OVERHEAD
    for at in range(0, len(body), room):
        out += encode_frame(FRAME_BODY, channel, body[at : at + room])
    return out


def publish(channel: int, exchange: str, key: str, props: bytes, body: bytes, frame_max: int) -> bytes:
    """One complete message, ready to be sent any number of times."""
    return method(channel, BasicPublish(exchange, key)) + content(channel, props, body, frame_max)


def deliver_prefix(channel: int, consumer_tag: str, exchange: str, key: str) -> bytes:
    """A ``basic.deliver`` frame up to, but not including, its delivery tag."""
    whole = method(channel, BasicDeliver(consumer_tag, 0, False, exchange, key))
    return whole[: FRAME_HEAD.size + 4 + len(short(consumer_tag))]


def close_reason(payload: bytes) -> str:
    """Code and text of a ``connection.close`` or ``channel.close``."""
    closed = decode_method(payload)
    assert isinstance(closed, ConnectionClose | ChannelClose)
    return f"{closed.reply_code} {closed.reply_text}"
