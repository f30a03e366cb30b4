"""A stream over a work queue: lease a batch, pass it to Spark, acknowledge it when Spark has processed it.

Owns: the leases of the query and when they end. Must not touch: offsets of partitioned queues. At least once:
a message is acknowledged only when its batch is done, and is redelivered otherwise.

The driver leases, and passes the messages to the tasks inside their partitions: a retried task gets the same
ones. Spark asks for the next batch only when the last one is done, so that is when the last one is
acknowledged; Spark's own ``commit`` comes even later. A batch that a new driver repeats is empty: its
messages are requeued, at the latest when their lease expires, and come with a later batch.
"""

import base64
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holtmq.spark.client import BrokerClient
from holtmq.spark.ddl import quoted
from holtmq.spark.errors import BrokerRefused, HoltSparkError, UnfitSchema
from holtmq.spark.options import PayloadFormat, WorkOptions
from holtmq.spark.payload_formats import payload_decoder
from holtmq.spark.schema import CORRUPT, PAYLOAD, payload_fields

_COLUMNS: Final = {
    "queue": "STRING",
    "message_id": "STRING",
    "transaction_id": "STRING",
    "created_at": "TIMESTAMP",
    "attempt": "INT",
    "payload": "BINARY",
}
_POP: Final = 500  # messages per request
_TAKEN: Final = "taken"
_BASE64: Final = b'{"$base64":'
_TIME: Final = pa.timestamp("us", "UTC")


def work_ddl(options: WorkOptions) -> str:
    """The columns of a stream over a work queue."""
    fields = dict(_COLUMNS)
    typed = payload_fields(options.payload)
    if typed:
        fields |= typed
        fields[CORRUPT] = "STRING" if options.payload.format is PayloadFormat.JSON else "BINARY"
        if PAYLOAD not in typed:
            del fields[PAYLOAD]
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in fields.items())


@dataclass(frozen=True, slots=True)
class Leased:
    """One message, and what is needed to settle it."""

    message_id: str
    transaction_id: str
    created_us: int
    attempt: int
    payload: bytes
    partition_id: str
    lease: str

    def ack(self, status: str) -> dict[str, str]:
        return {
            "transactionId": self.transaction_id,
            "partitionId": self.partition_id,
            "leaseId": self.lease,
            "status": status,
        }


class TaskMessages(InputPartition):
    """One task's messages."""

    def __init__(self, rows: Sequence[Leased]) -> None:
        super().__init__(None)
        self.rows = list(rows)


class WorkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases and acknowledges batches. Leased messages are kept in the driver's worker."""

    def __init__(self, options: WorkOptions, schema: StructType) -> None:
        known = {*_COLUMNS, *payload_fields(options.payload), CORRUPT}
        unknown = [name for name in schema.fieldNames() if name not in known]
        if unknown:
            raise UnfitSchema(f"a work queue has no column {unknown[0]!r}; it has {', '.join(sorted(known))}")
        self._options = options
        self._schema = schema
        self._decoder = payload_decoder(options.payload)
        self._leased: dict[int, list[Leased]] = {}  # by the batch's end offset
        self._until: float | None = None  # AvailableNow: messages younger than this end the run
        self._ended = False
        self._renewing: _Renewing | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {_TAKEN: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = time.time()

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        at = start[_TAKEN]
        self._settle(upto=at)
        waiting = [end for end in self._leased if end > at]
        if waiting:  # already leased, and Spark has not run it yet
            return {_TAKEN: min(waiting)}
        most = self._options.max_messages
        if isinstance(limit, ReadMaxRows) and not isinstance(limit, ReadAllAvailable):
            most = min(most, limit.max_rows)
        found = [] if self._ended else self._lease(most)
        if self._until is not None:
            late = bool(found) and found[-1].created_us >= self._until * 1e6
            self._ended = self._ended or late or len(found) < most
        if not found:
            return {_TAKEN: at}
        self._leased[at + len(found)] = found
        return {_TAKEN: at + len(found)}

    def _lease(self, most: int) -> list[Leased]:
        options = self._options
        found: list[Leased] = []
        size = 0
        with BrokerClient(options.connection) as broker:
            while len(found) < most and size < options.max_bytes:
                wanted = min(_POP, most - len(found))
                some = _leased(broker.pop(options.queue, wanted, options.lease_seconds))
                found += some
                size += sum(len(one.payload) for one in some)
                if some:
                    self._renew(some[0].lease)
                if len(some) < wanted:
                    break
        return found

    def _renew(self, lease: str) -> None:
        if self._renewing is None:
            self._renewing = _Renewing(self._options)
        self._renewing.add(lease)

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        rows = self._leased.get(end[_TAKEN], [])
        pieces = min(len(rows), self._options.min_partitions)
        bounds = [len(rows) * piece // pieces for piece in range(pieces + 1)] if pieces else []
        return [TaskMessages(rows[bounds[i] : bounds[i + 1]]) for i in range(pieces)] or [TaskMessages(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskMessages)
        if partition.rows:
            yield self._batch(partition.rows)

    def _batch(self, rows: Sequence[Leased]) -> pa.RecordBatch:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        payloads = [row.payload for row in rows]
        columns: dict[str, pa.Array] = {
            "queue": pa.array([self._options.queue] * len(rows)),
            "message_id": pa.array([row.message_id for row in rows]),
            "transaction_id": pa.array([row.transaction_id for row in rows]),
            "created_at": pa.array([row.created_us for row in rows], pa.int64()).cast(
                pa.timestamp("us", "UTC")
            ),
            "attempt": pa.array([row.attempt for row in rows], pa.int32()),
            "payload": pa.array(payloads, pa.binary()),
        }
        if self._decoder is not None:
            names = [name for name in self._decoder.fields() if name in schema.names]
            table, corrupt = self._decoder.decode(payloads, pa.schema([schema.field(name) for name in names]))
            columns |= {name: table.column(name).combine_chunks() for name in names}
            columns[CORRUPT] = corrupt
        arrays = [columns[field.name].cast(field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def commit(self, end: Mapping[str, int]) -> None:
        self._settle(upto=end[_TAKEN])

    def _settle(self, upto: int) -> None:
        """Acknowledge the batches that are done."""
        for end in [end for end in self._leased if end <= upto]:
            self._end(self._leased.pop(end), "completed")

    def _end(self, rows: Sequence[Leased], status: str) -> None:
        with BrokerClient(self._options.connection) as broker:
            for at in range(0, len(rows), _POP):
                broker.settle([row.ack(status) for row in rows[at : at + _POP]])
        if self._renewing is not None:
            self._renewing.remove({row.lease for row in rows})

    def stop(self) -> None:
        """Release messages that are not known to be done, without waiting for their leases to expire."""
        for rows in self._leased.values():
            with suppress(HoltSparkError):
                self._end(rows, "retry")
        self._leased = {}
        if self._renewing is not None:
            self._renewing.stop()


class _Renewing:
    """Renews leases in its own thread: a batch may take longer than a lease."""

    def __init__(self, options: WorkOptions) -> None:
        self._options = options
        self._leases: set[str] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holt-leases", daemon=True)
        self._thread.start()

    def add(self, lease: str) -> None:
        with self._lock:
            self._leases.add(lease)

    def remove(self, leases: set[str]) -> None:
        with self._lock:
            self._leases -= leases

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._options.lease_seconds / 3):
            with self._lock:
                leases = sorted(self._leases)
            with BrokerClient(self._options.connection) as broker:
                for lease in leases:
                    # An expired lease: its messages go to another consumer, or to this query a second time.
                    with suppress(BrokerRefused, HoltSparkError):
                        broker.extend(lease, self._options.lease_seconds)


class _MessageIn(msgspec.Struct, rename="camel"):
    id: str
    transaction_id: str
    created_at: datetime
    delivery_attempt: int
    data: msgspec.Raw  # raw: decoding and encoding JSON again would change it
    partition_id: str
    lease_id: str


class _PoppedIn(msgspec.Struct):
    messages: list[_MessageIn] = []


def _leased(answer: bytes) -> list[Leased]:
    if not answer:
        return []
    return [
        Leased(
            one.id,
            one.transaction_id,
            round(one.created_at.timestamp() * 1_000_000),
            one.delivery_attempt,
            _body(bytes(one.data)),
            one.partition_id,
            one.lease_id,
        )
        for one in msgspec.json.decode(answer, type=_PoppedIn).messages
    ]


def _body(data: bytes) -> bytes:
    """The body as published: text and bytes that are not JSON arrive as a string or in base64."""
    if data[:1] == b'"':
        return msgspec.json.decode(data, type=str).encode()
    if data.startswith(_BASE64):
        return base64.b64decode(msgspec.json.decode(data, type=dict[str, str])["$base64"])
    return data
