"""``holt pipeline rollup``: figures per minute, queue, partition and group, stored in the lake.

Owns: what is counted and which minutes are done. Must not touch: the queues. Each queue has its own position
in time, committed with its figures. A minute is written when it is over; writing it again replaces it, so
a failed run is simply repeated.
"""

import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial as bind
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from holtmq.spark.jobs.running import Setting, repeat
from holtmq.spark.jobs.stopping import Stop
from holtmq.spark.lake.engines import ThreadEngine
from holtmq.spark.lake.frames import Lake
from holtmq.spark.lake.model import DataFile, Position, Table
from holtmq.spark.lake.opening import open_table
from holtmq.spark.lake.staging import stage_frame
from holtmq.spark.lake.storage import Storage
from holtmq.spark.lake.writer import LakeWriter
from holtmq.spark.lake.writing import Layout, aligned, read_file, write_rows
from holtmq.spark.name_lists import join_names, split_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DATA: Final = "_rollup/minutes"
_MINUTE_MS: Final = 60_000
_COUNTS: Final = ("pushed", "bytes", "delivered", "acked", "failed", "dead")
_TIMES: Final = ("queued_p50_ms", "queued_p95_ms", "queued_p99_ms")
COLUMNS: Final = ("minute", "queue", "partition", "group", *_COUNTS, *_TIMES)
SCHEMA: Final = pa.schema(
    [
        ("minute", pa.timestamp("us", "UTC")),
        ("partition", pa.string()),
        ("group", pa.string()),
        *((name, pa.int64()) for name in _COUNTS),
        *((name, pa.float64()) for name in _TIMES),
        ("queue", pa.string()),
        ("date", pa.date32()),
    ]
)
PARTITIONED: Final = ("queue", "date")
_PUSHED: Final = """
    SELECT date_trunc('MINUTE', created_at) AS minute, queue, partition, CAST(NULL AS STRING) AS group,
           count(*) AS pushed, sum(length(payload)) AS bytes
    FROM {rows} GROUP BY 1, 2, 3
"""
_SETTLED: Final = """
    SELECT date_trunc('MINUTE', settled_at) AS minute, queue, partition, group,
           count(*) AS delivered,
           count_if(outcome = 'acked') AS acked,
           count_if(outcome = 'failed') AS failed,
           count_if(outcome = 'dead') AS dead,
           percentile_approx((unix_micros(delivered_at) - unix_micros(created_at)) / 1000D,
                             array(0.5D, 0.95D, 0.99D)) AS queued
    FROM {rows} GROUP BY 1, 2, 3, 4
"""


def rollup(
    setting: Setting,
    queues: str,
    lake: str,
    *,
    partial: bool = False,
    format: str = "",
    stop: Stop | None = None,
) -> dict[str, object]:
    """Roll up every finished minute that is not done yet; ``partial`` includes the current one."""
    spark = setting.session("rollup")
    storage = Storage(posixpath.join(lake, _DATA))
    names = list(split_names(queues))

    def layout(table: Table) -> Layout:
        return Layout(SCHEMA, PARTITIONED, ("minute",), table.in_file)

    done = {"rows": 0, "batches": 0}  # since the job began

    def step() -> dict[str, object]:
        summary, rows = _step(spark, setting, names, writer, storage, partial)
        done["rows"] += rows
        done["batches"] += 1
        setting.watch(dict(done))
        return summary

    opened = bind(open_table, storage, format, create=True, schema=SCHEMA, partitioned=PARTITIONED)
    with LakeWriter(storage, opened, layout, f"rollup of {queues}") as writer:
        return repeat(setting, step, stop)


def read_rollup(spark: "SparkSession", lake: str) -> "DataFrame":
    """The figures as a table."""
    root = posixpath.join(lake, _DATA)
    found = Lake(spark, root, schema=SCHEMA, partitioned=PARTITIONED).frame()
    return found.select(*[f"`{name}`" for name in COLUMNS])


