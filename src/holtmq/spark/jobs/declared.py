"""``holt pipeline run FILE.toml``: a pipeline that is declared, checked before Spark starts, then run.

Owns: the file's grammar, errors that point at a line, and the running of its steps and sinks. Must not touch:
what SQL means; Spark checks that.

    [sources.orders]                     [steps.per_minute]
    queue = "orders"                     sql = "SELECT window, kind, count(*) AS n FROM orders GROUP BY 1, 2"
    payload_schema = "id BIGINT, …"
    watermark = "created_at 10 minutes"  [sinks.counts]
                                         from = "per_minute"
                                         queue = "order-counts"
"""

import re
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holtmq.spark.ddl import split_ddl
from holtmq.spark.errors import HoltSparkError, InvalidOption
from holtmq.spark.jobs.running import Progress, Setting
from holtmq.spark.lake import Lake
from holtmq.spark.options import source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_TABLE: Final = re.compile(r"\s*\[\s*([\w.\-\"]+)\s*\]\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*([\w\-]+)\s*=")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_SOURCE: Final = {
    "queue": "queue",
    "queue_pattern": "queuePattern",
    "namespace": "namespace",
    "task": "task",
    "payload_schema": "payloadSchema",
    "columns": "columns",
    "starting_offsets": "startingOffsets",
    "starting_timestamp": "startingTimestamp",
    "max_offsets": "maxOffsetsPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "fail_on_data_loss": "failOnDataLoss",
    "consumer_group": "consumerGroup",
}
_SOURCE_KEYS: Final = {*_SOURCE, "lake", "watermark"}
_SINK_KEYS: Final = {"from", "queue", "lake", "console", "mode", "partition_by", "format"}
_MODES: Final = ("append", "update", "complete")


class PipelineFileError(HoltSparkError):
    """What is wrong with a pipeline file, with the line it stands on."""


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    options: Mapping[str, str]
    lake: str = ""
    watermark: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Sink:
    name: str
    origin: str
    queue: str = ""
    lake: str = ""
    mode: str = "append"
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    sources: list[Source]
    steps: list[Step]
    sinks: list[Sink]
    conf: dict[str, str] = field(default_factory=dict)


