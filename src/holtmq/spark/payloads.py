"""JSON payloads as typed columns, whole batches at a time; rows that do not fit are set aside.

Owns: which payloads fit a schema, and the column of those that do not. Must not touch: the broker, Spark.

Arrow's JSON reader parses a whole batch but refuses all of it for one bad row. Then the batch is halved until
each bad row is alone, so a row's values never depend on its neighbours.
"""

import io
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.json as pajson

from holtmq.spark.errors import InvalidOption

_SPACE: Final = b" \t\r\n"


def check_schema(schema: pa.Schema) -> None:
    """Refuse types the JSON reader does not support, before the first batch."""
    try:
        _read([b"{}"], schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidOption(
            f"option payloadSchema: {error}. Declare the field as STRING and cast it in the query"
        ) from None


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
    if len(lines) == 1:
        parts.append(None)
        return
    middle = len(lines) // 2
    _read_parts(lines[:middle], schema, parts)
    _read_parts(lines[middle:], schema, parts)


def _read(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    data = b"\n".join(lines)
    # One block: a row that crosses two blocks would be cut.
    options = pajson.ReadOptions(use_threads=False, block_size=len(data) + 1)
    parse = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    table = pajson.read_json(io.BytesIO(data), read_options=options, parse_options=parse)
    return table.select(schema.names).cast(schema)


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
