"""Writes a streaming query into a Delta Lake or Iceberg table with its own columns, each batch once.

Owns: the ``foreachBatch`` function. Must not touch: how batches are made.
"""

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from holtmq.spark.lake.model import Position, Table
from holtmq.spark.lake.opening import open_table
from holtmq.spark.lake.staging import stage_frame
from holtmq.spark.lake.storage import Storage
from holtmq.spark.lake.writer import LakeWriter, evolve
from holtmq.spark.lake.writing import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class TableSink:
    """A context manager that locks the table. ``name`` distinguishes this query from others."""

    def __init__(
        self, root: str, format: str, schema: "StructType", partition_by: Sequence[str], name: str
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = to_arrow_schema(schema, timezone="UTC")

        def layout(table: Table) -> Layout:
            evolve(table, columns)
            return Layout(table.schema(), tuple(partition_by), (), table.in_file)

        storage = Storage(root)
        opened = partial(
            open_table, storage, format, create=True, schema=columns, partitioned=tuple(partition_by)
        )
        self._name = name
        self._writer = LakeWriter(storage, opened, layout, name)

    def __enter__(self) -> "TableSink":
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)

    def add(self, batch: "DataFrame", number: int) -> None:
        """Add a batch unless the table already has it."""
        query = query_id(batch) or self._name
        key = f"writer:{query}"
        position = self._writer.table.position(key)
        if position is not None and position.next > number:
            return
        files = stage_frame(batch, self._writer.layout, self._writer.staging())
        self._writer.add(files, {key: Position(number + 1, number + 1)}, batch=str(number))


def query_id(batch: "DataFrame") -> str:
    """The streaming query that a batch of ``foreachBatch`` belongs to; empty where Spark does not tell."""
    try:
        found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception:  # pyspark's own error: Connect has no SparkContext
        return ""
    return str(found or "")
