"""A client of Spark Connect, for the tests: what the connector, the lake and the jobs do without a
``sparkContext``."""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from holtmq.spark import register, report_to, session
from holtmq.spark.jobs.archive import archive
from holtmq.spark.jobs.declared import load_pipeline
from holtmq.spark.jobs.declared_run import run_pipeline
from holtmq.spark.jobs.rollup import rollup
from holtmq.spark.jobs.running import Setting
from holtmq.spark.lake import table

SERVER = "sc://localhost:15002"
DOUBLED = """
[sources.orders]
queue = "orders"
payload_schema = "amount BIGINT"

[steps.doubled]
sql = "SELECT amount * 2 AS amount FROM orders"

[sinks.out]
from = "doubled"
queue = "doubled"
"""


def main(url: str, folder: str) -> None:
    SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark = session(master=SERVER)
    assert "connect" in type(spark).__module__, "this is no Connect session"
    try:
        connector(spark, url, f"{folder}/copy")
        jobs(spark, url, Path(folder))
    finally:
        spark.stop()  # else the listener's thread keeps the process alive


def connector(spark: SparkSession, url: str, checkpoint: str) -> None:
    register(spark, url, database="connected", pattern="orders")
    report_to(spark, url)
    print("rows", spark.read.format("holtmq").option("url", url).option("queue", "orders").load().count())
    print("table", spark.sql("SELECT count(*) FROM connected.orders").collect()[0][0])
    stream = spark.readStream.format("holtmq").option("url", url).option("queue", "orders")
    writer = stream.option("startingOffsets", "earliest").load().select("payload").writeStream
    writer = writer.format("holtmq").option("url", url).option("queue", "copies").queryName("copy")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    print("ended", query.awaitTermination(300))


def jobs(spark: SparkSession, url: str, folder: Path) -> None:
    setting, lake = Setting(url, SERVER), str(folder / "lake")
    print("archived", archive(setting, "orders", lake)["lake_rows"])
    print("union", table(spark, lake, url, "orders").count())
    relation = spark.read.format("holtmq").option("url", url).option("queue", "orders").option("lake", lake)
    print("relation", relation.load().count())
    print("rolled", rollup(setting, "orders", lake, partial=True)["queues"])
    (folder / "doubled.toml").write_text(DOUBLED)
    done = run_pipeline(setting, load_pipeline(folder / "doubled.toml"), str(folder / "doubled"))
    sink = done["sinks"]["out"]  # type: ignore[index]
    print("run", sink["rows_in"], sink["rows_out"])


if __name__ == "__main__":
    main(*sys.argv[1:])
