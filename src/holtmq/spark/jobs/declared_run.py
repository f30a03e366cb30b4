"""Running a declared pipeline: its views, its sinks as queries, until they end or are stopped.

Owns: turning a checked file into running queries and a summary. Must not touch: the file's grammar.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from holtmq.spark.errors import our_words
from holtmq.spark.jobs.declared import Pipeline, Sink, Source
from holtmq.spark.jobs.following import OBSERVED, QueryFigures
from holtmq.spark.jobs.running import Progress, Setting
from holtmq.spark.jobs.stopping import Stop
from holtmq.spark.lake import Lake
from holtmq.spark.lake.sink import TableSink, query_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS: Final = 0.2


def check_pipeline(setting: Setting, pipeline: Pipeline) -> dict[str, object]:
    """Resolve every step and sink without running any; return the columns each sink would get."""
    spark = setting.session(f"check {pipeline.name}")
    _views(spark, setting, pipeline)
    sinks = {sink.name: _origin(spark, pipeline, sink).columns for sink in pipeline.sinks}
    return {
        "job": "check",
        "pipeline": pipeline.name,
        "sources": len(pipeline.sources),
        "steps": len(pipeline.steps),
        "sinks": sinks,
    }


def run_pipeline(
    setting: Setting, pipeline: Pipeline, checkpoint: str, stop: Stop | None = None
) -> dict[str, object]:
    """Run every sink of the pipeline as its own query, once or until stopped."""
    spark = setting.session(f"run {pipeline.name}")
    for key, value in pipeline.conf.items():
        spark.conf.set(key, value)
    _views(spark, setting, pipeline)
    began = time.monotonic()
    progress = Progress(setting.out)
    figures = {sink.name: QueryFigures(sink.name) for sink in pipeline.sinks}
    with ExitStack() as open_sinks, Stop() if stop is None else stop as stopping:
        running: dict[str, StreamingQuery] = {}
        try:
            for sink in pipeline.sinks:
                running[sink.name] = _start(spark, setting, pipeline, sink, checkpoint, open_sinks)
            while any(query.isActive for query in running.values()):
                ended = stopping.wait(_POLL_SECONDS)
                for name, query in running.items():
                    figures[name].take(query)
                setting.watch(_figures(figures.values()))
                progress.say(f"{pipeline.name}: " + "; ".join(one.line() for one in figures.values()))
                if ended or any(query.exception() is not None for query in running.values()):
                    break
            if stopping:
                progress.note(f"{pipeline.name}: stopping ({stopping.reason})")
                _let_batches_end(running)
        finally:
            for query in running.values():
                query.stop()
            progress.end()
        for name, query in running.items():
            error = query.exception()
            if error is not None:
                raise error
            figures[name].take(query)
    summary: dict[str, object] = {
        "job": "run",
        "pipeline": pipeline.name,
        "sinks": {name: one.summary() for name, one in figures.items()},
        "seconds": round(time.monotonic() - began, 2),
    }
    return summary | ({"stopped": stopping.reason} if stopping else {})


def _figures(queries: Iterable[QueryFigures]) -> dict[str, float]:
    found = list(queries)
    return {
        "rows": sum(sum(one.rows_out.values()) for one in found),
        "batches": sum(len(one.rows_in) for one in found),
        "behind": sum(one.lag or 0 for one in found),
    }


def _let_batches_end(running: "dict[str, StreamingQuery]") -> None:
    """Wait, up to a limit, until no query is in the middle of a batch."""
    deadline = time.monotonic() + 30
    for query in running.values():
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def _views(spark: "SparkSession", setting: Setting, pipeline: Pipeline) -> None:
    from pyspark.errors import PySparkException

    for source in pipeline.sources:
        try:
            _frame(spark, setting, source).createOrReplaceTempView(source.name)
        except PySparkException as error:
            raise pipeline.file.refuse(f"sources.{source.name}", our_words(str(error))) from None
    for step in pipeline.steps:
        try:
            spark.sql(step.sql).createOrReplaceTempView(step.name)
        except PySparkException as error:
            raise pipeline.file.refuse(f"steps.{step.name}.sql", our_words(str(error))) from None


def _frame(spark: "SparkSession", setting: Setting, source: Source) -> "DataFrame":
    if source.lake:
        return Lake(spark, source.lake).frame()
    options = {**setting.source, "startingOffsets": "earliest", **source.options}
    frame = spark.readStream.format("holtmq").options(**options).load()
    return frame if source.watermark is None else frame.withWatermark(*source.watermark)


def _origin(spark: "SparkSession", pipeline: Pipeline, sink: Sink) -> "DataFrame":
    frame = spark.table(sink.origin)
    if not frame.isStreaming:
        raise pipeline.file.refuse(
            f"sinks.{sink.name}.from", f"{sink.origin} has no stream in it: read a queue somewhere"
        )
    unknown = [name for name in sink.partition_by if name not in frame.columns]
    if unknown:
        raise pipeline.file.refuse(
            f"sinks.{sink.name}.partition_by",
            f"{sink.origin} has no column {unknown[0]!r}; it has {', '.join(frame.columns)}",
        )
    if sink.queue and "payload" not in frame.columns:  # the whole row is the message
        frame = frame.selectExpr("to_json(struct(*)) AS payload")
    return frame


def _start(
    spark: "SparkSession",
    setting: Setting,
    pipeline: Pipeline,
    sink: Sink,
    checkpoint: str,
    open_sinks: ExitStack,
) -> "StreamingQuery":
    from pyspark.sql import functions as sql

    frame = _origin(spark, pipeline, sink)
    counted = frame.observe(OBSERVED, sql.count(sql.lit(1)).alias("rows"))
    writer = counted.writeStream.outputMode(sink.mode).queryName(f"{pipeline.name}-{sink.name}")
    if sink.queue and sink.mode == "append":
        writer = writer.format("holtmq").options(**setting.source, queue=sink.queue)
    elif sink.queue:
        # Spark accepts a Python sink in append mode only; a numbered batch write is exactly once as well.
        writer = writer.foreachBatch(
            _updates(setting, sink.queue, f"{pipeline.name}-{sink.name}:{checkpoint}")
        )
    elif sink.lake and sink.format == "parquet":
        writer = writer.format("parquet").option("path", sink.lake).partitionBy(*sink.partition_by)
    elif sink.lake:
        table = open_sinks.enter_context(
            TableSink(sink.lake, sink.format, frame.schema, sink.partition_by, f"{pipeline.name}-{sink.name}")
        )
        writer = writer.foreachBatch(table.add)
    else:
        writer = writer.format("console").option("truncate", "false")
    writer = writer.option("checkpointLocation", f"{checkpoint.rstrip('/')}/{sink.name}")
    if setting.every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{max(setting.every, 0.001):g} seconds").start()


def _updates(setting: Setting, queue: str, name: str) -> Callable[["DataFrame", int], None]:
    def write(batch: "DataFrame", number: int) -> None:
        query = query_id(batch) or name
        options = {**setting.source, "queue": queue, "writeId": query, "writeBatch": str(number)}
        batch.write.format("holtmq").mode("append").options(**options).save()

    return write
