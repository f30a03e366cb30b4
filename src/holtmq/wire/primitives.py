"""The smallest parts of AMQP's wire format: short strings, long strings, bounded reads.

Owns: ``CodecError``, and the rule that any bytes a client uses as a name survive a round trip.
Must not touch: tables, properties, methods; they are built on this.
"""

from __future__ import annotations

import struct
from typing import Final

SHORTSTR_MAX: Final = 255
_U32: Final = struct.Struct(">I")


class CodecError(Exception):
    """Malformed bytes, or a value the wire format cannot carry."""


def take(at: int, end: int, size: int, what: str) -> int:
    """The offset after ``size`` bytes from ``at``; raises CodecError if that is beyond ``end``."""
    after = at + size
    if after > end:
        raise CodecError(f"{what} needs {size} bytes at offset {at}, only {max(end - at, 0)} are left")
    return after


def decode_text(raw: bytes) -> str:
    """A name as text. Bytes that are not UTF-8 become surrogate escapes, which ``encode_text`` reverses."""
    return raw.decode("utf-8", "surrogateescape")


def encode_text(text: str) -> bytes:
    """The bytes of ``text``; surrogate escapes become the original bytes again."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise CodecError(f"text {text!r} cannot be encoded: {error.reason}") from None


def skip_shortstr(data: bytes, at: int, end: int, what: str = "short string") -> int:
    """The offset after the short string at ``at``."""
    if at >= end:
        raise CodecError(f"{what} at offset {at} has no length: its container ends there")
    return take(at + 1, end, data[at], what)


def read_shortstr(data: bytes, at: int, end: int, what: str = "short string") -> tuple[str, int]:
    """The short string at ``at`` and the offset after it."""
    after = skip_shortstr(data, at, end, what)
    return decode_text(data[at + 1 : after]), after


def write_shortstr(out: bytearray, text: str, what: str = "short string") -> None:
    raw = encode_text(text)
    if len(raw) > SHORTSTR_MAX:
        raise CodecError(f"{what} is {len(raw)} bytes long, the most is {SHORTSTR_MAX}")
    out.append(len(raw))
    out += raw


def skip_longstr(data: bytes, at: int, end: int, what: str = "long string") -> int:
    """The offset after anything with a four-byte length: long string, byte array, table, array."""
    if at + 4 > end:
        raise CodecError(f"{what} at offset {at} has no length: its container ends at {end}")
    size: int = _U32.unpack_from(data, at)[0]
    return take(at + 4, end, size, what)


def read_longstr(data: bytes, at: int, end: int, what: str = "long string") -> tuple[bytes, int]:
    """The long string at ``at`` and the offset after it."""
    after = skip_longstr(data, at, end, what)
    return data[at + 4 : after], after


def write_longstr(out: bytearray, raw: bytes) -> None:
    out += _U32.pack(len(raw))
    out += raw
