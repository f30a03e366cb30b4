"""Ranges as Arrow IPC streams, and Arrow IPC bodies as rows to stage or publish.

Owns: the columns and types of each relation, the stream's bytes, which columns a body may have. Must not
touch: sockets, durability. Imported on demand: pyarrow is optional (``holtmq[spark]``). Metadata of a batch:
``next``, the offset to continue from; ``gone``, how many messages retention removed so far. The last one may
be empty.
"""

import io
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.commands.pushing import DEFAULT_PARTITION
from holtmq.broker.partitioned.commands.staging_records import StagedRow
from holtmq.broker.partitioned.log import range_reads
from holtmq.broker.partitioned.log.bodies import ID_MAX, AmqpMetadata, Body
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.delivery_log import DeliveryOutcome, DeliveryRun
from holtmq.broker.partitioned.log.identifiers import dead_letter_id
from holtmq.broker.partitioned.log.range_reads import PIECE_BYTES, Chosen, Piece, RangeInfo, Relation
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.streams.envelopes import to_payload
from holtmq.http.arrow.columns import MAP, NEED_NO_RECORD, TIME, Decoded, MessageColumns
from holtmq.journal.interface import Loose
from holtmq.wire.properties import Properties, encode_properties

_MESSAGE: Final = {
    "queue": pa.string(),
    "partition": pa.string(),
    "offset": pa.int64(),
    "message_id": pa.string(),
    "transaction_id": pa.string(),
    "trace_id": pa.string(),
    "created_at": TIME,
    "headers": MAP,
    "payload": pa.binary(),
    "exchange": pa.string(),
    "routing_key": pa.string(),
    "content_type": pa.string(),
    "priority": pa.int32(),
    "properties": MAP,
}
_LETTER_ONLY: Final = {
    "letter_id": pa.int64(),
    "group": pa.string(),
    "error": pa.string(),
    "attempts": pa.int32(),
    "first_failed_at": TIME,
    "last_failed_at": TIME,
}
_DELIVERY: Final = {
    "queue": pa.string(),
    "partition": pa.string(),
    "offset": pa.int64(),
    "created_at": TIME,
    "group": pa.string(),
    "attempt": pa.int32(),
    "delivered_at": TIME,
    "settled_at": TIME,
    "outcome": pa.string(),
    "error": pa.string(),
}
TYPES: Final = {
    Relation.MESSAGES: _MESSAGE,
    Relation.DEAD_LETTERS: {**_MESSAGE, **_LETTER_ONLY},
    Relation.DELIVERIES: _DELIVERY,
}
_STEP: Final = 2048  # letters or runs in one batch

_Row = tuple[object, ...]
_Batch = tuple[pa.RecordBatch, int, int]  # rows, next offset, messages gone so far


def schema_of(relation: Relation, columns: Sequence[str]) -> pa.Schema:
    """The stream's schema; all columns when none is named."""
    types = TYPES[relation]
    unknown = [name for name in columns if name not in types]
    if unknown:
        raise Conflict(f"there is no column {unknown[0]!r}; there are {', '.join(types)}")
    return pa.schema([(name, types[name]) for name in columns or types])


def stream(
    store: PartitionedStore,
    info: RangeInfo,
    first: int,
    stop: int,
    schema: pa.Schema,
    chosen: Chosen,
    piece_bytes: Callable[[], int] = lambda: PIECE_BYTES,
    watch: Callable[[list[str]], None] | None = None,
) -> Iterator[bytes]:
    """The range as the bytes of an IPC stream, one bounded batch at a time.

    ``watch`` sees the trace ids in each batch.
    """
    if info.relation is Relation.MESSAGES:
        with_bodies = watch is not None or not NEED_NO_RECORD.issuperset(schema.names)
        pieces = range_reads.Pieces(store, info.queue, first, stop, chosen, with_bodies, piece_bytes)
        return _IpcStream(schema, _MessageBatches(store, info.queue, schema, pieces, watch))
    return _IpcStream(schema, _side_batches(store, info, first, stop, schema, chosen))


class _IpcStream(Iterator[bytes]):
    """Batches as bytes. It keeps none between calls: a slow reader costs only the bytes being sent."""

    def __init__(self, schema: pa.Schema, batches: Iterator[_Batch]) -> None:
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema)
        self._batches: Iterator[_Batch] | None = batches

    def __next__(self) -> bytes:
        if self._batches is None:
            raise StopIteration
        for batch, at, gone in self._batches:
            self._writer.write_batch(batch, custom_metadata={"next": str(at), "gone": str(gone)})
            return self._sink.take()
        self._batches = None
        self._writer.close()
        return self._sink.take()


