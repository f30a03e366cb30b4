"""The sink: tasks stage rows, the driver publishes them in one step, once.

Owns: the writers, which columns can be written, the identity of a write. Must not touch: offsets, planning.

A streaming write is identified by (query id, batch id): a batch that Spark repeats after a crash is published
once. A batch write has its own name, created once on the driver: a retried task stages under another
attempt, and only the attempts Spark reports as successful are published.
"""

import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import UnfitSchema
from holtmq.spark.options import SinkOptions

PART_ROWS: Final = 10_000  # staging costs the broker 5 µs a row, and it does nothing else meanwhile
_NAMES: Final = {
    "payload": ("string", "binary"),
    "queue": ("string",),
    "partition": ("string",),
    "transaction_id": ("string",),
    "headers": ("map<string,string>",),
    "routing_key": ("string",),
    "priority": ("tinyint", "smallint", "int", "bigint"),
}


@dataclass
class Staged(WriterCommitMessage):
    """What one task has staged."""

    writer: str
    task: int
    attempt: int
    rows: int


def check_columns(schema: StructType, options: SinkOptions, *, table: bool = False) -> None:
    """Refuse a frame the sink cannot write, and say why, before anything is staged.

    A table has columns that only the broker sets; ``INSERT`` fills them with nulls (``_writable``).
    """
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    if table:
        given = {name: kind for name, kind in given.items() if name in _NAMES}
    if "payload" not in given:
        raise UnfitSchema(
            "the sink writes column payload, and there is none; make one with "
            f"to_json(struct(*)) AS payload. Columns: {', '.join(given)}"
        )
    for name, kind in given.items():
        if name not in _NAMES:
            raise UnfitSchema(f"the sink has no column {name!r}; it writes {', '.join(_NAMES)}. Select those")
        if kind not in _NAMES[name]:
            raise UnfitSchema(f"column {name} must be {' or '.join(_NAMES[name])}, not {kind}")
    if "queue" not in given and not options.queue:
        raise UnfitSchema("say where to: option queue, or a column queue")


class _Stager:
    """Stages the rows of one task, in parts of bounded size."""

    def __init__(self, options: SinkOptions, *, table: bool = False) -> None:
        self._options = options
        self._table = table

    def run(self, batches: Iterator[pa.RecordBatch], writer: str, batch: int) -> Staged:
        context = TaskContext.get()
        assert context is not None
        # Not Spark's attempt number: a new driver counts from 0 again, and would find the parts that an
        # attempt of a killed driver left under the same number.
        task, attempt = context.partitionId(), secrets.randbits(53)
        rows = part = 0
        most = self._options.part_bytes
        with BrokerClient(self._options.connection) as broker:
            for held in parts(map(_writable, batches) if self._table else batches, most):
                self._stage(broker, writer, batch, task, attempt, part, held)
                rows += sum(some.num_rows for some in held)
                part += 1
        return Staged(writer, task, attempt, rows)

    def _stage(
        self,
        broker: BrokerClient,
        writer: str,
        batch: int,
        task: int,
        attempt: int,
        part: int,
        held: Sequence[pa.RecordBatch],
    ) -> None:
        defaults = {"queue": self._options.queue, "partition": self._options.partition}
        broker.stage(writer, batch, task, attempt, part, as_stream(held), defaults)


def _writable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a table's row that are written; all others must be null."""
    for name in batch.schema.names:
        if name not in _NAMES and batch.column(name).null_count < batch.num_rows:
            raise UnfitSchema(
                f"column {name} is the broker's to give: name the columns you write, "
                f"INSERT INTO … (payload, partition) …; it writes {', '.join(_NAMES)}"
            )
    return batch.select([name for name in batch.schema.names if name in _NAMES])


def parts(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[list[pa.RecordBatch]]:
    """Group batches into staging requests of up to about ``most`` bytes and ``PART_ROWS`` rows."""
    held: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        for piece in _pieces(batch, most):
            if held and (size + piece.nbytes > most or rows + piece.num_rows > PART_ROWS):
                yield held
                held, size, rows = [], 0, 0
            held.append(piece)
            size += piece.nbytes
            rows += piece.num_rows
    if held:
        yield held


def as_stream(held: Sequence[pa.RecordBatch]) -> bytes:
    """Batches of one schema as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, held[0].schema) as stream:
        for one in held:
            stream.write_batch(one)
    return bytes(sink.getvalue().to_pybytes())


def _pieces(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    """Slices of a batch of about ``most`` bytes and at most ``PART_ROWS`` rows."""
    if not batch.num_rows:
        return
    step = min(PART_ROWS, max(1, int(batch.num_rows * most / max(batch.nbytes, 1))))
    for at in range(0, batch.num_rows, step):
        yield batch.slice(at, step)


def _publish(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    staged = [message for message in messages if isinstance(message, Staged)]
    writers = {message.writer for message in staged}
    if not writers:
        return
    (writer,) = writers
    tasks = [{"task": m.task, "attempt": m.attempt, "rows": m.rows} for m in staged]
    with BrokerClient(options.connection) as broker:
        broker.commit(writer, batch, tasks)


class HoltStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch exactly once, by query id and batch id."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise UnfitSchema("this Spark does not tell its tasks which query and batch they work for")
        return _Stager(self._options).run(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _publish(self._options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        # A retried batch has the same number, so this does not end the writer: what a task of this attempt
        # stages late is discarded with the batch's commit, or after an hour.
        for writer in {message.writer for message in messages if isinstance(message, Staged)}:
            with BrokerClient(self._options.connection) as broker:
                broker.abort(writer, batchId)


class HoltBatchWriter(DataSourceArrowWriter):
    """Writes all rows or none. Inside ``foreachBatch``, writeId and writeBatch make it exactly once."""

    def __init__(
        self, options: SinkOptions, schema: StructType, overwrite: bool, table: bool = False
    ) -> None:
        if overwrite:
            raise UnfitSchema('a queue is appended to, not overwritten: use mode("append")')
        check_columns(schema, options, table=table)
        self._options = options
        self._table = table
        # Set before pickling: every task stages under the same name.
        self.name = options.write_id or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _Stager(self._options, table=self._table).run(iterator, self.name, self._options.write_batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _publish(self._options, messages, self._options.write_batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with BrokerClient(self._options.connection) as broker:
            if self._options.write_id:
                broker.abort(self.name, self._options.write_batch)  # the same name may be written again
            else:
                broker.end(self.name)
