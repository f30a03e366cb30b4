"""The fastest a Python source can be in Spark: the same batches, made in memory once, given again and again.

Owns: that source. It is imported by Spark's workers, so nothing else belongs here.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holtmq.spark.options import source_options
from holtmq.spark.schema import source_ddl

ROWS = 8192


class Share(InputPartition):
    """How many batches one task gives."""

    def __init__(self, batches: int) -> None:
        super().__init__(None)
        self.batches = batches


class CeilingSource(DataSource):
    """``format("ceiling")``, options ``rows`` and ``slices``."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> str:
        return source_ddl(source_options({"queue": "any"}, streaming=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(int(self.options["rows"]), int(self.options["slices"]))


class CeilingReader(DataSourceReader):
    def __init__(self, rows: int, slices: int) -> None:
        self._batches = rows // ROWS // slices
        self._slices = slices

    def partitions(self) -> list[InputPartition]:
        return [Share(self._batches) for _ in range(self._slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        batch = make_batch()
        for _ in range(partition.batches):
            yield batch


def make_batch() -> pa.RecordBatch:
    """One batch as the broker would send it."""
    text_map = pa.map_(pa.string(), pa.string())
    payload = (
        b'{"id": 123456, "amount": 61.5, "kind": "book", "customer": "c12", "note": "twenty-two letters"}'
    )
    columns = {
        "queue": pa.array(["bench"] * ROWS),
        "partition": pa.array([f"p{n % 10}" for n in range(ROWS)]),
        "offset": pa.array(range(ROWS), pa.int64()),
        "message_id": pa.array([f"01a1dd89-6ae7-7000-8001-{n:012x}" for n in range(ROWS)]),
        "transaction_id": pa.array([f"b5380aff-dc7c-38d4-0000-{n:012x}" for n in range(ROWS)]),
        "trace_id": pa.nulls(ROWS, pa.string()),
        "created_at": pa.array(range(ROWS), pa.int64()).cast(pa.timestamp("us", "UTC")),
        "headers": pa.nulls(ROWS, text_map),
        "payload": pa.array([payload] * ROWS, pa.binary()),
        "exchange": pa.nulls(ROWS, pa.string()),
        "routing_key": pa.nulls(ROWS, pa.string()),
        "content_type": pa.nulls(ROWS, pa.string()),
        "priority": pa.nulls(ROWS, pa.int32()),
        "properties": pa.nulls(ROWS, text_map),
    }
    return pa.RecordBatch.from_pydict(columns)
