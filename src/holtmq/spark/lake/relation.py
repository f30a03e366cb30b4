"""``format("holtmq").option("lake", …)``: lake and live queue as one relation of the connector.

Owns: the readers of that relation, for batches and streams. Must not touch: writing. Only the planner opens
the table; executors need only pyarrow.

Offsets are those of the queues, so a range means the same rows on either side: rows before the lake's end are
read from its files, the rest from the broker. The lake may grow between planning and reading, and between
two attempts of a batch: the rows stay the same. Earlier incarnations of a recreated queue are in the lake;
a stream reads them too, under keys such as ``orders#~7``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import BrokerRefused, DataLoss, HoltSparkError, InvalidOption
from holtmq.spark.lake.model import QUEUE_IDS, DataFile, Table, position_key
from holtmq.spark.lake.opening import open_table
from holtmq.spark.lake.ranges import check_loss
from holtmq.spark.lake.storage import Storage
from holtmq.spark.lake.writing import read_file
from holtmq.spark.offset_bounds import LATEST, Bound
from holtmq.spark.offsets import Head, OffsetJson, decode_marks, queue_of
from holtmq.spark.options import Selection, SourceOptions, source_options
from holtmq.spark.planning import Span, plan_end, plan_slices
from holtmq.spark.relations import Relation
from holtmq.spark.rows import RowReader, Slice
from holtmq.spark.schema import layout

_ALL = 1 << 62


class LakePart(InputPartition):
    """One task's part of the lake: rows of a file with offsets ``first`` to ``stop - 1`` of one queue."""

    def __init__(self, address: str, queue: str, queue_id: int | None, first: int, stop: int) -> None:
        super().__init__(None)
        self.address = address
        self.queue = queue
        self.queue_id = queue_id  # None: every incarnation of the queue
        self.first = first
        self.stop = stop
        self.from_us: int | None = None
        self.to_us: int | None = None


def batch_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of ``spark.read`` with option lake."""
    return _BatchReader(_Both(given, source_options(given, streaming=False), schema))


def stream_reader(given: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of ``spark.readStream`` with option lake."""
    return _StreamReader(_Both(given, source_options(given, streaming=True), schema))