class _MessageBatches(Iterator[_Batch]):
    """Pieces of a queue as batches. ``_maps`` caches decoded properties: publishers repeat them."""

    def __init__(
        self,
        store: PartitionedStore,
        queue: PartitionedQueue,
        schema: pa.Schema,
        pieces: Iterator[Piece],
        watch: Callable[[list[str]], None] | None,
    ) -> None:
        self._watch = watch
        self._store = store
        self._queue = queue
        self._schema = schema
        self._pieces = pieces
        self._gone = 0
        self._maps: dict[bytes, Decoded] = {}

    def __next__(self) -> _Batch:
        piece = next(self._pieces)
        self._gone += piece.gone
        if not len(piece.offsets):
            return _empty(self._schema), piece.next, self._gone
        columns = MessageColumns(self._queue, piece, self._store.cipher, self._maps)
        if self._watch is not None:
            self._watch(columns.column("trace_id").drop_null().to_pylist())
        arrays = [columns.column(name) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), piece.next, self._gone


def _side_batches(
    store: PartitionedStore, info: RangeInfo, first: int, stop: int, schema: pa.Schema, chosen: Chosen
) -> Iterator[_Batch]:
    queue = info.queue
    if info.relation is Relation.DEAD_LETTERS:
        letters = range_reads.letters(queue, first, stop, chosen)
        for at in range(0, len(letters), _STEP):
            some = letters[at : at + _STEP]
            yield _letters(store, queue, some, schema), some[-1].number + 1, 0
    else:
        some_runs: list[DeliveryRun] = []
        size = 0
        for run in range_reads.deliveries(queue, first, stop, chosen):
            some_runs.append(run)
            size += run.end - run.first
            if size >= _STEP:
                yield _deliveries(queue, some_runs, schema), run.number + 1, 0
                some_runs, size = [], 0
        if some_runs:
            yield _deliveries(queue, some_runs, schema), some_runs[-1].number + 1, 0
    yield _empty(schema), stop, 0


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _letters(
    store: PartitionedStore, queue: PartitionedQueue, letters: Sequence[DeadLetter], schema: pa.Schema
) -> pa.RecordBatch:
    piece = Piece(
        array("Q", [letter.offset for letter in letters]),
        array("Q", [letter.created_us for letter in letters]),
        array("I", [letter.partition for letter in letters]),
        [Loose([store.journal.read(letter.journal_position)[1] for letter in letters])],
        0,
        0,
    )
    columns = MessageColumns(queue, piece, store.cipher, {})
    first_failed = queue.deliveries.first_failed
    own: dict[str, Sequence[object]] = {
        "letter_id": [int(dead_letter_id(queue.number, letter.number)) for letter in letters],
        "group": [letter.group for letter in letters],
        "error": [letter.error for letter in letters],
        "attempts": [letter.retry_count + 1 for letter in letters],
        "first_failed_at": [first_failed.get(letter.number, letter.failed_us) for letter in letters],
        "last_failed_at": [letter.failed_us for letter in letters],
    }
    arrays = [
        _typed(own[field.name], field.type) if field.name in own else columns.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _deliveries(queue: PartitionedQueue, runs: Sequence[DeliveryRun], schema: pa.Schema) -> pa.RecordBatch:
    groups = {group.number: group.name for group in queue.groups.values()}
    rows: list[_Row] = []
    for run in runs:
        where = queue.partitions[run.partition]
        outcome = DeliveryOutcome(run.outcome).name.lower()
        group = groups.get(run.group)
        holes = where.holes_in(run.first, run.end)
        for position in range(run.first, run.end):
            # Retention or a client may have deleted the message since. Its row stays, so that a second read
            # of the run has as many rows.
            offset = created = None
            if where.first <= position < where.end and position not in holes:
                offset = where.offsets[position - where.first]
                created = queue.log.created_us(offset)
            rows.append(
                (
                    queue.name,
                    where.name,
                    offset,
                    created,
                    group,
                    run.attempt,
                    run.delivered_us or None,
                    run.settled_us,
                    outcome,
                    run.error,
                )
            )
    names = list(_DELIVERY)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    arrays = [_typed(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _typed(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind) if kind == TIME else pa.array(values, kind)


class _Sink(io.RawIOBase):
    """Collects what Arrow writes until ``take``."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        # No copy: Arrow passes bytes, or a buffer that lives as long as it is referenced.
        part = memoryview(data)  # type: ignore[arg-type]
        self._parts.append(part)
        return part.nbytes

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


_ROWS_AT_ONCE: Final = 2_000  # staged rows: about 4 ms
_STAGED: Final = ("payload", "queue", "partition", "transaction_id", "headers", "routing_key", "priority")


def staged_rows(body: bytes, defaults: Mapping[str, str], ids: str) -> Iterator[list[StagedRow]]:
    """The rows of an IPC stream, some at a time: other requests may be served in between.

    ``ids`` is the prefix of transaction ids for rows that have none.
    """
    table = _table(body, _STAGED)
    for first in range(0, table.num_rows, _ROWS_AT_ONCE):
        yield _staged(table.slice(first, _ROWS_AT_ONCE), first, defaults, ids)


def _staged(table: pa.Table, first: int, defaults: Mapping[str, str], ids: str) -> list[StagedRow]:
    given = {name: table.column(name).to_pylist() for name in table.column_names}
    none: list[None] = [None] * table.num_rows
    rows = []
    for place, (payload, queue, partition, name, headers, key, priority) in enumerate(
        zip(*(given.get(column, none) for column in _STAGED), strict=True), first
    ):
        queue = queue or defaults.get("queue")
        if payload is None or not queue:
            raise Conflict(f"row {place} has no {'payload' if payload is None else 'queue'}")
        name = name or f"{ids}:{place}"
        partition = partition or defaults.get("partition") or DEFAULT_PARTITION
        if len(name.encode()) > ID_MAX or len(queue.encode()) > 255 or len(partition.encode()) > 255:
            raise Conflict(f"row {place} has a queue, partition or transaction_id that is too long")
        message = _body(payload, name, headers, key, _checked_priority(place, priority))
        rows.append(StagedRow(queue, partition, message))
    return rows


def _checked_priority(place: int, priority: int | None) -> int | None:
    if priority is not None and not 0 <= priority <= 255:
        raise Conflict(f"row {place} has the priority {priority}; it must be from 0 to 255")
    return priority


def _body(
    payload: str | bytes,
    name: str,
    headers: Sequence[tuple[str, str | None]] | None,
    key: str | None,
    priority: int | None,
) -> Body:
    given = payload.encode() if isinstance(payload, str) else payload
    kept = to_payload(given)
    if headers is None and key is None and priority is None and kept == given:
        return Body(name, kept)
    properties = Properties(
        headers=None if headers is None else dict(headers),
        priority=priority,
    )
    # Stored as if published through the default exchange, so that AMQP consumers get headers and priority.
    metadata = AmqpMetadata("", key or "", encode_properties(properties), properties.priority or 0)
    return Body(name, kept, metadata=metadata)


_PUBLISHED: Final = ("payload", "routing_key", "headers", "priority", "transaction_id")


class ExchangeRow(NamedTuple):
    """One message for an exchange."""

    payload: bytes
    key: str
    headers: Sequence[tuple[str, str | None]] | None
    priority: int | None
    name: str | None


def exchange_rows(body: bytes, key: str, ids: str) -> Iterator[list[ExchangeRow]]:
    """The rows of an IPC stream, some at a time, as ``staged_rows``.

    ``key`` and ``ids`` are for rows without routing key or transaction id.
    """
    table = _table(body, _PUBLISHED)
    for first in range(0, table.num_rows, _ROWS_AT_ONCE):
        yield _published(table.slice(first, _ROWS_AT_ONCE), first, key, ids)


def _published(table: pa.Table, first: int, key: str, ids: str) -> list[ExchangeRow]:
    given = {name: table.column(name).to_pylist() for name in table.column_names}
    none: list[None] = [None] * table.num_rows
    rows = []
    for place, (payload, own_key, headers, priority, name) in enumerate(
        zip(*(given.get(column, none) for column in _PUBLISHED), strict=True), first
    ):
        if payload is None:
            raise Conflict(f"row {place} has no payload")
        rows.append(
            ExchangeRow(
                payload.encode() if isinstance(payload, str) else payload,
                key if own_key is None else own_key,
                headers,
                _checked_priority(place, priority),
                name or (f"{ids}:{place}" if ids else None),
            )
        )
    return rows


def _table(body: bytes, columns: Sequence[str]) -> pa.Table:
    """The whole IPC stream, which must have a payload and no other columns than these."""
    try:
        table = pa.ipc.open_stream(body).read_all()
    except pa.ArrowInvalid as error:
        raise Conflict(f"not an Arrow IPC stream: {error}") from None
    strangers = [name for name in table.column_names if name not in columns]
    if strangers or "payload" not in table.column_names:
        raise Conflict(f"the columns are {', '.join(columns)}, payload is required; got {table.column_names}")
    return table