def _step(
    spark: "SparkSession",
    setting: Setting,
    queues: Sequence[str],
    writer: LakeWriter,
    storage: Storage,
    partial: bool,
) -> tuple[dict[str, object], int]:
    """One run: its summary, and how many rows it has counted."""
    began = time.monotonic()
    now_ms = int(time.time() * 1000)
    until = now_ms if partial else now_ms - now_ms % _MINUTE_MS
    since = {name: _since(writer.table, name) for name in queues}
    folder = writer.staging()
    files: list[DataFile] = []
    for start in sorted(set(since.values())):  # queues at the same minute are read together
        chosen = [name for name in queues if since[name] == start]
        files += stage_frame(_minutes(spark, setting, chosen, start, until), writer.layout, folder)
    sums = _sums(storage, folder, files)
    # A partial run wrote the minute this one begins with: replace its figures.
    old = [file for file in writer.table.files() if _overlaps(file, since)]
    files += write_rows(_kept(storage, old, since), writer.layout, folder)
    positions = {_key(name): Position(until, until) for name in queues}
    writer.replace(files, old, positions)
    writer.care(ThreadEngine(1))
    summary = {
        "job": "rollup",
        "queues": len(queues),
        **sums,
        "until": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until / 1000)),
        "seconds": round(time.monotonic() - began, 2),
        "lake": storage.root,
        "format": writer.table.format,
    }
    return summary, sums["pushed"] + sums["delivered"]


def _key(queue: str) -> str:
    return f"rollup:{queue}"


def _since(table: Table, queue: str) -> int:
    """The first minute that is not done, in milliseconds."""
    position = table.position(_key(queue))
    return 0 if position is None else position.next - position.next % _MINUTE_MS


def _overlaps(file: DataFile, since: Mapping[str, int]) -> bool:
    start = since.get(file.partition["queue"])
    return start is not None and file.may_hold("minute", start * 1000, 1 << 62)


def _kept(storage: Storage, files: Sequence[DataFile], since: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    for file in files:
        start = pa.scalar(since[file.partition["queue"]] * 1000, pa.timestamp("us", "UTC"))
        with read_file(storage.full(file.path)) as opened:
            for batch in opened.iter_batches():
                kept = batch.filter(pc.less(batch.column("minute"), start))
                if kept.num_rows:
                    yield _with_partition(aligned(kept, SCHEMA), file.partition)


def _with_partition(batch: pa.RecordBatch, partition: Mapping[str, str]) -> pa.RecordBatch:
    for name in PARTITIONED:
        field = SCHEMA.field(name)
        values = pa.repeat(pa.scalar(partition[name]).cast(field.type), batch.num_rows)
        batch = batch.set_column(SCHEMA.get_field_index(name), field, values)
    return batch


def _sums(storage: Storage, folder: str, files: Sequence[DataFile]) -> dict[str, int]:
    """Figures of this run, from the written files."""
    sums = dict.fromkeys(_COUNTS, 0)
    for file in files:
        with read_file(posixpath.join(folder, file.path)) as opened:
            rows = opened.read(columns=list(_COUNTS))
        for name in _COUNTS:
            sums[name] += pc.sum(rows.column(name)).as_py() or 0
    return sums


def _minutes(
    spark: "SparkSession", setting: Setting, queues: Sequence[str], since_ms: int, until_ms: int
) -> "DataFrame":
    bounds = {"startingTimestamp": str(since_ms), "endingTimestamp": str(until_ms), "failOnDataLoss": "false"}

    def read(suffix: str, columns: str) -> "DataFrame":
        chosen = join_names(f"{name}{suffix}" for name in queues)
        options = {**setting.source, "queue": chosen, "columns": columns, **bounds}
        return spark.read.format("holtmq").options(**options).load()

    pushed = spark.sql(_PUSHED, rows=read("", "queue,partition,created_at,payload"))
    wanted = "queue,partition,group,created_at,delivered_at,settled_at,outcome"
    settled = spark.sql(_SETTLED, rows=read("$deliveries", wanted)).selectExpr(
        "*", "queued[0] AS queued_p50_ms", "queued[1] AS queued_p95_ms", "queued[2] AS queued_p99_ms"
    )
    both = pushed.unionByName(settled.drop("queued"), allowMissingColumns=True)
    return both.selectExpr(*[f"`{name}`" for name in COLUMNS], "to_date(minute) AS date")
