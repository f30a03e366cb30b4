"""Reading one slice: Arrow batches from the broker, converted to the columns Spark expects.

Owns: the columns of a batch (order, types, typed payloads) and the check that no message disappeared during
the read. Must not touch: planning. Errors propagate: an empty batch instead would move the checkpoint past
the data.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holtmq.spark.client import BrokerClient, Fetch
from holtmq.spark.errors import BrokerRefused, DataLoss
from holtmq.spark.options import SourceOptions
from holtmq.spark.payload_formats import payload_decoder
from holtmq.spark.relations import Relation
from holtmq.spark.schema import CORRUPT, PAYLOAD, Layout


class Slice(InputPartition):
    """One task's part: offsets ``first`` to ``stop - 1``, ``gone`` of them missing when it was planned."""

    def __init__(self, queue: str, number: int, first: int, stop: int, gone: int) -> None:
        super().__init__(None)
        self.queue = queue
        self.number = number
        self.first = first
        self.stop = stop
        self.gone = gone


class RowReader:
    """Reads slices as Arrow batches. Pickled together with its reader."""

    def __init__(self, options: SourceOptions, shape: Layout, schema: StructType) -> None:
        self._options = options
        self._shape = shape
        self._schema = schema
        self._decoder = payload_decoder(options.payload)
        if self._decoder is not None and shape.typed:
            arrow = to_arrow_schema(schema, timezone="UTC")
            self._decoder.check(pa.schema([arrow.field(name) for name in shape.typed]))

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """The slice's rows."""
        if part.first >= part.stop:
            return
        wanted = Fetch(
            part.queue,
            part.number,
            part.first,
            part.stop,
            self._shape.fetched,
            self._options.partition,
        )
        schema = to_arrow_schema(self._schema, timezone="UTC")
        strict = self._options.fail_on_data_loss and self._options.relation is Relation.MESSAGES
        with BrokerClient(self._options.connection) as broker:
            try:
                for fetched in broker.fetch(wanted):
                    if strict and fetched.gone > part.gone:
                        lost = fetched.gone - part.gone
                        raise DataLoss(
                            f"retention overtook the query while it read offsets {part.first} to "
                            f"{part.stop - 1} of queue {part.queue}: {lost} messages are gone "
                            "(failOnDataLoss=false goes on without them)"
                        )
                    if fetched.rows.num_rows:
                        yield self._shaped(fetched.rows, schema)
            except BrokerRefused as refusal:
                # 404 and 410: the queue was deleted since the batch was planned.
                if refusal.status not in (404, 410) or self._options.fail_on_data_loss:
                    raise

    @property
    def fetched(self) -> tuple[str, ...]:
        """Columns this read needs from the broker or the lake."""
        return self._shape.fetched

    def shaped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows from another source, with the columns of ``fetched``, to what Spark expects."""
        return self._shaped(rows, to_arrow_schema(self._schema, timezone="UTC"))

    def _shaped(self, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        shape = self._shape
        if self._decoder is None or (not shape.typed and CORRUPT not in shape.names):
            return rows if rows.schema.equals(schema) else _cast(rows, schema)
        types = pa.schema([schema.field(name) for name in shape.typed])
        table, corrupt = self._decoder.decode(rows.column(PAYLOAD).to_pylist(), types)
        arrays = []
        for field in schema:
            if field.name in shape.typed:
                arrays.append(table.column(field.name).combine_chunks())
            else:
                arrays.append(corrupt if field.name == CORRUPT else rows.column(field.name))
        arrays = [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast to a schema the user gave, such as the payload as a string."""
    arrays = [rows.column(field.name).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
