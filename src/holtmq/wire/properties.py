"""A message's properties: the bytes after the body size in a content header.

Owns: decoding the 14 basic properties (``Properties``), reading only what a broker needs (``ContentHeader``),
and replacing single ones. "Property bytes" are the flags and the values after them, ``header_payload[12:]``.
Must not touch: the meaning of a header or an expiration; bytes the caller did not ask to change.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from holtmq.wire.primitives import (
    CodecError,
    decode_text,
    skip_longstr,
    skip_shortstr,
    take,
    write_shortstr,
)
from holtmq.wire.tables import (
    FieldTable,
    FieldValue,
    Timestamp,
    decode_table,
    encode_entry,
    encode_table,
    encode_timestamp,
    entry_spans,
    join_entries,
    timestamp_value,
)

PROPERTIES_AT: Final = 12  # in a content header: after class, weight and body size
_BASIC: Final = 60
_HEAD: Final = struct.Struct(">HHQ")
_U16: Final = struct.Struct(">H")
_U64: Final = struct.Struct(">Q")

_HEADERS: Final = 1 << 13
_DELIVERY_MODE: Final = 1 << 12
_PRIORITY: Final = 1 << 11
_REPLY_TO: Final = 1 << 9
_EXPIRATION: Final = 1 << 8
_TIMESTAMP: Final = 1 << 6
_USER_ID: Final = 1 << 4

# Flag and name in wire order. See ``_form`` for those that are not short strings.
_NAMES: Final = (
    (1 << 15, "content_type"),
    (1 << 14, "content_encoding"),
    (_HEADERS, "headers"),
    (_DELIVERY_MODE, "delivery_mode"),
    (_PRIORITY, "priority"),
    (1 << 10, "correlation_id"),
    (_REPLY_TO, "reply_to"),
    (_EXPIRATION, "expiration"),
    (1 << 7, "message_id"),
    (_TIMESTAMP, "timestamp"),
    (1 << 5, "type"),
    (_USER_ID, "user_id"),
    (1 << 3, "app_id"),
    (1 << 2, "cluster_id"),
)
_OCTETS: Final = _DELIVERY_MODE | _PRIORITY

FLAG_REPLY_TO: Final = _REPLY_TO
FLAG_EXPIRATION: Final = _EXPIRATION
FLAG_USER_ID: Final = _USER_ID


class Form(Enum):
    """The wire type of a property."""

    TEXT = "text"
    TABLE = "table"
    OCTET = "octet"
    TIMESTAMP = "timestamp"


def _form(flag: int) -> Form:
    if flag == _HEADERS:
        return Form.TABLE
    if flag == _TIMESTAMP:
        return Form.TIMESTAMP
    return Form.OCTET if flag & _OCTETS else Form.TEXT


PROPERTY_FLAGS: Final = tuple((flag, name, _form(flag)) for flag, name in _NAMES)  # in wire order


@dataclass(slots=True)
class Properties:
    """The basic properties. None means not sent, which differs from empty."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: FieldTable | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: datetime | Timestamp | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class ContentHeader:
    """What routing and queueing need. All but ``body_size`` depends on the property bytes only."""

    body_size: int
    delivery_mode: int  # 0 when not sent
    priority: int | None
    expiration: bytes | None
    headers_at: tuple[int, int] | None  # slice of the property bytes: the table including its length
    reply_to: str | None
    user_id: str | None


def read_content_header(header_payload: bytes) -> ContentHeader:
    """Read a content header. Does not decode the headers table, which may still be malformed.

    A caller that caches the result by property bytes must call ``body_size`` for each message.
    """
    size = body_size(header_payload)
    data = header_payload[PROPERTIES_AT:]
    spans = _spans(data)
    mode, priority = spans.get(_DELIVERY_MODE), spans.get(_PRIORITY)
    expiration = spans.get(_EXPIRATION)
    return ContentHeader(
        body_size=size,
        delivery_mode=data[mode[0]] if mode else 0,
        priority=data[priority[0]] if priority else None,
        expiration=data[expiration[0] + 1 : expiration[1]] if expiration else None,
        headers_at=spans.get(_HEADERS),
        reply_to=_text(data, spans.get(_REPLY_TO)),
        user_id=_text(data, spans.get(_USER_ID)),
    )


