"""Encodes and decodes methods, from the layouts in ``methods.py``.

Owns: reading and writing the payload of a method frame. Used for the handshake, topology and other rare
methods; the per-message methods have hand-written code where they are parsed.
Must not touch: frames, sockets, what a method does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

from holtmq.amqp.methods import METHODS, Method
from holtmq.wire.primitives import (
    CodecError,
    read_longstr,
    read_shortstr,
    skip_longstr,
    skip_shortstr,
    take,
    write_longstr,
    write_shortstr,
)
from holtmq.wire.tables import decode_table, encode_table

_ID: Final = struct.Struct(">HH")

# A reader appends the values at an offset and returns the offset after them; a writer takes the same number
# of values and appends their bytes. There may be several values because up to eight bits share one octet.
_Reader: TypeAlias = Callable[[bytes, int, list[object]], int]
_Writer: TypeAlias = Callable[[Iterator[object], bytearray], None]


class UnknownMethod(CodecError):
    """A class or method number that AMQP 0-9-1 and RabbitMQ do not have."""

    def __init__(self, class_id: int, method_id: int) -> None:
        super().__init__(f"unknown method {method_id} of class {class_id}")
        self.class_id = class_id
        self.method_id = method_id


def decode_method(payload: bytes) -> Method:
    """Decode the payload of a method frame."""
    if len(payload) < _ID.size:
        raise CodecError(f"method frame of {len(payload)} bytes; class and method number take {_ID.size}")
    plan = _BY_ID.get(payload[:4])
    if plan is None:
        raise UnknownMethod(*_ID.unpack_from(payload))
    at = _ID.size
    values: list[object] = []
    try:
        for read in plan.readers:
            at = read(payload, at, values)
    except CodecError as error:
        raise CodecError(f"{plan.name}: {error}") from None
    if at != len(payload):
        raise CodecError(f"{plan.name}: {len(payload) - at} bytes after the last field")
    return plan.build(*values)


def encode_method(method: Method) -> bytes:
    """Encode the payload of a method frame."""
    plan = _BY_TYPE[type(method)]
    out = bytearray(plan.id)
    values = iter([getattr(method, name) for name in plan.fields])
    try:
        for write in plan.writers:
            write(values, out)
    except CodecError as error:
        raise CodecError(f"{plan.name}: {error}") from None
    return bytes(out)


@dataclass(frozen=True, slots=True)
class _Plan:
    id: bytes
    name: str
    build: Callable[..., Method]
    fields: tuple[str, ...]
    readers: tuple[_Reader, ...]
    writers: tuple[_Writer, ...]


def _plan(kind: type[Method]) -> _Plan:
    names = kind.__match_args__
    remaining = iter(names)
    readers: list[_Reader] = []
    writers: list[_Writer] = []
    for is_bits, run in groupby(kind.layout, key=lambda letter: letter in "bB"):
        letters = "".join(run)
        if is_bits:
            # No method has more than eight bits in a row, so one octet always holds the run.
            bits = [next(remaining) if letter == "b" else None for letter in letters]
            readers.append(_bits_reader(bits))
            writers.append(_bits_writer(bits))
            continue
        for letter in letters:
            if letter in _RESERVED:
                read, write = _RESERVED[letter]
            else:
                read, write = _FIELD[letter](next(remaining))
            readers.append(read)
            writers.append(write)
    return _Plan(
        _ID.pack(kind.class_id, kind.method_id), kind.name, kind, names, tuple(readers), tuple(writers)
    )


def _bits_reader(names: list[str | None]) -> _Reader:
    masks = [1 << position for position, name in enumerate(names) if name is not None]

    def read(data: bytes, at: int, values: list[object]) -> int:
        after = take(at, len(data), 1, "bits")
        octet = data[at]
        values.extend([bool(octet & mask) for mask in masks])
        return after

    return read


def _bits_writer(names: list[str | None]) -> _Writer:
    masks = [1 << position for position, name in enumerate(names) if name is not None]

    def write(values: Iterator[object], out: bytearray) -> None:
        out.append(sum(mask for mask in masks if next(values)))

    return write


def _number(layout: str) -> Callable[[str], tuple[_Reader, _Writer]]:
    packed = struct.Struct(layout)
    most = (1 << 8 * packed.size) - 1

    def for_field(name: str) -> tuple[_Reader, _Writer]:
        def read(data: bytes, at: int, values: list[object]) -> int:
            after = take(at, len(data), packed.size, name)
            values.extend(packed.unpack_from(data, at))
            return after

        def write(values: Iterator[object], out: bytearray) -> None:
            value = next(values)
            if not isinstance(value, int) or not 0 <= value <= most:
                raise CodecError(f"{name} cannot be {value!r}; it is an integer from 0 to {most}")
            out += packed.pack(value)

        return read, write

    return for_field


def _shortstr(name: str) -> tuple[_Reader, _Writer]:
    def read(data: bytes, at: int, values: list[object]) -> int:
        text, after = read_shortstr(data, at, len(data), name)
        values.append(text)
        return after

    def write(values: Iterator[object], out: bytearray) -> None:
        value = next(values)
        if not isinstance(value, str):
            raise CodecError(f"{name} cannot be {value!r}; it is a str")
        write_shortstr(out, value, name)

    return read, write


def _longstr(name: str) -> tuple[_Reader, _Writer]:
    def read(data: bytes, at: int, values: list[object]) -> int:
        raw, after = read_longstr(data, at, len(data), name)
        values.append(raw)
        return after

    def write(values: Iterator[object], out: bytearray) -> None:
        value = next(values)
        if not isinstance(value, bytes):  # the error does not quote the value: it may be a password
            raise CodecError(f"{name} cannot be a {type(value).__name__}; it is bytes")
        write_longstr(out, value)

    return read, write


def _table(name: str) -> tuple[_Reader, _Writer]:
    def read(data: bytes, at: int, values: list[object]) -> int:
        try:
            table, after = decode_table(data, at)
        except CodecError as error:
            raise CodecError(f"{name}: {error}") from None
        values.append(table)
        return after

    def write(values: Iterator[object], out: bytearray) -> None:
        value = next(values)
        if not isinstance(value, dict):
            raise CodecError(f"{name} cannot be a {type(value).__name__}; it is a dict")
        try:
            out += encode_table(value)
        except CodecError as error:
            raise CodecError(f"{name}: {error}") from None

    return read, write


def _reserved(skip: Callable[[bytes, int], int], empty: bytes) -> tuple[_Reader, _Writer]:
    def read(data: bytes, at: int, values: list[object]) -> int:
        return skip(data, at)

    def write(values: Iterator[object], out: bytearray) -> None:
        out += empty

    return read, write


_FIELD: Final[dict[str, Callable[[str], tuple[_Reader, _Writer]]]] = {
    "o": _number(">B"),
    "h": _number(">H"),
    "l": _number(">I"),
    "q": _number(">Q"),
    "s": _shortstr,
    "S": _longstr,
    "F": _table,
}
# The u16 was an access ticket before 0-9-1; its value is ignored.
_RESERVED: Final[dict[str, tuple[_Reader, _Writer]]] = {
    "H": _reserved(lambda data, at: take(at, len(data), 2, "reserved number"), b"\0\0"),
    "e": _reserved(lambda data, at: skip_shortstr(data, at, len(data), "reserved string"), b"\0"),
    "E": _reserved(lambda data, at: skip_longstr(data, at, len(data), "reserved string"), b"\0\0\0\0"),
}

_BY_TYPE: Final = {kind: _plan(kind) for kind in METHODS}
_BY_ID: Final = {plan.id: plan for plan in _BY_TYPE.values()}
