"""JSON payloads as typed columns, against a plain loop over json.loads."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.spark.ddl import split_ddl
from holtmq.spark.errors import InvalidOption
from holtmq.spark.options import source_options
from holtmq.spark.payloads import check_schema, typed_columns
from holtmq.spark.schema import source_ddl

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows_of(payloads: list[bytes | None]) -> tuple[list[tuple[object, object]], list[str | None]]:
    table, corrupt = typed_columns(payloads, SCHEMA)
    return [(row["id"], row["name"]) for row in table.to_pylist()], corrupt.to_pylist()


def test_rows_that_fit_are_typed_and_the_others_are_kept_as_text() -> None:
    rows, corrupt = rows_of(
        [b'{"id": 1, "name": "a"}', b"not json", b'{"id": "x"}', b'{"id": 2, "more": [1]}', b"[1]", b"", None]
    )

    assert rows == [(1, "a"), (None, None), (None, None), (2, None), (None, None), (None, None), (None, None)]
    assert corrupt == [None, "not json", '{"id": "x"}', None, "[1]", "", None]


def test_two_objects_in_one_payload_do_not_shift_the_rows_after_them() -> None:
    rows, corrupt = rows_of([b'{"id": 1}{"id": 2}', b'{"id": 3}', b"{}"])

    assert rows == [(None, None), (3, None), (None, None)]
    assert corrupt == ['{"id": 1}{"id": 2}', None, None]


def test_line_ends_in_pretty_json_are_white_space() -> None:
    assert rows_of([b' {\r\n "id": 1,\n "name": "a\\nb"\n}\n'])[0] == [(1, "a\nb")]


def test_nested_fields_arrive_nested() -> None:
    schema = pa.schema([("lines", pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int32())])))])

    table, corrupt = typed_columns([b'{"lines": [{"sku": "x", "n": 2}, {"sku": "y"}]}'], schema)

    assert table.to_pylist() == [{"lines": [{"sku": "x", "n": 2}, {"sku": "y", "n": None}]}]
    assert corrupt.to_pylist() == [None]


good = st.fixed_dictionaries(
    {}, optional={"id": st.integers(-(2**40), 2**40), "name": st.text(max_size=5), "other": st.booleans()}
).map(lambda row: json.dumps(row).encode())
bad = st.sampled_from(
    [b"", b"{", b"{}{}", b"null", b"7", b'{"id": 1.5}', b'{"id": "3"}', b"\xff{}", b'{"id":}']
)


@given(st.lists(st.tuples(st.booleans(), good, bad), max_size=20))
def test_a_row_never_depends_on_its_neighbours(mix: list[tuple[bool, bytes, bytes]]) -> None:
    payloads: list[bytes | None] = [fit if is_good else unfit for is_good, fit, unfit in mix]

    rows, corrupt = rows_of(payloads)

    for (is_good, fit, unfit), row, text in zip(mix, rows, corrupt, strict=True):
        wanted = json.loads(fit) if is_good else {}
        assert row == (wanted.get("id"), wanted.get("name"))
        assert text == (None if is_good else unfit.decode("utf-8", "replace"))


WIDE = pa.schema(
    [
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(6, 2)),
        ("text", pa.string()),
        ("ratio", pa.float64()),
        ("small", pa.int8()),
        ("on", pa.bool_()),
        ("days", pa.list_(pa.struct([("day", pa.date32())]))),
    ]
)
VALUES = [
    ("day", b'"2026-05-01"', date(2026, 5, 1)),
    ("day", b'"2026-05-01T23:30:00-08:00"', date(2026, 5, 1)),
    ("at", b'"2026-05-01T12:00:00+05:45"', datetime(2026, 5, 1, 6, 15, tzinfo=UTC)),
    ("at", b'"2026-05-01 12:00:00"', datetime(2026, 5, 1, 12, tzinfo=UTC)),
    ("at", b'"2026-05-01"', datetime(2026, 5, 1, tzinfo=UTC)),
    ("at", b'"2026-05-01T12:00Z"', datetime(2026, 5, 1, 12, tzinfo=UTC)),
    ("at", b'"2026-05-01T12:00:00.123456789Z"', datetime(2026, 5, 1, 12, 0, 0, 123456, UTC)),
    ("local", b'"2026-05-01T12:00:00.5"', datetime(2026, 5, 1, 12, 0, 0, 500000)),
    ("local", b'"2026-05-01T12:00:00+02:00"', datetime(2026, 5, 1, 10)),
    ("price", b"12.5", Decimal("12.50")),
    ("price", b'"-1.25"', Decimal("-1.25")),
    ("price", b"1e3", Decimal("1000.00")),
    ("text", b'"caf\\u00e9"', "café"),
    ("text", b"1.50", "1.50"),
    ("text", b"true", "true"),
    ("text", b'{"a": [1, null]}', '{"a": [1, null]}'),
    ("text", b"null", None),
    ("ratio", b"0.1", 0.1),
    ("ratio", b"3", 3.0),
    ("small", b"-128", -128),
    ("on", b"false", False),
    ("days", b'[{"day": "2026-05-01"}, {}, null]', [{"day": date(2026, 5, 1)}, {"day": None}, None]),
]
UNFIT = [
    ("day", b'"yesterday"'),
    ("day", b'"20260501"'),
    ("at", b"1777636800000"),
    ("at", b'"2026-W18-5"'),
    ("price", b"12.345"),
    ("price", b"12345"),
    ("price", b'"NaN"'),
    ("small", b"128"),
    ("small", b"1.0"),
    ("on", b"1"),
    ("days", b'[{"day": 1}]'),
]


@pytest.mark.parametrize("beside_a_bad_row", [False, True])
def test_values_become_what_spark_makes_of_them_whatever_is_beside_them(beside_a_bad_row: bool) -> None:
    payloads = [b'{"%s": %s}' % (name.encode(), value) for name, value, _ in VALUES]
    bad = [b'{"%s": %s}' % (name.encode(), value) for name, value in UNFIT]
    read = [[payload, *bad] if beside_a_bad_row else [payload] for payload in payloads]

    for (name, text, wanted), batch in zip(VALUES, read, strict=True):
        table, corrupt = typed_columns(batch, WIDE)
        assert table.to_pylist()[0] == {**dict.fromkeys(WIDE.names), name: wanted}, text
        assert corrupt.to_pylist() == [None, *(one.decode() for one in batch[1:])]


def test_a_map_takes_whatever_names_an_object_has() -> None:
    schema = pa.schema([("tags", pa.map_(pa.string(), pa.int32())), ("at", pa.time64("us"))])
    check_schema(schema)

    table, corrupt = typed_columns(
        [b'{"tags": {"a b": 1, "": null}, "at": "23:59:01"}', b'{"tags": [1]}'], schema
    )

    assert table.to_pylist()[0] == {"tags": [("a b", 1), ("", None)], "at": time(23, 59, 1)}
    assert corrupt.to_pylist() == [None, '{"tags": [1]}']


def test_a_type_json_does_not_have_is_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidOption, match=r"field when is duration.*Declare it as STRING"):
        check_schema(pa.schema([("when", pa.duration("us"))]))


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("id BIGINTT", "field id: 'BIGINTT' is not a type; did you mean BIGINT"),
        (
            "a ARRAY<STRUCT<b: INT, c: MAP<STRING, STRNG>>>",
            "field a.c: 'STRNG' is not a type; did you mean STRING",
        ),
        ("a ARRAY", "field a: say what is in it, such as ARRAY<INT>"),
    ],
)
def test_a_word_that_is_no_type_is_refused_by_the_name_of_its_field(ddl: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        split_ddl(ddl)


def test_a_payload_schema_is_split_at_its_own_commas_only() -> None:
    ddl = (
        "id BIGINT, `odd, name` STRING, at TIMESTAMP, "
        "l ARRAY<STRUCT<a: INT, b: MAP<STRING, INT>>>, d DECIMAL(10, 2)"
    )

    assert split_ddl(ddl) == {
        "id": "BIGINT",
        "odd, name": "STRING",
        "at": "TIMESTAMP",
        "l": "ARRAY<STRUCT<a: INT, b: MAP<STRING, INT>>>",
        "d": "DECIMAL(10, 2)",
    }


@pytest.mark.parametrize("ddl", ["id", "id INT,", "a INT, a INT", ""])
def test_a_payload_schema_that_is_none_is_refused(ddl: str) -> None:
    with pytest.raises(InvalidOption, match="payloadSchema"):
        split_ddl(ddl)


def test_columns_choose_and_order() -> None:
    options = source_options(
        {"queue": "a", "payloadSchema": "id BIGINT", "columns": "_corrupt,id,offset"}, streaming=False
    )

    assert source_ddl(options) == "`_corrupt` STRING, `id` BIGINT, `offset` BIGINT"


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InvalidOption, match="no column 'ofset'; there are queue, partition, offset"):
        source_ddl(source_options({"queue": "a", "columns": "ofset"}, streaming=False))


def test_a_payload_field_named_like_a_column_is_refused() -> None:
    with pytest.raises(InvalidOption, match="offset is also a column"):
        source_ddl(source_options({"queue": "a", "payloadSchema": "offset INT"}, streaming=False))
