"""Field tables: RabbitMQ's types, broken input, limits."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.wire.primitives import CodecError
from holtmq.wire.tables import (
    MAX_DEPTH,
    FieldTable,
    FieldValue,
    Timestamp,
    decode_pairs,
    decode_table,
    encode_table,
    entry_spans,
)

SHORT_TEXT = st.text(max_size=20)
DECIMALS = st.builds(
    lambda unscaled, scale: Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255),
)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
SCALARS: st.SearchStrategy[FieldValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    DECIMALS,
    TIMES,
    st.integers(253402300800, 2**64 - 1).map(Timestamp),
)
VALUES: st.SearchStrategy[FieldValue] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SHORT_TEXT, inner, max_size=4),
    max_leaves=20,
)
TABLES: st.SearchStrategy[FieldTable] = st.dictionaries(SHORT_TEXT, VALUES, max_size=6)


def table_of(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack(">I", len(body)) + body


def one(value: bytes) -> FieldValue:
    table, _ = decode_table(table_of(b"\x01k" + value))
    return table["k"]


# One of each type RabbitMQ's parser knows: tag and bytes, what we read, and what we write for it.
TYPES: list[tuple[bytes, FieldValue, bytes]] = [
    (b"t\x00", False, b"t\x00"),
    (b"t\x01", True, b"t\x01"),
    (b"t\x07", True, b"t\x01"),
    (b"b\xff", -1, b"I\xff\xff\xff\xff"),
    (b"B\xff", 255, b"I\x00\x00\x00\xff"),
    (b"s\xff\xfe", -2, b"I\xff\xff\xff\xfe"),
    (b"u\xff\xfe", 65534, b"I\x00\x00\xff\xfe"),
    (b"I\x80\x00\x00\x00", -(2**31), b"I\x80\x00\x00\x00"),
    (b"i\x80\x00\x00\x00", 2**31, b"l\x00\x00\x00\x00\x80\x00\x00\x00"),
    (b"l\x80" + bytes(7), -(2**63), b"l\x80" + bytes(7)),
    (b"L\xff" + b"\xff" * 7, -1, b"I\xff\xff\xff\xff"),
    (b"f" + struct.pack(">f", 0.5), 0.5, b"d" + struct.pack(">d", 0.5)),
    (b"d" + struct.pack(">d", 0.1), 0.1, b"d" + struct.pack(">d", 0.1)),
    (b"D\x02\x00\x00\x00\x7b", Decimal("1.23"), b"D\x02\x00\x00\x00\x7b"),
    (b"D\x01\xff\xff\xff\xf1", Decimal("-1.5"), b"D\x01\xff\xff\xff\xf1"),
    (b"S\x00\x00\x00\x02\xc3\xa9", "é", b"S\x00\x00\x00\x02\xc3\xa9"),
    (b"S\x00\x00\x00\x02\xff\x00", b"\xff\x00", b"x\x00\x00\x00\x02\xff\x00"),
    (b"x\x00\x00\x00\x02ab", b"ab", b"x\x00\x00\x00\x02ab"),
    (b"T" + struct.pack(">Q", 86400), datetime(1970, 1, 2, tzinfo=UTC), b"T" + struct.pack(">Q", 86400)),
    (b"T" + b"\xff" * 8, Timestamp(2**64 - 1), b"T" + b"\xff" * 8),
    (b"V", None, b"V"),
    (b"A\x00\x00\x00\x03t\x01V", [True, None], b"A\x00\x00\x00\x03t\x01V"),
    (b"F\x00\x00\x00\x03\x01aV", {"a": None}, b"F\x00\x00\x00\x03\x01aV"),
]
TYPE_IDS = [f"{case[0][:1].decode()}-{number}" for number, case in enumerate(TYPES)]


@pytest.mark.parametrize(("wire", "value", "rewritten"), TYPES, ids=TYPE_IDS)
def test_each_type_of_rabbitmq_is_read_and_written(wire: bytes, value: FieldValue, rewritten: bytes) -> None:
    read = one(wire)

    assert read == value
    assert type(read) is type(value)
    assert encode_table({"k": read}) == table_of(b"\x01k" + rewritten)


@pytest.mark.parametrize(("wire", "value", "rewritten"), TYPES, ids=TYPE_IDS)
def test_a_table_cut_anywhere_is_refused(wire: bytes, value: FieldValue, rewritten: bytes) -> None:
    whole = table_of(b"\x01k" + wire)
    for cut in range(len(whole)):
        with pytest.raises(CodecError):
            decode_table(whole[:cut])
        if cut > 4:  # the outer length agrees with the cut: the damage is inside
            with pytest.raises(CodecError):
                decode_pairs(whole[4:cut])


@pytest.mark.parametrize(("wire", "value", "rewritten"), TYPES, ids=TYPE_IDS)
def test_bytes_after_a_table_are_left_for_the_next_field(
    wire: bytes, value: FieldValue, rewritten: bytes
) -> None:
    whole = table_of(b"\x01k" + wire)

    assert decode_table(b"ab" + whole + b"\x01zV", 2) == ({"k": value}, 2 + len(whole))


@given(TABLES)
def test_any_table_comes_back_as_it_was(table: FieldTable) -> None:
    wire = encode_table(table)
    again, after = decode_table(wire)

    assert after == len(wire)
    assert again == table
    assert encode_table(again) == wire  # == takes True for 1; the bytes do not


@given(st.binary(max_size=200))
def test_random_bytes_are_a_table_or_a_codec_error(data: bytes) -> None:
    for decode in (decode_pairs, lambda raw: decode_table(table_of(raw))[0], decode_table, entry_spans):
        refused_or_fine(decode, data)


@given(TABLES, st.data())
def test_a_table_with_one_wrong_byte_is_a_table_or_a_codec_error(
    table: FieldTable, data: st.DataObject
) -> None:
    wire = bytearray(encode_table(table))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))

    refused_or_fine(decode_table, bytes(wire))


@given(st.binary(max_size=120))
def test_whatever_can_be_read_can_be_written(data: bytes) -> None:
    try:
        table = decode_pairs(data)
    except CodecError:
        return
    wire = encode_table(table)

    assert encode_table(decode_table(wire)[0]) == wire


def refused_or_fine(decode: Callable[[bytes], object], data: bytes) -> None:
    with suppress(CodecError):
        decode(data)


def test_not_a_number_survives() -> None:
    value = one(encode_table({"k": math.nan})[6:])

    assert isinstance(value, float)
    assert math.isnan(value)


def test_of_a_repeated_key_the_last_wins() -> None:
    first, last = b"\x01aI\x00\x00\x00\x01", b"\x01aB\x02"

    assert decode_pairs(first + last) == {"a": 2}
    assert entry_spans(table_of(first, last)) == {"a": (2, 11, 15)}


def test_a_key_that_is_no_utf8_survives() -> None:
    wire = table_of(b"\x02\xff\xfeV")

    assert encode_table(decode_table(wire)[0]) == wire


def test_a_name_that_is_no_utf8_can_be_a_value() -> None:
    # Dead-lettering writes queue names and routing keys, decoded as names are, into x-death.
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")

    assert encode_table({"k": name}) == table_of(b"\x01kS\x00\x00\x00\x02\xff\xfe")


def nested(depth: int, kind: bytes) -> bytes:
    """A table whose containers go ``depth`` deep, itself included."""
    inner = b""
    for _ in range(depth - 1):
        entry = kind + struct.pack(">I", len(inner)) + inner
        inner = b"\x00" + entry if kind == b"F" else entry
    return table_of(inner if kind == b"F" else b"\x00" + inner)


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_nesting_up_to_the_limit_is_read_and_written(kind: bytes) -> None:
    wire = nested(MAX_DEPTH, kind)

    assert encode_table(decode_table(wire)[0]) == wire


@pytest.mark.parametrize("kind", [b"F", b"A"])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5000])
def test_a_nesting_bomb_is_refused(kind: bytes, depth: int) -> None:
    with pytest.raises(CodecError, match="nested deeper than 64"):
        decode_table(nested(depth, kind))
    with pytest.raises(CodecError, match="nested deeper than 64"):
        entry_spans(nested(depth, kind))


def test_a_table_that_contains_itself_is_refused() -> None:
    table: FieldTable = {}
    table["self"] = [table]

    with pytest.raises(CodecError, match="nested deeper than 64"):
        encode_table(table)


@pytest.mark.parametrize("kind", [b"S", b"x", b"F", b"A"])
@pytest.mark.parametrize("size", [1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_declared_length_beyond_the_container_is_refused(kind: bytes, size: int) -> None:
    with pytest.raises(CodecError, match=f"needs {size} bytes"):
        decode_pairs(b"\x01k" + kind + struct.pack(">I", size))


def test_an_inner_length_cannot_reach_past_its_own_table() -> None:
    inner = b"F\x00\x00\x00\x07\x01kS\x00\x00\x00\x04"  # the string would lie in what follows

    with pytest.raises(CodecError, match="string in a table needs 4 bytes"):
        decode_pairs(b"\x01t" + inner + b"\x01zS\x00\x00\x00\x00")


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(CodecError, match=r"unknown type b'\?'"):
        decode_pairs(b"\x01k?")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (2**63, "integer of 64 bits"),
        (-(2**63) - 1, "integer of 64 bits"),
        (Decimal("NaN"), "not a finite number"),
        (Decimal("1E+999999"), "32 bits"),
        (Decimal("1E-256"), "32 bits"),
        (Decimal(2**31), "32 bits"),
        (datetime(2020, 1, 1), "no time zone"),
        (datetime(1969, 12, 31, tzinfo=UTC), "not in 0"),
        (Timestamp(2**64), "not in 0"),
        ("\ud800", "cannot be encoded"),
        ({"k" * 256: 1}, "256 bytes"),
    ],
)
def test_a_value_the_wire_cannot_carry_is_refused(value: FieldValue, reason: str) -> None:
    with pytest.raises(CodecError, match=reason):
        encode_table({"k": value})


def test_an_object_of_another_type_is_refused() -> None:
    table: dict[str, object] = {"k": object()}

    with pytest.raises(CodecError, match="cannot carry a object"):
        encode_table(table)  # type: ignore[arg-type]


def test_a_time_in_another_zone_is_written_as_its_second_in_utc() -> None:
    local = datetime(1970, 1, 1, 2, 0, 0, 999999, tzinfo=timezone(timedelta(hours=2)))

    assert encode_table({"k": local}) == table_of(b"\x01kT" + bytes(8))