def body_size(header_payload: bytes) -> int:
    """How many body bytes follow; raises CodecError if the header is not of class basic."""
    if len(header_payload) < PROPERTIES_AT:
        raise CodecError(f"content header of {len(header_payload)} bytes; the least is {PROPERTIES_AT + 2}")
    class_id: int
    weight: int
    size: int
    class_id, weight, size = _HEAD.unpack_from(header_payload)
    if class_id != _BASIC:
        raise CodecError(f"content header of class {class_id}; only basic ({_BASIC}) carries content")
    if weight != 0:
        raise CodecError(f"content header has weight {weight}; it must be 0")
    return size


def encode_header(size: int, property_bytes: bytes) -> bytes:
    """The payload of a content header frame."""
    try:
        return _HEAD.pack(_BASIC, 0, size) + property_bytes
    except struct.error:
        raise CodecError(f"body size {size} is not in 0 .. 2**64-1") from None


def decode_properties(data: bytes, offset: int = 0) -> Properties:
    """Decode all properties, from the flags at ``offset`` (12 in a content header) to the end of ``data``."""
    property_bytes = data[offset:] if offset else data
    spans = _spans(property_bytes)
    mode, priority = spans.get(_DELIVERY_MODE), spans.get(_PRIORITY)
    headers, timestamp = spans.get(_HEADERS), spans.get(_TIMESTAMP)
    texts = {
        flag: decode_text(property_bytes[start + 1 : end])
        for flag, (start, end) in spans.items()
        if _is_text(flag)
    }.get
    return Properties(
        content_type=texts(1 << 15),
        content_encoding=texts(1 << 14),
        headers=decode_table(property_bytes, headers[0], headers[1])[0] if headers else None,
        delivery_mode=property_bytes[mode[0]] if mode else None,
        priority=property_bytes[priority[0]] if priority else None,
        correlation_id=texts(1 << 10),
        reply_to=texts(_REPLY_TO),
        expiration=texts(_EXPIRATION),
        message_id=texts(1 << 7),
        timestamp=timestamp_value(_U64.unpack_from(property_bytes, timestamp[0])[0]) if timestamp else None,
        type=texts(1 << 5),
        user_id=texts(_USER_ID),
        app_id=texts(1 << 3),
        cluster_id=texts(1 << 2),
    )


def encode_properties(properties: Properties) -> bytes:
    """Encode the property bytes: flags, then each property that is not None."""
    flags = 0
    out = bytearray(2)
    for flag, name in _NAMES:
        value: object = getattr(properties, name)
        if value is None:
            continue
        flags |= flag
        match value:
            case str() if _is_text(flag):
                write_shortstr(out, value, f"property {name}")
            case dict() if flag == _HEADERS:
                out += encode_table(value)
            case datetime() | Timestamp() if flag == _TIMESTAMP:
                out += encode_timestamp(value)
            case int() if flag & _OCTETS and 0 <= value <= 255:
                out.append(value)
            case _:
                raise CodecError(f"property {name} cannot be {value!r}")
    _U16.pack_into(out, 0, flags)
    return bytes(out)


def raw_headers(property_bytes: bytes) -> FieldTable:
    """The headers table, decoded; empty when the message has none."""
    span = _spans(property_bytes).get(_HEADERS)
    return decode_table(property_bytes, span[0], span[1])[0] if span else {}


def headers_end(property_bytes: bytes) -> int:
    """The offset after the headers table, which must exist."""
    return _spans(property_bytes)[_HEADERS][1]


def with_added_headers(property_bytes: bytes, added: Mapping[str, FieldValue]) -> bytes:
    """Put these headers behind all others, in place of those with their names; all else keeps its bytes.

    The table is decoded only if it may have one of these headers: it may have thousands, or be malformed.
    """
    spans = _spans(property_bytes)
    start, end = spans.get(_HEADERS, (0, 0))
    entries = [encode_entry(name, value) for name, value in added.items()]
    kept = property_bytes[start + 4 : end]
    if any(entry[: 1 + entry[0]] in kept for entry in entries):
        try:
            old = entry_spans(property_bytes, start)
        except CodecError:  # as in ``_merge_table``
            old = {}
        kept = b"".join([property_bytes[at:to] for name, (_, at, to) in old.items() if name not in added])
    return _rebuild(property_bytes, spans, {_HEADERS: join_entries([kept, *entries])})


