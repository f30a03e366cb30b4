"""The data source: Spark's calls, answered from the broker.

Owns: the DataSource and its readers. Must not touch: arithmetic (``planning``), HTTP (``client``). Readers
are pickled and shipped: options are their only lasting state.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holtmq.spark import FORMAT, offsets, tables
from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import DataLoss, InvalidOption
from holtmq.spark.exchange_sink import ExchangeBatchWriter, ExchangeStreamWriter
from holtmq.spark.offsets import Head, Mark, OffsetJson
from holtmq.spark.options import SourceOptions, is_work, sink_options, source_options, work_options
from holtmq.spark.planning import Span, hold_back, plan_end, plan_end_by_bytes, plan_slices
from holtmq.spark.relations import Relation
from holtmq.spark.rows import RowReader, Slice
from holtmq.spark.schema import Layout, layout, source_ddl
from holtmq.spark.sink import HoltBatchWriter, HoltStreamWriter
from holtmq.spark.work_source import WorkStreamReader, work_ddl


class HoltDataSource(DataSource):
    """``format("holtmq")``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        table = tables.table_options(self.options)
        if is_work(self.options if table is None else table):
            return work_ddl(work_options(self.options if table is None else table))
        if table is None:
            return source_ddl(source_options(self.options, streaming=None))
        return tables.with_comment(
            source_ddl(source_options(table, streaming=None)), tables.comment_of(table)
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        given = self._given(schema)
        if any(name.lower() == "lake" for name in given):
            from holtmq.spark.lake.relation import batch_reader

            return batch_reader(given, schema)
        if is_work(given):
            raise InvalidOption(
                "option workQueue: a batch read takes messages and has no moment to acknowledge them; "
                "use readStream, with trigger(availableNow=True) for what is there now"
            )
        return HoltReader(source_options(given, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        given = self._given(schema)
        if any(name.lower() == "lake" for name in given):
            from holtmq.spark.lake.relation import stream_reader

            return stream_reader(given, schema)
        if is_work(given):
            return WorkStreamReader(work_options(given), schema)
        return HoltStreamReader(source_options(given, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        table = bool(tables.options_of(schema))
        options = sink_options(self._given(schema))
        if options.exchange is not None:
            return ExchangeBatchWriter(options, schema, overwrite)
        return HoltBatchWriter(options, schema, overwrite, table)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = sink_options(self._given(schema))
        if options.exchange is not None:
            return ExchangeStreamWriter(options, schema)
        return HoltStreamWriter(options, schema)

    def _given(self, schema: StructType) -> Mapping[str, str]:
        """The options of this query merged over those of its table."""
        if not self.options and not tables.options_of(schema):
            raise InvalidOption(
                "Spark does not hand a table's options to a Python source. Make the table without a list of "
                "columns and without AS SELECT (its options are kept with its columns then), or use "
                "CREATE TEMPORARY VIEW … USING holtmq OPTIONS (…)"
            )
        return {**tables.options_of(schema), **self.options}


class HoltReader(DataSourceReader):
    """A batch read: what is stored now, between two bounds.

    It has no ``pushFilters`` on purpose. Spark 4.3 caches the planned read with the table, not with the
    query: a second query over the same DataFrame got the rows of the first one's filter. Use options to
    narrow a read.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._rows = RowReader(options, layout(options, schema), schema)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with BrokerClient(options.connection) as broker:
            heads = broker.heads(options.selection)
            fail = options.fail_on_data_loss
            starts = _bounds(broker, options, heads, "starting")
            starts = offsets.check_inside(starts, heads, "startingOffsets", fail)
            ends = _bounds(broker, options, heads, "ending")
            ends = offsets.check_inside(ends, heads, "endingOffsets", fail=False)
            spans = [Span(head.key, starts[head.key], ends[head.key]) for head in heads]
            slices = plan_slices(spans, options.min_partitions, options.max_records)
            return [*_slices(broker, slices)] or [Slice("", 0, 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        return self._rows.read(partition)


class HoltStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Planning state is only in the driver's worker; offsets are in the checkpoint."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._layout: Layout = layout(options, schema)
        self._rows = RowReader(options, self._layout, schema)
        self._initial: OffsetJson | None = None
        self._target: dict[str, int] | None = None  # AvailableNow: where this run ends
        self._last_batch = time.monotonic()

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        # Spark asks more than once; "latest" must not move in between.
        if self._initial is None:
            options = self._options
            with BrokerClient(options.connection) as broker:
                heads = broker.heads(options.selection)
                starts = _bounds(broker, options, heads, "starting")
                starts = offsets.check_inside(starts, heads, "startingOffsets", options.fail_on_data_loss)
                self._initial = _first_marks(broker, options, heads, starts)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Tells Spark that there is a limit; the options have the complete limit."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_offsets is None else ReadMinRows(options.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with BrokerClient(self._options.connection) as broker:
            self._target = {head.key: head.next for head in broker.heads(self._options.selection)}

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> OffsetJson:  # noqa: N802
        options = self._options
        marks = offsets.decode_marks(start)
        with BrokerClient(options.connection) as broker:
            heads = {head.key: head for head in broker.heads(options.selection)}
            self._check(broker, marks, heads)
            ends = {key: head.next for key, head in heads.items()}
            if self._target is not None:
                ends = {key: min(at, self._target.get(key, 0)) for key, at in ends.items()}
            froms = {key: mark.next for key, mark in marks.items()}
            # A queue created after the query started is read from its current first offset.
            froms |= {key: head.first for key, head in heads.items() if key not in marks}
            planned = self._plan(broker, froms, ends, limit)
            if all(planned[key] == froms[key] for key in planned):
                # Exactly the same offset: a different one would cause a batch without rows.
                return cast(OffsetJson, dict(start))
            return self._marks(broker, start, froms, planned, heads)

    def _plan(
        self, broker: BrokerClient, froms: dict[str, int], ends: dict[str, int], limit: ReadLimit
    ) -> dict[str, int]:
        options = self._options
        # AvailableNow without limits and Trigger.Once arrive as ReadAllAvailable, whatever the options say.
        if isinstance(limit, ReadAllAvailable):
            return plan_end(froms, ends, None)
        waited = time.monotonic() - self._last_batch
        if (
            options.min_offsets is not None
            and self._target is None
            and hold_back(froms, ends, options.min_offsets, waited, options.max_delay)
        ):
            return dict(froms)
        self._last_batch = time.monotonic()
        planned = plan_end(froms, ends, options.max_offsets)
        if options.max_bytes is None:
            return planned

        def measure(key: str, first: int, stop: int, most: int) -> tuple[int, int]:
            return broker.fit(offsets.queue_of(key), first, stop, most)

        return plan_end_by_bytes(froms, planned, options.max_bytes, measure)

    def _marks(
        self,
        broker: BrokerClient,
        start: Mapping[str, object],
        froms: Mapping[str, int],
        planned: Mapping[str, int],
        heads: Mapping[str, Head],
    ) -> OffsetJson:
        marks: dict[str, Mark] = {}
        for key, end in planned.items():
            head, first = heads.get(key), froms[key]
            if head is None or self._options.relation is not Relation.MESSAGES:
                marks[key] = Mark(end, end - first, end, 0, first)
            elif head.live == head.next - head.first and first >= head.first:  # no holes: nothing to count
                marks[key] = Mark(end, end - first, head.next, head.next - end, first)
            else:
                (rows, waiting), _ = broker.counts(head.name, (first, end, max(end, head.next)))
                marks[key] = Mark(end, rows, max(end, head.next), waiting, first)
        return offsets.encode_marks(start, marks)

    def _check(self, broker: BrokerClient, marks: Mapping[str, Mark], heads: Mapping[str, Head]) -> None:
        """Raise an error that names the gap if retention, a purge or a deletion overtook the query."""
        if not self._options.fail_on_data_loss or self._options.relation is not Relation.MESSAGES:
            return
        for key, mark in marks.items():
            head = heads.get(key)
            name = offsets.queue_of(key)
            if head is None:
                raise DataLoss(
                    f"queue {name} was deleted while the query stood at offset {mark.next} of it "
                    "(failOnDataLoss=false goes on without it)"
                )
            if mark.next > head.next:
                raise DataLoss(f"queue {name} ends at {head.next}, and the query stood at {mark.next} of it")
            if mark.next >= head.first and head.live == head.next - head.first:
                continue  # no holes
            (found,), oldest = broker.counts(name, (mark.next, head.next))
            expected = mark.expected(head.next)
            if found < expected:
                gap = offsets.describe_gap(name, mark.next, head.next, expected, found, oldest)
                raise DataLoss(gap)

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[InputPartition]:
        before = offsets.decode_marks(start)
        after = offsets.decode_marks(end, before)
        options = self._options
        with BrokerClient(options.connection) as broker:
            heads = {head.key: head for head in broker.heads(options.selection)}
            spans = []
            for key, mark in after.items():
                first = mark.next if mark.first is None else mark.first
                if mark.next <= first:
                    continue
                if key not in heads:
                    if options.fail_on_data_loss:
                        raise DataLoss(
                            f"queue {offsets.queue_of(key)} was deleted; {mark.rows} rows of it are due"
                        )
                    continue
                spans.append(Span(key, first, min(mark.next, heads[key].next)))
            slices = _slices(broker, plan_slices(spans, options.min_partitions, options.max_records))
        if options.fail_on_data_loss and options.relation is Relation.MESSAGES:
            for span in spans:
                mine = [part for part in slices if part.queue == heads[span.key].name]
                found = sum(part.stop - part.first - part.gone for part in mine)
                if found < after[span.key].rows:
                    oldest = heads[span.key].first
                    raise DataLoss(
                        offsets.describe_gap(
                            mine[0].queue, span.first, span.stop, after[span.key].rows, found, oldest
                        )
                    )
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark re-runs this on retry and on recovery, so the same slice must give the same rows.
        assert isinstance(partition, Slice)
        return self._rows.read(partition)

    def commit(self, end: Mapping[str, object]) -> None:
        """Mirror the progress to the consumer group. Only a mirror: Spark's offsets are authoritative."""
        group = self._options.consumer_group
        if not group:
            return
        with BrokerClient(self._options.connection) as broker:
            for key, mark in offsets.decode_marks(end).items():
                broker.mirror(offsets.queue_of(key), group, mark.next)

    def reportLatestOffset(self) -> OffsetJson:  # noqa: N802
        with BrokerClient(self._options.connection) as broker:
            found: OffsetJson = {head.key: head.next for head in broker.heads(self._options.selection)}
        # Tells a listener which group to keep current (``listening``).
        return found | ({f"{offsets.GROUP}{group}": 0} if (group := self._options.consumer_group) else {})


def _bounds(broker: BrokerClient, options: SourceOptions, heads: Sequence[Head], side: str) -> dict[str, int]:
    bound = options.starting if side == "starting" else options.ending
    times: dict[str, int] = {}
    if bound.timestamp_us is not None and heads:
        times = broker.offsets_at([head.name for head in heads], bound.timestamp_us)
    names = {head.name for head in heads}
    for name, at_us in bound.timestamps_us:
        if name in names:
            times |= broker.offsets_at([name], at_us)
    option = f"{side}OffsetsByTimestamp" if bound.timestamps_us else f"{side}Offsets"
    return offsets.resolve(bound, heads, times, option)


def _first_marks(
    broker: BrokerClient, options: SourceOptions, heads: Sequence[Head], starts: Mapping[str, int]
) -> OffsetJson:
    """The start of a new query: holes that already exist are no data loss."""
    marks: dict[str, Mark] = {}
    for head in heads:
        at = starts[head.key]
        waiting = head.next - at
        if options.relation is Relation.MESSAGES and head.live < head.next - head.first:
            (waiting,), _ = broker.counts(head.name, (at, head.next))
        marks[head.key] = Mark(at, 0, head.next, waiting)
    return offsets.encode_marks({}, marks)


def _slices(broker: BrokerClient, spans: Sequence[Span]) -> list[Slice]:
    """Slices with the number of holes each has now, so that a reader notices when there are more."""
    by_queue: dict[str, list[Span]] = {}
    for span in spans:
        by_queue.setdefault(span.key, []).append(span)
    slices: list[Slice] = []
    for key, mine in by_queue.items():
        name, _, number = key.rpartition("#")
        counts, _ = broker.counts(name, [mine[0].first, *(span.stop for span in mine)])
        slices += [
            Slice(name, int(number), span.first, span.stop, span.size - found)
            for span, found in zip(mine, counts, strict=True)
        ]
    return slices
