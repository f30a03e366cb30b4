"""Field tables and arrays, with RabbitMQ's type tags (its errata, not the 0-9-1 grammar).

Owns: the mapping between wire types and Python values. Lengths are checked against their container and
nesting is bounded; a malformed table raises ``CodecError``. Decoding loses the width of integers and floats:
a caller that passes a client's table on unchanged keeps its bytes (``entry_spans``).
Must not touch: what the entries mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, TypeAlias

from holtmq.wire.primitives import (
    CodecError,
    encode_text,
    read_longstr,
    read_shortstr,
    skip_longstr,
    take,
    write_longstr,
    write_shortstr,
)

FieldValue: TypeAlias = (
    "bool | int | float | str | bytes | Decimal | datetime | dict[str, FieldValue] | list[FieldValue] | None"
)
FieldTable: TypeAlias = dict[str, FieldValue]

MAX_DEPTH: Final = 64  # nested containers, including the outermost table

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_LAST_SECOND: Final = (datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - EPOCH) // _SECOND

_U32: Final = struct.Struct(">I")
_I32_TAGGED: Final = struct.Struct(">ci")
_I64_TAGGED: Final = struct.Struct(">cq")
_F64_TAGGED: Final = struct.Struct(">cd")
_U64: Final = struct.Struct(">Q")
_DECIMAL: Final = struct.Struct(">Bi")


class Timestamp(int):
    """Seconds since 1970 beyond the range of ``datetime``, such as milliseconds sent by mistake."""

    __slots__ = ()


class Long(int):
    """An integer always encoded with 64 bits, where clients in typed languages expect that."""

    __slots__ = ()


def decode_table(data: bytes, at: int = 0, end: int | None = None) -> tuple[FieldTable, int]:
    """Decode the table at ``at``, which starts with its length; return it and the offset after it."""
    stop = len(data) if end is None else end
    after = skip_longstr(data, at, stop, "table")
    return _pairs(data, at + 4, after, 1), after


def decode_pairs(data: bytes) -> FieldTable:
    """Decode a table without its length, as in an AMQPLAIN response."""
    return _pairs(data, 0, len(data), 1)


def encode_table(table: Mapping[str, FieldValue]) -> bytes:
    """Encode the table, starting with its length."""
    out = bytearray()
    _write_table(out, table, 1)
    return bytes(out)


def encode_entry(key: str, value: FieldValue) -> bytes:
    """Encode one key and value of a table."""
    out = bytearray()
    write_shortstr(out, key, "table key")
    _write_value(out, value, 1)
    return bytes(out)


def join_entries(entries: list[bytes]) -> bytes:
    """Build a table from encoded entries."""
    out = bytearray()
    write_longstr(out, b"".join(entries))
    return bytes(out)


def entry_spans(data: bytes, at: int = 0) -> dict[str, tuple[FieldValue, int, int]]:
    """By key: the value, and the slice of its entry including the key. The last of a repeated key wins."""
    end = skip_longstr(data, at, len(data), "table")
    spans: dict[str, tuple[FieldValue, int, int]] = {}
    at += 4
    while at < end:
        key, value_at = read_shortstr(data, at, end, "table key")
        value, after = _value(data, value_at, end, 1)
        spans[key] = (value, at, after)
        at = after
    return spans


def timestamp_value(seconds: int) -> datetime | Timestamp:
    """Seconds since 1970 as a datetime, or as a Timestamp beyond the year 9999."""
    return EPOCH + timedelta(seconds=seconds) if seconds <= _LAST_SECOND else Timestamp(seconds)


def encode_timestamp(value: datetime | Timestamp) -> bytes:
    """Encode whole seconds since 1970 in eight bytes; fractions are cut off."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise CodecError(f"timestamp {value.isoformat()} has no time zone")
        seconds = (value - EPOCH) // _SECOND
    else:
        seconds = int(value)
    try:
        return _U64.pack(seconds)
    except struct.error:
        raise CodecError(f"timestamp {value} is not in 0 .. 2**64-1 seconds since 1970") from None


def _pairs(data: bytes, at: int, end: int, depth: int) -> FieldTable:
    if depth > MAX_DEPTH:
        raise CodecError(f"tables and arrays nested deeper than {MAX_DEPTH}")
    table: FieldTable = {}
    while at < end:
        key, at = read_shortstr(data, at, end, "table key")
        table[key], at = _value(data, at, end, depth)
    return table


def _items(data: bytes, at: int, end: int, depth: int) -> list[FieldValue]:
    if depth > MAX_DEPTH:
        raise CodecError(f"tables and arrays nested deeper than {MAX_DEPTH}")
    items: list[FieldValue] = []
    while at < end:
        value, at = _value(data, at, end, depth)
        items.append(value)
    return items


