"""Which offsets an archive batch takes: from where the lake ends to what the broker has now.

Owns: the plan of a batch, and the check that retention did not overtake the lake. Must not touch: files.
Needs no Spark: Spark tasks and the threads of ``--engine arrow`` use the same plan.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holtmq.spark.client import BrokerClient, Fetch
from holtmq.spark.errors import DataLoss
from holtmq.spark.lake.model import QUEUE_IDS, Position, position_key
from holtmq.spark.offsets import Head, describe_gap
from holtmq.spark.options import Connection
from holtmq.spark.planning import Span, plan_end, plan_slices

_ROWS_PER_TASK: Final = 50_000  # fewer do not justify another task and another small file
MESSAGE: Final = pa.schema(
    [
        ("partition", pa.string()),
        ("offset", pa.int64()),
        ("message_id", pa.string()),
        ("transaction_id", pa.string()),
        ("trace_id", pa.string()),
        ("created_at", pa.timestamp("us", "UTC")),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("payload", pa.binary()),
        ("exchange", pa.string()),
        ("routing_key", pa.string()),
        ("content_type", pa.string()),
        ("priority", pa.int32()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("queue_id", pa.int64()),
        ("queue", pa.string()),
        ("date", pa.date32()),
    ]
)
FETCHED: Final = tuple(name for name in MESSAGE.names if name not in ("queue", "queue_id", "date"))
PARTITIONED: Final = ("queue", "date")
BOUNDED: Final = ("offset", "queue_id", "created_at")


@dataclass(frozen=True, slots=True)
class Slice:
    """One task's part: offsets ``first`` to ``stop - 1``, ``gone`` of them missing when it was planned."""

    queue: str
    number: int
    first: int
    stop: int
    gone: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch: what to read, where the lake ends afterwards, and how much is left."""

    slices: list[Slice] = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)  # queue name -> offset, for the consumer group
    behind: int = 0


def plan_batch(
    broker: BrokerClient,
    heads: Sequence[Head],
    known: Mapping[str, Position],
    max_rows: int,
    tasks: int,
    *,
    until: Mapping[str, int],
    from_latest: bool = False,
    fail_on_data_loss: bool = True,
) -> Plan:
    """The next batch; one without slices when the lake is up to date.

    ``known`` has the lake's positions by key. A queue that is not in it starts at its oldest message, or
    with ``from_latest`` at its end.
    ``until`` says, by the head's key, how far this run goes; a queue missing there is left to the next run.
    """
    starts: dict[str, int] = {}
    heads = [head for head in heads if head.key in until]
    for head in heads:
        position = known.get(position_key(head.name, head.number))
        if position is None:
            starts[head.key] = head.next if from_latest else head.first
            continue
        if fail_on_data_loss:
            check_loss(broker, head, position)
        starts[head.key] = min(max(position.next, head.first), head.next)
    ends = plan_end(starts, {head.key: min(head.next, until[head.key]) for head in heads}, max_rows)
    spans = [Span(head.key, starts[head.key], ends[head.key]) for head in heads]
    rows = sum(span.size for span in spans)
    wanted = max(1, min(tasks, math.ceil(rows / _ROWS_PER_TASK)))
    by_key = {head.key: head for head in heads}
    slices: list[Slice] = []
    for span in plan_slices(spans, wanted, max(_ROWS_PER_TASK, math.ceil(max_rows / max(1, tasks)))):
        head = by_key[span.key]
        gone = 0
        if _has_holes(head):
            (found,), _ = broker.counts(head.name, (span.first, span.stop))
            gone = span.size - found
        slices.append(Slice(head.name, head.number, span.first, span.stop, gone))
    plan = Plan(slices, behind=sum(head.next - ends[head.key] for head in heads))
    for head in heads:
        key = position_key(head.name, head.number)
        if ends[head.key] > starts[head.key] or key not in known:
            plan.positions[key] = _after(broker, head, ends[head.key])
            plan.ends[head.name] = ends[head.key]
    return plan


def _has_holes(head: Head) -> bool:
    return head.live < head.next - head.first


def _after(broker: BrokerClient, head: Head, end: int) -> Position:
    if not _has_holes(head):
        return Position(end, head.next, head.next - end)
    (waiting,), _ = broker.counts(head.name, (end, max(end, head.next)))
    return Position(end, head.next, waiting)


def check_loss(broker: BrokerClient, head: Head, position: Position) -> None:
    """Raise an error that names the gap if retention or a purge overtook the lake."""
    if position.next > head.next:
        raise DataLoss(
            f"queue {head.name} ends at {head.next}, and the lake stood at {position.next} of it: "
            "the broker lost messages, or this is another broker"
        )
    if position.next >= head.first and not _has_holes(head):
        return
    (found,), oldest = broker.counts(head.name, (position.next, head.next))
    expected = position.expected(head.next)
    if found < expected:
        raise DataLoss(describe_gap(head.name, position.next, head.next, expected, found, oldest))


def read_slice(connection: Connection, part: Slice, *, strict: bool = True) -> Iterator[pa.RecordBatch]:
    """The slice's rows with all columns of the lake."""
    wanted = Fetch(part.queue, part.number, part.first, part.stop, FETCHED)
    with BrokerClient(connection) as broker:
        for fetched in broker.fetch(wanted):
            if strict and fetched.gone > part.gone:
                raise DataLoss(
                    f"retention overtook the archive while it read offsets {part.first} to {part.stop - 1} "
                    f"of queue {part.queue}: {fetched.gone - part.gone} messages are gone"
                )
            if fetched.rows.num_rows:
                yield as_message(fetched.rows, part.queue, part.number)


def as_message(rows: pa.RecordBatch, queue: str, number: int) -> pa.RecordBatch:
    """Convert the broker's rows to rows of the lake: add the queue, its number and the day."""
    count = rows.num_rows
    arrays = [rows.column(name) for name in FETCHED]
    arrays = [
        array if array.type == MESSAGE.field(name).type else array.cast(MESSAGE.field(name).type)
        for name, array in zip(FETCHED, arrays, strict=True)
    ]
    days = rows.column("created_at").cast(pa.timestamp("us", "UTC"))
    arrays += [
        pa.repeat(pa.scalar(number % QUEUE_IDS, pa.int64()), count),
        pa.repeat(pa.scalar(queue), count),
        pc.floor_temporal(days, unit="day").cast(pa.timestamp("us")).cast(pa.date32()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MESSAGE)
