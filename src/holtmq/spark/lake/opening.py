"""Which table format a lake has, and opening it.

Owns: how a format is detected, and the defaults of each. Must not touch: what formats do.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from holtmq.spark.errors import InvalidOption
from holtmq.spark.lake.model import Table, UnfitTable
from holtmq.spark.lake.parquet_log import LOG, ParquetTable
from holtmq.spark.lake.ranges import MESSAGE, PARTITIONED
from holtmq.spark.lake.storage import Storage

FORMATS: Final = ("parquet", "delta", "iceberg")
# How long files that compaction replaced are kept for running queries. Tools that read a Parquet lake by its
# folders would see their rows twice meanwhile; the other formats are not read by folders.
KEEP_SECONDS: Final = {"parquet": 0.0, "delta": 86_400.0, "iceberg": 3600.0}


def format_of(storage: Storage) -> str | None:
    """The format of the existing lake; None when there is none yet."""
    names = set(storage.names(""))
    if "_delta_log" in names:
        return "delta"
    if "metadata" in names and any(n.endswith(".metadata.json") for n in storage.names("metadata")):
        return "iceberg"
    return "parquet" if storage.names(LOG) else None


def open_table(
    storage: Storage,
    wanted: str = "",
    *,
    create: bool = False,
    schema: pa.Schema = MESSAGE,
    partitioned: Sequence[str] = PARTITIONED,
    catalog: Mapping[str, str] | None = None,
) -> Table:
    """Open the lake's table. ``wanted`` must match an existing lake; a new one is Parquet by default."""
    if wanted and wanted not in FORMATS:
        raise InvalidOption(f"there is no table format {wanted!r}; there are {', '.join(FORMATS)}")
    if catalog and wanted not in ("", "iceberg"):
        raise InvalidOption(f"a catalog is for Iceberg tables, not for {wanted}")
    there = format_of(storage)
    if there and wanted and there != wanted:
        raise UnfitTable(
            f"the lake {storage.root} is kept as {there}, not as {wanted}: leave the format out, "
            "or use another --lake"
        )
    if not there and not create and not catalog:
        raise UnfitTable(f"there is no lake at {storage.root}")
    chosen = there or wanted or ("iceberg" if catalog else "parquet")
    if chosen == "delta":
        from holtmq.spark.lake.delta import DeltaLakeTable

        return DeltaLakeTable(storage, schema, partitioned, create=create)
    if chosen == "iceberg":
        from holtmq.spark.lake.iceberg import IcebergTable

        return IcebergTable(storage, schema, partitioned, create=create, catalog=catalog)
    return ParquetTable(storage, schema)
