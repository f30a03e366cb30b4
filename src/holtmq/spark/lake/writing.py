"""Writes rows into Parquet files: one per table partition and target size, with bounds of its columns.

Owns: layout, names and encoding of data files. Must not touch: which files are live (the table), the broker.
Runs in Spark's tasks and in threads of a program without Spark; both write the same files.
"""

import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holtmq.spark.lake.model import Bounds, DataFile
from holtmq.spark.lake.storage import open_address, sync_file

_ROWS_PER_GROUP: Final = 131_072
_BYTES_PER_GROUP: Final = 64 << 20
# The characters Spark escapes in directory names.
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(32)}


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a table's files. ``partitioned``: its columns in order of the folders."""

    schema: pa.Schema
    partitioned: tuple[str, ...]
    bounded: tuple[str, ...]  # columns whose lowest and highest value is recorded per file
    in_file: tuple[str, ...] = ()
    target_bytes: int = 128 << 20

    @property
    def stored(self) -> pa.Schema:
        """The schema of a data file."""
        hidden = set(self.partitioned) - set(self.in_file)
        return pa.schema([field for field in self.schema if field.name not in hidden])

    @property
    def dictionary(self) -> list[str]:
        """Columns with few distinct values; trying a dictionary on the others costs a third of the time."""
        unlike = {"offset", "message_id", "transaction_id", "trace_id", "created_at", "payload", "_corrupt"}
        return [field.name for field in self.stored if field.name not in unlike and _plain(field.type)]


def _plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind))


def write_rows(batches: Iterable[pa.RecordBatch], layout: Layout, folder: str) -> list[DataFile]:
    """Write all rows below ``folder`` (an address); return the files, with paths relative to it."""
    writers: dict[tuple[str, ...], _FileWriter] = {}
    done: list[DataFile] = []
    for batch in batches:
        for values, part in _split(batch, layout.partitioned):
            writer = writers.get(values)
            if writer is None:
                writer = writers[values] = _FileWriter(layout, folder, values)
            writer.add(part)
            if writer.full:
                done.append(writers.pop(values).close())
    return done + [writer.close() for writer in writers.values()]


def _split(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    """Split rows by their partition values, in order."""
    if not columns:
        yield (), batch
        return
    column = batch.column(columns[0])
    values = pc.unique(column)
    for value in values:
        part = batch
        if len(values) > 1:
            part = batch.filter(pc.equal(column, value) if value.is_valid else pc.is_null(column))
        text = str(value.as_py()) if value.is_valid else _NULL
        for rest, rows in _split(part, columns[1:]):
            yield (text, *rest), rows


_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def hive_path(partition: Mapping[str, str]) -> str:
    """``queue=…/date=…``."""
    return "/".join(f"{name}={_escaped(value)}" for name, value in partition.items())


def _escaped(value: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in value)


@dataclass(slots=True)
class _FileWriter:
    """One Parquet file being written."""

    layout: Layout
    folder: str
    values: tuple[str, ...]
    rows: int = 0
    bounds: Bounds = field(default_factory=dict)
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _waiting_rows: int = 0
    _waiting_bytes: int = 0
    _path: str = ""
    _out: pa.NativeFile | None = None
    _writer: pq.ParquetWriter | None = None

    @property
    def full(self) -> bool:
        return self._out is not None and self._out.tell() >= self.layout.target_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _ROWS_PER_GROUP or self._waiting_bytes >= _BYTES_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        if self._writer is None:
            self._open()
        assert self._writer is not None
        table = pa.Table.from_batches(self._waiting)
        for name in self.layout.bounded:
            self._widen(name, table.column(name))
        table = table.select(self.layout.stored.names).cast(self.layout.stored)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _widen(self, name: str, column: pa.ChunkedArray) -> None:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        least = pc.min_max(column)
        if least["min"].is_valid:
            low, high = least["min"].as_py(), least["max"].as_py()
            old = self.bounds.get(name, (low, high))
            self.bounds[name] = (min(low, old[0]), max(high, old[1]))

    def _open(self) -> None:
        partition = dict(zip(self.layout.partitioned, self.values, strict=True))
        self._path = posixpath.join(hive_path(partition), f"{uuid.uuid4().hex}.parquet")
        system, base = open_address(posixpath.join(self.folder, self._path))
        system.create_dir(posixpath.dirname(base), recursive=True)
        self._out = system.open_output_stream(base)
        self._writer = pq.ParquetWriter(
            self._out,
            self.layout.stored,
            compression="zstd",
            compression_level=1,
            use_dictionary=self.layout.dictionary,
            write_statistics=True,
            coerce_timestamps="us",
        )

    def close(self) -> DataFile:
        if self._waiting:
            self._write_group()
        assert self._writer is not None
        assert self._out is not None
        self._writer.close()
        size = self._out.tell()
        self._out.close()
        if self.folder.startswith("file://"):
            sync_file(posixpath.join(self.folder.removeprefix("file://"), self._path))
        partition = dict(zip(self.layout.partitioned, self.values, strict=True))
        return DataFile(self._path, size, self.rows, partition, self.bounds)


def join_rows(
    batches: Iterable[pa.RecordBatch], layout: Layout, folder: str, partition: Mapping[str, str]
) -> DataFile:
    """Write rows of one partition as one file of any size."""
    writer = _FileWriter(layout, folder, tuple(partition[name] for name in layout.partitioned))
    for batch in batches:
        writer.add(batch)
    return writer.close()


def read_file(address: str) -> pq.ParquetFile:
    """Open a data file."""
    system, path = open_address(address)
    return pq.ParquetFile(system.open_input_file(path))


def aligned(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with exactly these columns; missing ones are null."""
    names = set(batch.schema.names)
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