def _value(data: bytes, at: int, end: int, depth: int) -> tuple[FieldValue, int]:
    """Decode the tagged value at ``at``, in a container at nesting ``depth`` that ends at ``end``."""
    start = take(at, end, 1, "type of a table value")
    tag = data[at]
    fixed = _FIXED.get(tag)
    if fixed is not None:
        layout, convert = fixed
        after = take(start, end, layout.size, "table value")
        return convert(*layout.unpack_from(data, start)), after
    match tag:
        case 0x53:  # S: py-amqp sends bytes as this too, so it is text only if it is UTF-8
            raw, after = read_longstr(data, start, end, "string in a table")
            try:
                return raw.decode(), after
            except UnicodeDecodeError:
                return raw, after
        case 0x78:  # x
            return read_longstr(data, start, end, "byte array in a table")
        case 0x46:  # F
            after = skip_longstr(data, start, end, "table in a table")
            return _pairs(data, start + 4, after, depth + 1), after
        case 0x41:  # A
            after = skip_longstr(data, start, end, "array in a table")
            return _items(data, start + 4, after, depth + 1), after
        case _:
            raise CodecError(f"unknown type {bytes((tag,))!r} of a table value at offset {at}")


def _integer(value: int) -> FieldValue:
    return value


def _real(value: float) -> FieldValue:
    return value


def _void() -> FieldValue:
    return None


def _decimal(scale: int, unscaled: int) -> FieldValue:
    # Built from digits: arithmetic would round or raise, depending on the current decimal context.
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -scale))


# RabbitMQ reads a decimal's value as unsigned but never computes with it. pika and py-amqp use signed values,
# so signed is needed to return their negative numbers.
_FIXED: Final[dict[int, tuple[struct.Struct, Callable[..., FieldValue]]]] = {
    ord(tag): (struct.Struct(layout), convert)
    for tag, layout, convert in (
        ("t", ">?", _integer),
        ("b", ">b", _integer),
        ("B", ">B", _integer),
        ("s", ">h", _integer),
        ("u", ">H", _integer),
        ("I", ">i", _integer),
        ("i", ">I", _integer),
        ("l", ">q", _integer),
        ("L", ">q", _integer),
        ("f", ">f", _real),
        ("d", ">d", _real),
        ("D", ">Bi", _decimal),
        ("T", ">Q", timestamp_value),
        ("V", ">", _void),
    )
}


def _write_table(out: bytearray, table: Mapping[str, FieldValue], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise CodecError(f"tables and arrays nested deeper than {MAX_DEPTH}")
    length_at = len(out)
    out += b"\0\0\0\0"
    for key, value in table.items():
        write_shortstr(out, key, "table key")
        _write_value(out, value, depth)
    _U32.pack_into(out, length_at, len(out) - length_at - 4)


def _write_array(out: bytearray, items: list[FieldValue], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise CodecError(f"tables and arrays nested deeper than {MAX_DEPTH}")
    length_at = len(out)
    out += b"\0\0\0\0"
    for item in items:
        _write_value(out, item, depth)
    _U32.pack_into(out, length_at, len(out) - length_at - 4)


def _write_value(out: bytearray, value: FieldValue, depth: int) -> None:
    match value:
        case bool():  # before int, because bool is a subclass
            out += b"t\x01" if value else b"t\x00"
        case Timestamp() | datetime():
            out += b"T"
            out += encode_timestamp(value)
        case Long():
            out += _I64_TAGGED.pack(b"l", value)
        case int():
            _write_integer(out, value)
        case str():
            out += b"S"
            write_longstr(out, encode_text(value))
        case bytes():
            out += b"x"
            write_longstr(out, value)
        case None:
            out += b"V"
        case float():
            out += _F64_TAGGED.pack(b"d", value)
        case dict():
            out += b"F"
            _write_table(out, value, depth + 1)
        case list():
            out += b"A"
            _write_array(out, value, depth + 1)
        case Decimal():
            _write_decimal(out, value)
        case _:
            raise CodecError(f"a table cannot carry a {type(value).__name__}")


def _write_integer(out: bytearray, value: int) -> None:
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        out += _I32_TAGGED.pack(b"I", value)
        return
    try:
        out += _I64_TAGGED.pack(b"l", value)
    except struct.error:
        raise CodecError(f"integer of {value.bit_length()} bits in a table; the most is 64, signed") from None


def _write_decimal(out: bytearray, value: Decimal) -> None:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise CodecError(f"decimal {value} in a table is not a finite number")
    # Check the bound first: Decimal("1E999999") must not become an integer of a million digits.
    if not -255 <= exponent <= 10 or len(digits) > 10:
        raise CodecError(f"decimal {value} in a table needs more than 32 bits and 255 places")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    try:
        out += b"D"
        out += _DECIMAL.pack(max(-exponent, 0), -unscaled if sign else unscaled)
    except struct.error:
        raise CodecError(f"decimal {value} in a table needs more than 32 bits and 255 places") from None