class _File:
    """The parsed file, and where things stand in it."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.lines: dict[str, int] = {}
        table = ""
        for number, line in enumerate(text.splitlines(), 1):
            if match := _TABLE.fullmatch(line):
                table = match[1].replace('"', "")
                self.lines.setdefault(table, number)
            elif match := _KEY.match(line):
                self.lines.setdefault(f"{table}.{match[1]}", number)
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise PipelineFileError(f"{name}: {error}") from None

    def refuse(self, where: str, why: str) -> PipelineFileError:
        at = self.lines.get(where) or self.lines.get(where.rpartition(".")[0])
        return PipelineFileError(f"{self.name}{f', line {at}' if at else ''}: {where}: {why}")

    def tables(self, kind: str) -> dict[str, dict[str, object]]:
        found = self.data.get(kind, {})
        if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
            raise self.refuse(kind, f"write each one as its own table: [{kind}.name]")
        for name in found:
            if not _NAME.fullmatch(name):
                raise self.refuse(f"{kind}.{name}", "a name is letters, digits and _: SQL speaks of it")
        return found

    def text(self, where: str, value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str | int | float):
            raise self.refuse(where, f"must be text or a number, not {value!r}")
        return str(value)

    def only(self, where: str, table: Mapping[str, object], known: set[str]) -> None:
        for key in table:
            if key not in known:
                raise self.refuse(
                    f"{where}.{key}", f"there is no such key; there are {', '.join(sorted(known))}"
                )


def load_pipeline(path: Path) -> Pipeline:
    """Read and check a file; nothing of Spark is needed for that."""
    return parse_pipeline(path.read_text(encoding="utf-8"), path.name)


def parse_pipeline(text: str, name: str) -> Pipeline:
    """The same for text."""
    file = _File(text, name)
    file.only("", file.data, {"name", "sources", "steps", "sinks", "spark"})
    sources = [_source(file, key, table) for key, table in file.tables("sources").items()]
    steps = [_step(file, key, table) for key, table in file.tables("steps").items()]
    known = [source.name for source in sources] + [step.name for step in steps]
    for twice in {key for key in known if known.count(key) > 1}:
        raise file.refuse(f"steps.{twice}", "a source has this name already")
    sinks = [_sink(file, key, table, known) for key, table in file.tables("sinks").items()]
    if not sources or not sinks:
        raise PipelineFileError(f"{name}: a pipeline needs at least one [sources.name] and one [sinks.name]")
    conf = {key: file.text(f"spark.{key}", value) for key, value in file.data.get("spark", {}).items()}
    return Pipeline(str(file.data.get("name", Path(name).stem)), sources, steps, sinks, conf)


def _source(file: _File, name: str, table: Mapping[str, object]) -> Source:
    where = f"sources.{name}"
    file.only(where, table, _SOURCE_KEYS)
    given = {key: file.text(f"{where}.{key}", value) for key, value in table.items()}
    watermark = None
    if "watermark" in given:
        column, _, delay = given["watermark"].partition(" ")
        if not column or not re.fullmatch(r"\d+ \w+", delay.strip()):
            raise file.refuse(f"{where}.watermark", 'write it as "created_at 10 minutes"')
        watermark = (column, delay.strip())
    if "lake" in given:
        return Source(name, {}, given["lake"], watermark)
    options = {_SOURCE[key]: value for key, value in given.items() if key in _SOURCE}
    try:
        source_options(options, streaming=True)
        if "payloadSchema" in options:
            split_ddl(options["payloadSchema"])
    except InvalidOption as error:
        key = next((key for key in given if _SOURCE.get(key, "-") in str(error)), "")
        raise file.refuse(f"{where}.{key}" if key else where, str(error)) from None
    return Source(name, options, "", watermark)


def _step(file: _File, name: str, table: Mapping[str, object]) -> Step:
    file.only(f"steps.{name}", table, {"sql"})
    sql = table.get("sql")
    if not isinstance(sql, str) or not sql.strip():
        raise file.refuse(f"steps.{name}.sql", "a step is a SELECT")
    return Step(name, sql)


def _sink(file: _File, name: str, table: Mapping[str, object], known: list[str]) -> Sink:
    where = f"sinks.{name}"
    file.only(where, table, _SINK_KEYS)
    origin = file.text(f"{where}.from", table.get("from", known[-1] if known else ""))
    if origin not in known:
        raise file.refuse(
            f"{where}.from", f"there is no source or step {origin!r}; there are {', '.join(known)}"
        )
    targets = [key for key in ("queue", "lake", "console") if table.get(key)]
    if len(targets) != 1:
        raise file.refuse(where, "say where to: exactly one of queue, lake, console = true")
    mode = file.text(f"{where}.mode", table.get("mode", "append"))
    if mode not in _MODES:
        raise file.refuse(f"{where}.mode", f"must be one of {', '.join(_MODES)}")
    columns = table.get("partition_by", [])
    if not isinstance(columns, list) or not all(isinstance(one, str) for one in columns):
        raise file.refuse(f"{where}.partition_by", 'must be a list of columns: ["kind"]')
    queue, lake = (file.text(f"{where}.{key}", table.get(key, "")) for key in ("queue", "lake"))
    return Sink(name, origin, queue, lake, mode, tuple(columns))


# -- running -----------------------------------------------------------------------------------------


def run_pipeline(setting: Setting, pipeline: Pipeline, checkpoint: str) -> dict[str, object]:
    """Run every sink of the pipeline as a query of its own, once or for ever."""
    spark = setting.session(f"run {pipeline.name}")
    for key, value in pipeline.conf.items():
        spark.conf.set(key, value)
    for source in pipeline.sources:
        _frame(spark, setting, source).createOrReplaceTempView(source.name)
    for step in pipeline.steps:
        spark.sql(step.sql).createOrReplaceTempView(step.name)
    began = time.monotonic()
    queries = [_start(spark, setting, sink, checkpoint, pipeline.name) for sink in pipeline.sinks]
    progress = Progress(setting.out)
    rows = {sink.name: 0 for sink in pipeline.sinks}
    seen: dict[tuple[str, int], int] = {}
    try:
        while any(query.isActive for query in queries):
            time.sleep(0.2)
            for sink, query in zip(pipeline.sinks, queries, strict=True):
                for one in query.recentProgress:
                    seen[sink.name, one["batchId"]] = one["numInputRows"]
            progress.say(f"{pipeline.name}: {sum(seen.values()):,} rows in {len(seen)} batches")
            if any(query.exception() is not None for query in queries):
                break
    except KeyboardInterrupt:
        progress.say(f"{pipeline.name}: stopping", always=True)
    finally:
        for query in queries:
            query.stop()
        progress.end()
    for sink, query in zip(pipeline.sinks, queries, strict=True):
        error = query.exception()
        if error is not None:
            raise error
        for one in query.recentProgress:
            seen[sink.name, one["batchId"]] = one["numInputRows"]
    for (name, _), count in seen.items():
        rows[name] += count
    return {
        "job": "run",
        "pipeline": pipeline.name,
        "rows": rows,
        "seconds": round(time.monotonic() - began, 2),
    }


def _frame(spark: "SparkSession", setting: Setting, source: Source) -> "DataFrame":
    if source.lake:
        return Lake(spark, source.lake).frame()
    options = {**setting.source, "startingOffsets": "earliest", **source.options}
    frame = spark.readStream.format("holtmq").options(**options).load()
    return frame if source.watermark is None else frame.withWatermark(*source.watermark)


def _start(
    spark: "SparkSession", setting: Setting, sink: Sink, checkpoint: str, pipeline: str
) -> "StreamingQuery":
    frame = spark.table(sink.origin)
    if not frame.isStreaming:
        raise PipelineFileError(
            f"sink {sink.name} reads {sink.origin}, which has no stream in it: use a queue"
        )
    writer = frame.writeStream.outputMode(sink.mode).queryName(f"{pipeline}-{sink.name}")
    if sink.queue:
        columns = set(frame.columns)
        if "payload" not in columns:  # the whole row is the message
            frame = frame.selectExpr("to_json(struct(*)) AS payload")
            writer = frame.writeStream.outputMode(sink.mode).queryName(f"{pipeline}-{sink.name}")
        if sink.mode == "append":
            writer = writer.format("holtmq").options(**setting.source, queue=sink.queue)
        else:
            # Spark takes a Python sink in append mode only; a numbered batch write is as exact.
            name = f"{pipeline}-{sink.name}:{checkpoint}"
            writer = writer.foreachBatch(_updates(setting, sink.queue, name))
    elif sink.lake:
        writer = writer.format("parquet").option("path", sink.lake).partitionBy(*sink.partition_by)
    else:
        writer = writer.format("console").option("truncate", "false")
    writer = writer.option("checkpointLocation", f"{checkpoint.rstrip('/')}/{sink.name}")
    if setting.every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{max(setting.every, 0.001):g} seconds").start()


def _updates(setting: Setting, queue: str, name: str) -> Callable[["DataFrame", int], None]:
    def write(batch: "DataFrame", number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or name
        options = {**setting.source, "queue": queue, "writeId": query, "writeBatch": str(number)}
        batch.write.format("holtmq").mode("append").options(**options).save()

    return write
