"""Payloads that are decoded one by one, collected as columns.

Owns: setting aside payloads that do not fit. Must not touch: any one format.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa


def rows_as_columns(
    payloads: Sequence[bytes | None],
    schema: pa.Schema,
    decode: Callable[[bytes], Mapping[str, object]],
    unfit: tuple[type[Exception], ...],
) -> tuple[pa.Table, pa.Array]:
    """A row for each payload, all null where ``decode`` raises, and a column with those payloads as is."""
    rows: list[Mapping[str, object]] = []
    corrupt: list[bytes | None] = []
    for payload in payloads:
        try:
            rows.append({} if payload is None else decode(payload))
            corrupt.append(None)
        except unfit:
            rows.append({})
            corrupt.append(payload)
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema), pa.array(corrupt, pa.binary())
