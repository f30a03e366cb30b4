"""``holt pipeline rollup``: figures per minute, queue, partition and group, kept in the lake.

Owns: what is counted and the minutes it covers. Must not touch: the queues. A minute is written once it is
over; writing it again replaces it, so a run that died is simply repeated.
"""

import time
from typing import TYPE_CHECKING, Final

from holtmq.spark.files import Files
from holtmq.spark.jobs.running import Setting, repeat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATE: Final = "_rollup/_until"  # a file for each run, named by the time it reached
_DATA: Final = "_rollup/minutes"
_MINUTE_MS: Final = 60_000
COLUMNS: Final = (
    "minute",
    "queue",
    "partition",
    "group",
    "pushed",
    "bytes",
    "delivered",
    "acked",
    "failed",
    "dead",
    "queued_p50_ms",
    "queued_p95_ms",
    "queued_p99_ms",
)
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


def rollup(setting: Setting, queues: str, lake: str, *, partial: bool = False) -> dict[str, object]:
    """Roll up every minute that is over and not done yet; ``partial`` takes the present one too."""
    spark = setting.session("rollup")
    files = Files(spark, lake)

    def step() -> dict[str, object]:
        runs = [name for name in files.names(_STATE) if name.isdigit()]
        since = max(map(int, runs), default=0)
        now_ms = int(time.time() * 1000)
        until = now_ms if partial else now_ms - now_ms % _MINUTE_MS
        began = time.monotonic()
        rows = _minutes(spark, setting, queues, since - since % _MINUTE_MS, until)
        spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
        writer = rows.selectExpr("*", "to_date(minute) AS date", "date_format(minute, 'HHmm') AS at")
        writer.write.mode("overwrite").partitionBy("date", "at").parquet(files.full(_DATA))
        if str(until) not in runs:
            files.write(f"{_STATE}/{until}", "")
        for name in runs:
            if int(name) < until:
                files.delete(f"{_STATE}/{name}")
        total = read_rollup(spark, lake).where(f"minute >= timestamp_millis({since - since % _MINUTE_MS})")
        sums = total.selectExpr(*(f"coalesce(sum({c}), 0) AS {c}" for c in COLUMNS[4:10])).first()
        assert sums is not None
        return {
            "job": "rollup",
            **sums.asDict(),
            "seconds": round(time.monotonic() - began, 2),
            "lake": files.full(_DATA),
        }

    return repeat(setting, step)


def read_rollup(spark: "SparkSession", lake: str) -> "DataFrame":
    """The figures as a table."""
    files = Files(spark, lake)
    return spark.read.parquet(files.full(_DATA)).select(*[f"`{name}`" for name in COLUMNS])


def _minutes(
    spark: "SparkSession", setting: Setting, queues: str, since_ms: int, until_ms: int
) -> "DataFrame":
    bounds = {"startingTimestamp": str(since_ms), "endingTimestamp": str(until_ms), "failOnDataLoss": "false"}
    names = [name.strip() for name in queues.split(",")]

    def read(suffix: str, columns: str) -> "DataFrame":
        chosen = ",".join(f"{name}{suffix}" for name in names)
        options = {**setting.source, "queue": chosen, "columns": columns, **bounds}
        return spark.read.format("holtmq").options(**options).load()

    pushed = spark.sql(_PUSHED, rows=read("", "queue,partition,created_at,payload"))
    wanted = "queue,partition,group,created_at,delivered_at,settled_at,outcome"
    settled = spark.sql(_SETTLED, rows=read("$deliveries", wanted)).selectExpr(
        "*", "queued[0] AS queued_p50_ms", "queued[1] AS queued_p95_ms", "queued[2] AS queued_p99_ms"
    )
    return pushed.unionByName(settled.drop("queued"), allowMissingColumns=True).select(
        *[f"`{name}`" for name in COLUMNS]
    )
