"""JSON payloads as typed columns, against a plain loop over json.loads."""

import json

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
    [b"", b"{", b"{}{}", b"null", b"7", b'{"id": 1.5}', b'{"name": 3}', b"\xff{}", b'{"id":}']
)


@given(st.lists(st.tuples(st.booleans(), good, bad), max_size=20))
def test_a_row_never_depends_on_its_neighbours(mix: list[tuple[bool, bytes, bytes]]) -> None:
    payloads: list[bytes | None] = [fit if is_good else unfit for is_good, fit, unfit in mix]

    rows, corrupt = rows_of(payloads)

    for (is_good, fit, unfit), row, text in zip(mix, rows, corrupt, strict=True):
        wanted = json.loads(fit) if is_good else {}
        assert row == (wanted.get("id"), wanted.get("name"))
        assert text == (None if is_good else unfit.decode("utf-8", "replace"))


def test_a_type_json_does_not_have_is_refused_with_a_way_out() -> None:
    with pytest.raises(InvalidOption, match="Declare the field as STRING"):
        check_schema(pa.schema([("when", pa.duration("us"))]))


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