class _Both:
    """Shared by both readers. Pickled to executors: it holds options only."""

    def __init__(self, given: Mapping[str, str], options: SourceOptions, schema: StructType) -> None:
        named = {name.lower(): value for name, value in given.items()}
        self.root = named["lake"]
        self.catalog = _pairs(named.get("lakecatalog", ""))
        self.options = options
        self.schema = schema
        # With a lake a stream starts at the oldest message; without one the default is latest, as in Kafka.
        self.from_latest = "startingoffsets" in named and options.starting == Bound(word=LATEST)
        if options.relation is not Relation.MESSAGES:
            raise InvalidOption("option lake: a lake has the messages of a queue, not its dead letters")
        if options.max_bytes is not None or options.min_offsets is not None:
            raise InvalidOption("option lake: limit a stream with maxOffsetsPerTrigger")
        self.rows = RowReader(options, layout(options, schema), schema)

    def open(self) -> tuple[Storage, Table]:
        storage = Storage(self.root)
        return storage, open_table(storage, catalog=self.catalog)

    def heads(self, broker: BrokerClient, kept: set[str]) -> list[Head]:
        """The broker's queues. A queue that only the lake still has is no error."""
        chosen = self.options.selection
        try:
            return broker.heads(chosen)
        except BrokerRefused as refusal:
            if refusal.status != 404 or not chosen.queues:
                raise
        found: list[Head] = []
        for name in chosen.queues:
            try:
                found += broker.heads(Selection((name,)))
            except BrokerRefused as refusal:
                if refusal.status != 404 or name not in kept:
                    raise
        return found

    def names(self, heads: Sequence[Head], kept: set[str]) -> set[str]:
        """The queues of this read, on either side."""
        return {head.name for head in heads} | (kept & set(self.options.selection.queues))

    def live(self, broker: BrokerClient, spans: Mapping[str, tuple[Head, int, int]]) -> list[Slice]:
        """Slices of the broker's part; ``spans`` is by key."""
        wanted = [Span(key, first, stop) for key, (_, first, stop) in spans.items() if stop > first]
        slices = []
        for span in plan_slices(wanted, self.options.min_partitions, self.options.max_records):
            head = spans[span.key][0]
            (found,), _ = broker.counts(head.name, (span.first, span.stop))
            slices.append(Slice(head.name, head.number, span.first, span.stop, span.size - found))
        return slices

    def read(self, part: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(part, Slice):
            yield from self.rows.read(part)
            return
        assert isinstance(part, LakePart)
        for batch in _lake_rows(part, self.rows.fetched, self.options.partition):
            yield self.rows.shaped(batch)


class _BatchReader(DataSourceReader):
    def __init__(self, both: _Both) -> None:
        self._both = both
        for name, bound in (
            ("startingOffsets", both.options.starting),
            ("endingOffsets", both.options.ending),
        ):
            if bound.offsets:
                raise InvalidOption(
                    f"option {name}: a read over a lake is bounded by startingTimestamp and endingTimestamp, "
                    "or by WHERE offset …"
                )

    def partitions(self) -> Sequence[InputPartition]:
        both = self._both
        storage, table = both.open()
        files = table.files()
        since, until = both.options.starting.timestamp_us, both.options.ending.timestamp_us
        with BrokerClient(both.options.connection) as broker:
            kept = {file.partition["queue"] for file in files}
            heads = both.heads(broker, kept)
            spans: dict[str, tuple[Head, int, int]] = {}
            for head in heads:
                first = _live_from(broker, table, head, both.options.fail_on_data_loss)
                stop = head.next
                if since is not None:
                    first = max(first, broker.offsets_at([head.name], since)[head.name])
                if until is not None:
                    stop = min(stop, broker.offsets_at([head.name], until)[head.name])
                spans[head.key] = (head, first, stop)
            parts: list[InputPartition] = list(both.live(broker, spans))
        names = both.names(heads, kept)
        for file in files:
            queue = file.partition["queue"]
            high = _ALL if until is None else until - 1
            if queue in names and file.may_hold("created_at", since or 0, high):
                part = LakePart(storage.full(file.path), queue, None, 0, _ALL)
                part.from_us, part.to_us = since, until
                parts.append(part)
        return parts or [Slice("", 0, 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._both.read(partition)


@dataclass(frozen=True, slots=True)
class _Known:
    """Both sides at one moment. ``ends`` has every key, of live queues and earlier incarnations."""

    storage: Storage
    table: Table
    files: list[DataFile]
    heads: dict[str, Head]
    ends: dict[str, int]


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All history, then new messages. It starts at the oldest message unless ``latest`` is given."""

    def __init__(self, both: _Both) -> None:
        self._both = both
        starting = both.options.starting
        if starting.offsets or starting.timestamp_us is not None:
            raise InvalidOption(
                "option startingOffsets: a stream over a lake starts at earliest or at latest; "
                "filter by created_at for less"
            )
        self._target: dict[str, int] | None = None
        self._initial: OffsetJson | None = None

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        if self._initial is None:
            with BrokerClient(self._both.options.connection) as broker:
                known = self._know(broker)
            if self._both.from_latest:
                self._initial = dict(known.ends)
            else:
                self._initial = dict.fromkeys(known.ends, 0)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._both.options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with BrokerClient(self._both.options.connection) as broker:
            self._target = self._know(broker).ends

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> OffsetJson:  # noqa: N802
        with BrokerClient(self._both.options.connection) as broker:
            known = self._know(broker)
        froms = {key: mark.next for key, mark in decode_marks(start).items()}
        froms |= {key: 0 for key in known.ends if key not in froms}
        ends = dict(known.ends)
        if self._target is not None:
            ends = {key: min(at, self._target.get(key, 0)) for key, at in ends.items()}
        most = None if isinstance(limit, ReadAllAvailable) else self._both.options.max_offsets
        return dict(plan_end(froms, ends, most))

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[InputPartition]:
        both = self._both
        before = {key: mark.next for key, mark in decode_marks(start).items()}
        parts: list[InputPartition] = []
        with BrokerClient(both.options.connection) as broker:
            known = self._know(broker)
            spans: dict[str, tuple[Head, int, int]] = {}
            for key, mark in decode_marks(end).items():
                first, stop = before.get(key, 0), mark.next
                if stop <= first:
                    continue
                head = known.heads.get(key)
                seam = stop
                if head is not None:
                    seam = _live_from(broker, known.table, head, both.options.fail_on_data_loss)
                    spans[key] = (head, max(first, seam), stop)
                elif key not in known.ends and both.options.fail_on_data_loss:
                    raise DataLoss(
                        f"queue {queue_of(key)} was deleted; offsets {first} to {stop - 1} of it are due, "
                        "and the lake does not have them"
                    )
                parts += _lake_parts(known, key, first, min(stop, seam))
            return [*parts, *both.live(broker, spans)] or [Slice("", 0, 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._both.read(partition)

    def commit(self, end: Mapping[str, object]) -> None:
        group = self._both.options.consumer_group
        if group:
            with BrokerClient(self._both.options.connection) as broker:
                for key, mark in decode_marks(end).items():
                    if "~" not in key.rpartition("#")[2]:
                        broker.mirror(queue_of(key), group, mark.next)

    def reportLatestOffset(self) -> OffsetJson:  # noqa: N802
        with BrokerClient(self._both.options.connection) as broker:
            return dict(self._know(broker).ends)

    def _know(self, broker: BrokerClient) -> _Known:
        storage, table = self._both.open()
        files = table.files()
        kept = {file.partition["queue"] for file in files}
        heads = {head.key: head for head in self._both.heads(broker, kept)}
        ends = {key: head.next for key, head in heads.items()}
        living = {position_key(head.name, head.number) for head in heads.values()}
        names = self._both.names(list(heads.values()), kept)
        for file in files:
            queue, ids = file.partition["queue"], file.bounds.get("queue_id")
            if queue in names and ids is not None and f"{queue}#{ids[0]}" not in living:
                key = f"{queue}#~{ids[0]}"
                ends[key] = max(ends.get(key, 0), file.bounds["offset"][1] + 1)
        return _Known(storage, table, files, heads, ends)


def _live_from(broker: BrokerClient, table: Table, head: Head, fail: bool) -> int:
    """The offset where the live queue takes over from the lake."""
    position = table.position(position_key(head.name, head.number))
    if position is None:
        return head.first
    if fail:
        check_loss(broker, head, position)
    return max(min(position.next, head.next), head.first)


def _lake_parts(known: _Known, key: str, first: int, stop: int) -> Iterator[LakePart]:
    queue, _, number = key.rpartition("#")
    queue_id = int(number.removeprefix("~")) % QUEUE_IDS
    for file in known.files if stop > first else ():
        if (
            file.partition["queue"] == queue
            and file.may_hold("queue_id", queue_id, queue_id)
            and file.may_hold("offset", first, stop - 1)
        ):
            yield LakePart(known.storage.full(file.path), queue, queue_id, first, stop)


def _lake_rows(part: LakePart, columns: Sequence[str], partition: str) -> Iterator[pa.RecordBatch]:
    needed = {*columns, "offset", "queue_id", "created_at", "partition"}
    try:
        opened = read_file(part.address)
    except FileNotFoundError:
        raise HoltSparkError(
            f"{part.address} is gone: compaction replaced it while the query ran. Run the query again, or "
            "let the archive keep such files for a while: --keep-removed 1h"
        ) from None
    with opened:
        names = [name for name in opened.schema_arrow.names if name in needed]
        groups = [
            number
            for number in range(opened.num_row_groups)
            if _overlaps(opened.metadata.row_group(number), part)
        ]
        for batch in opened.iter_batches(row_groups=groups, columns=names):
            chosen = batch.filter(_mask(batch, part))
            if partition:
                chosen = chosen.filter(pc.equal(chosen.column("partition"), partition))
            if chosen.num_rows:
                queue = pa.repeat(pa.scalar(part.queue), chosen.num_rows)
                if "queue" not in chosen.schema.names:
                    chosen = chosen.append_column("queue", queue)
                yield chosen.select([name for name in columns if name in chosen.schema.names])


def _overlaps(group: pq.RowGroupMetaData, part: LakePart) -> bool:
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "offset" and column.is_stats_set:
            return bool(column.statistics.min < part.stop and column.statistics.max >= part.first)
    return True


def _mask(batch: pa.RecordBatch, part: LakePart) -> pa.Array:
    at = batch.column("offset")
    mask = pc.and_(pc.greater_equal(at, part.first), pc.less(at, part.stop))
    if part.queue_id is not None:
        mask = pc.and_(mask, pc.equal(batch.column("queue_id"), part.queue_id))
    if part.from_us is not None or part.to_us is not None:
        when = batch.column("created_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        if part.from_us is not None:
            mask = pc.and_(mask, pc.greater_equal(when, part.from_us))
        if part.to_us is not None:
            mask = pc.and_(mask, pc.less(when, part.to_us))
    return mask


def _pairs(text: str) -> dict[str, str] | None:
    """Parse ``uri=…,table=a.b`` into a dict."""
    if not text:
        return None
    if not all("=" in one for one in text.split(",")):
        raise InvalidOption("option lakeCatalog: write it as uri=…,table=namespace.name")
    return dict(one.strip().partition("=")[::2] for one in text.split(","))
