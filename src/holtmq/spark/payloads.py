"""JSON payloads as typed columns, whole batches at a time; rows that do not fit are set aside.

Owns: which payloads fit a schema, and the column of those that do not. Must not touch: the broker, Spark.

Arrow's JSON reader parses a whole batch but refuses all of it for one bad row. Then the batch is halved down
to a few rows, which are read one by one (``payload_values``): a row never depends on its neighbours.
"""

import io
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.json as pajson

from holtmq.spark.errors import InvalidOption
from holtmq.spark.payload_values import UNFIT, is_supported, row_of

_SPACE: Final = b" \t\r\n"
_FEW: Final = 64  # rows to read one by one if Arrow refuses them: halving down to 1 took 6 times as long


def check_schema(schema: pa.Schema) -> None:
    """Refuse types that JSON cannot give, before the first batch."""
    for field in schema:
        if not is_supported(field.type):
            raise InvalidOption(
                f"option payloadSchema: field {field.name} is {field.type}, which is not read from JSON. "
                "Declare it as STRING, which takes any value as its JSON text, and convert it in the query"
            )


def typed_columns(payloads: Sequence[bytes | None], schema: pa.Schema) -> tuple[pa.Table, pa.Array]:
    """A row for each payload, all null where it does not fit, and a column with those payloads as text."""
    fits = [_looks_like_object(payload) for payload in payloads]
    good = [
        _one_line(payload) for payload, fit in zip(payloads, fits, strict=True) if fit and payload is not None
    ]
    parts: list[pa.Table | None] = []
    _read_parts(good, schema, parts)
    bad_rows = {at for at, part in enumerate(_rows_of(parts)) if part is None}
    tables = [part for part in parts if part is not None]
    table = pa.concat_tables(tables) if tables else schema.empty_table()
    places: list[int | None] = []
    corrupt: list[str | None] = []
    seen = taken = 0
    for payload, fit in zip(payloads, fits, strict=True):
        bad = not fit
        if fit:
            bad = seen in bad_rows
            seen += 1
        places.append(None if bad else taken)
        taken += not bad
        corrupt.append(_text(payload) if bad else None)
    if taken == len(payloads):
        return table, pa.nulls(taken, pa.string())
    return table.take(pa.array(places, pa.int64())), pa.array(corrupt, pa.string())


def _rows_of(parts: Sequence[pa.Table | None]) -> Sequence[bool | None]:
    """One entry per row: None for a row that was isolated because it does not fit."""
    rows: list[bool | None] = []
    for part in parts:
        rows += [None] if part is None else [True] * part.num_rows
    return rows


def _read_parts(lines: Sequence[bytes], schema: pa.Schema, parts: list[pa.Table | None]) -> None:
    if not lines:
        return
    try:
        table = _read(lines, schema)
        if table.num_rows == len(lines):
            parts.append(table)
            return
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    if len(lines) <= _FEW:
        parts += [_read_one(line, schema) for line in lines]
        return
    middle = len(lines) // 2
    _read_parts(lines[:middle], schema, parts)
    _read_parts(lines[middle:], schema, parts)


def _read_one(line: bytes, schema: pa.Schema) -> pa.Table | None:
    """The payload as a row; None if it does not fit."""
    try:
        return pa.Table.from_pylist([row_of(line, schema)], schema)
    except UNFIT:
        pass
    try:
        table = _read([line], schema)  # it takes a few values that are not JSON, such as NaN
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return table if table.num_rows == 1 else None


def _read(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    data = b"\n".join(lines)
    # One block: a row that crosses two blocks would be cut.
    options = pajson.ReadOptions(use_threads=False, block_size=len(data) + 1)
    read = pa.schema([field.with_type(_as_read(field.type)) for field in schema])
    parse = pajson.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")
    table = pajson.read_json(io.BytesIO(data), read_options=options, parse_options=parse)
    table = table.select(schema.names).cast(schema)
    if any("decimal" in str(kind) for kind in schema.types):
        table.validate(full=True)  # the reader gives 12345 as a DECIMAL(6, 2), with a digit too many
    return table


def _as_read(kind: pa.DataType) -> pa.DataType:
    """The type to have Arrow read: it takes no JSON value for a date, but casts text to one."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_read(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_read(kind.value_type)))
    return pa.string() if pa.types.is_date32(kind) else kind


def _looks_like_object(payload: bytes | None) -> bool:
    """Starts and ends like an object: then it contains at least one, and counting rows finds a second."""
    if not payload:
        return False
    if payload[0] != 0x7B or payload[-1] != 0x7D:
        payload = payload.strip(_SPACE)
        return payload[:1] == b"{" and payload[-1:] == b"}"
    return True


def _one_line(payload: bytes) -> bytes:
    # Inside a JSON string a line end is always escaped, so a bare one is white space.
    if b"\n" in payload or b"\r" in payload:
        return payload.replace(b"\n", b" ").replace(b"\r", b" ")
    return payload


def _text(payload: bytes | None) -> str | None:
    return None if payload is None else payload.decode("utf-8", "replace")
