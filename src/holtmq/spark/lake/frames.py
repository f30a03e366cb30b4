"""Reading a lake with Spark, alone or as one relation with the live queue.

Owns: DataFrames over the live files, and the boundary between lake and broker. Must not touch: writing.
"""

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from holtmq.spark.errors import DataLoss
from holtmq.spark.lake.model import DataFile, Table, position_key
from holtmq.spark.lake.opening import open_table
from holtmq.spark.lake.ranges import FETCHED, MESSAGE, PARTITIONED
from holtmq.spark.lake.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holtmq.spark.offsets import Head

MESSAGE_COLUMNS: Final = ("queue", *FETCHED)


class Lake:
    """A lake for Spark to read: its state when it was opened, until ``refresh``."""

    def __init__(
        self,
        spark: "SparkSession",
        root: str,
        catalog: Mapping[str, str] | None = None,
        *,
        schema: pa.Schema = MESSAGE,
        partitioned: Sequence[str] = PARTITIONED,
    ) -> None:
        self._spark = spark
        self.storage = Storage(root)
        self.root = self.storage.root
        self.table: Table = open_table(self.storage, catalog=catalog, schema=schema, partitioned=partitioned)

    def refresh(self) -> None:
        self.table.refresh()

    def frame(self, files: Iterable[DataFile] | None = None) -> "DataFrame":
        """Every archived message once; or those of some files."""
        from pyspark.sql.pandas.types import from_arrow_schema

        chosen = self.table.files() if files is None else list(files)
        # Timestamps with a zone become Spark's TIMESTAMP; all others would be TIMESTAMP_NTZ.
        schema = from_arrow_schema(self.table.schema(), prefer_timestamp_ntz=False)
        if not chosen:
            return self._spark.createDataFrame([], schema)
        reader = self._spark.read.schema(schema)
        if not self.table.in_file:  # partition columns are in the folder names
            reader = reader.option("basePath", self.root)
        return reader.parquet(*[posixpath.join(self.root, file.path) for file in chosen])


def table(
    spark: "SparkSession",
    root: str,
    url: str,
    queues: str,
    *,
    catalog: Mapping[str, str] | None = None,
    **options: str,
) -> "DataFrame":
    """One relation over the lake and what the broker has beyond it: no gap, no overlap.

    The table is read first and says where the lake ends; the live part starts right there. What is archived
    later is not in the list of files, so it is not seen twice.
    """
    from holtmq.spark.client import BrokerClient
    from holtmq.spark.options import source_options

    lake = Lake(spark, root, catalog)
    given = {"url": url, "queue": queues, **options}
    chosen = source_options(given, streaming=None)
    with BrokerClient(chosen.connection) as broker:
        heads = broker.heads(chosen.selection)
    names = {head.name for head in heads}
    files = [file for file in lake.table.files() if file.partition.get("queue") in names]
    archived = lake.frame(files).select(*MESSAGE_COLUMNS)
    starts = {head.name: seam(lake.table, head) for head in heads}
    tail = spark.read.format("holtmq").options(**given, startingOffsets=json.dumps(starts)).load()
    return archived.unionByName(tail.select(*MESSAGE_COLUMNS))


def seam(kept: Table, head: "Head") -> int:
    """The offset where the live queue takes over; -2, its oldest, when the lake has nothing of it."""
    position = kept.position(position_key(head.name, head.number))
    if position is None:
        return -2
    if position.next < head.first:
        raise DataLoss(
            f"there is a gap between lake and queue {head.name}: the lake ends at {position.next}, "
            f"the queue's oldest message is {head.first}; {head.first - position.next} offsets are in neither"
        )
    return min(position.next, head.next)
