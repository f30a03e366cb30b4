"""Helpers of the lake's tests: archiving without Spark, and reading a lake with none of our own readers."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from spark_support import Shop

from holtmq.spark.jobs.archive import archive
from holtmq.spark.jobs.running import Setting
from holtmq.spark.lake.writer import Care

LEAVE = Care(compact=False)
FORMATS = ("parquet", "delta", "iceberg")


def setting(shop: Shop, every: float | None = None) -> Setting:
    return Setting(shop.url, "local[2]", every=every, out=io.StringIO(), threads=2)


def keep(shop: Shop, queue: str, root: Path, **options: Any) -> dict[str, Any]:
    """Archive without Spark."""
    options = {"engine": "arrow", "care": LEAVE, **options}
    every = options.pop("every", None)
    names = ",".join(shop.name(one) for one in queue.split(","))
    return archive(setting(shop, every), names, str(root), **options)


def outside_view(root: Path, format: str) -> pa.Table:
    """What a stranger's tool finds in the lake."""
    if format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(root).to_pyarrow_table()
    if format == "iceberg":
        from pyiceberg.table import StaticTable

        return StaticTable.from_metadata(str(root)).scan().to_arrow()
    folders = ds.partitioning(pa.schema([("queue", pa.string()), ("date", pa.date32())]), flavor="hive")
    return ds.dataset(root, format="parquet", partitioning=folders, exclude_invalid_files=False).to_table()


def ids(root: Path, format: str) -> list[int]:
    """The id in every message's payload, sorted."""
    return sorted(payload["id"] for payload in payloads(root, format))


def payloads(root: Path, format: str) -> Iterator[dict[str, Any]]:
    found = outside_view(root, format)
    for value in found.column("payload").to_pylist() if found.num_rows else ():
        yield json.loads(value)