def with_headers(
    property_bytes: bytes, new_headers: Mapping[str, FieldValue] | None, drop_expiration: bool
) -> bytes:
    """Replace the headers table (None: remove it); the other properties keep their bytes.

    An entry whose value did not change keeps its bytes too: encoding it again would turn a client's int8 into
    an int32, and a consumer may depend on the type.
    """
    spans = _spans(property_bytes)
    pieces: dict[int, bytes | None] = {_HEADERS: None}
    if new_headers is not None:
        span = spans.get(_HEADERS)
        kept = _merge_table(property_bytes, span, new_headers) if span else encode_table(new_headers)
        pieces[_HEADERS] = kept
    if drop_expiration:
        pieces[_EXPIRATION] = None
    return _rebuild(property_bytes, spans, pieces)


def with_reply_to(property_bytes: bytes, reply_to: str) -> bytes:
    """Replace reply-to, for direct reply-to; the other properties keep their bytes."""
    out = bytearray()
    write_shortstr(out, reply_to, "property reply_to")
    return _rebuild(property_bytes, _spans(property_bytes), {_REPLY_TO: bytes(out)})


def with_timestamp(property_bytes: bytes, seconds: int, *, overwrite: bool) -> bytes:
    """Set the timestamp, or leave the publisher's; the other properties keep their bytes."""
    spans = _spans(property_bytes)
    if _TIMESTAMP in spans and not overwrite:
        return property_bytes
    return _rebuild(property_bytes, spans, {_TIMESTAMP: seconds.to_bytes(8, "big")})


def overlay(property_bytes: bytes, over: bytes) -> bytes:
    """Replace the properties that ``over`` has; the others keep their bytes."""
    pieces = {flag: over[start:end] for flag, (start, end) in _spans(over).items()}
    return _rebuild(property_bytes, _spans(property_bytes), pieces)


_PLAIN: Final = (str, int, bytes)  # types whose equal values are encoded in the same way
_ABSENT: Final = (None, 0, 0)


def _merge_table(data: bytes, span: tuple[int, int], table: Mapping[str, FieldValue]) -> bytes:
    try:
        old = entry_spans(data, span[0])
    except CodecError:
        # The table was not decoded before. A malformed one must not block its message in the queue: the new
        # table replaces it completely.
        old = {}
    entries: list[bytes] = []
    for key, value in table.items():
        before, start, end = old.get(key, _ABSENT)
        if type(value) in _PLAIN and type(value) is type(before) and value == before:
            entries.append(data[start:end])
            continue
        entry = encode_entry(key, value)
        # Compare encoded values: with ==, True equals 1 and NaN differs from itself.
        if key in old and encode_entry(key, before) == entry:
            entry = data[start:end]
        entries.append(entry)
    return join_entries(entries)


def _rebuild(data: bytes, spans: dict[int, tuple[int, int]], pieces: Mapping[int, bytes | None]) -> bytes:
    """The properties at ``spans``, some replaced by ``pieces``; None removes one."""
    flags = 0
    out = [b""]
    for flag, _ in _NAMES:
        span = spans.get(flag)
        piece = pieces[flag] if flag in pieces else data[span[0] : span[1]] if span else None
        if piece is not None:
            flags |= flag
            out.append(piece)
    out[0] = _U16.pack(flags)
    return b"".join(out)


def _spans(data: bytes) -> dict[int, tuple[int, int]]:
    """Start and end of each property that was sent, by flag, in wire order."""
    end = len(data)
    at = take(0, end, 2, "property flags")
    flags: int = _U16.unpack_from(data)[0]
    if flags & 0b11:  # bit 0 announces more flags, for properties that basic does not have
        raise CodecError(f"property flags 0x{flags:04x} name properties that do not exist")
    spans: dict[int, tuple[int, int]] = {}
    for flag, name in _NAMES:
        if not flags & flag:
            continue
        if flag == _HEADERS:
            after = skip_longstr(data, at, end, name)
        elif flag & _OCTETS:
            after = take(at, end, 1, name)
        elif flag == _TIMESTAMP:
            after = take(at, end, 8, name)
        else:
            after = skip_shortstr(data, at, end, name)
        spans[flag] = (at, after)
        at = after
    if at != end:
        raise CodecError(f"{end - at} bytes after the last property")
    return spans


def _is_text(flag: int) -> bool:
    return not flag & (_HEADERS | _OCTETS | _TIMESTAMP)


def _text(data: bytes, span: tuple[int, int] | None) -> str | None:
    return decode_text(data[span[0] + 1 : span[1]]) if span else None
