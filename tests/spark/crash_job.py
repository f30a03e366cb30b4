"""A Spark program to be killed: one query archives a queue, another copies it into a second one, for ever."""

import sys
from pathlib import Path

from spark_support import QUICK

from holtmq.spark import session
from holtmq.spark.jobs.running import Setting
from holtmq.spark.lake import Lake


def copy_options(url: str) -> dict[str, str]:
    return {"url": url, "queue": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "70"}


def main(url: str, folder: Path) -> None:
    spark = session("crash", "local[2]", **QUICK)
    setting = Setting(url, "local[2]")
    lake = Lake(spark, str(folder / "lake"))
    lake.settle()

    def add(batch, number) -> None:  # type: ignore[no-untyped-def]
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        lake.add(batch, query, number)

    source = spark.readStream.format("holtmq").options(**copy_options(setting.url))
    checkpoints = folder / "checkpoints"
    archived = source.load().writeStream.foreachBatch(add)
    copied = source.load().select("payload", "partition").writeStream.format("holtmq")
    queries = [
        archived.option("checkpointLocation", str(checkpoints / "archive")).trigger(
            processingTime="0 seconds"
        ),
        copied.options(url=url, queue="out")
        .option("checkpointLocation", str(checkpoints / "copy"))
        .trigger(processingTime="0 seconds"),
    ]
    running = [query.start() for query in queries]
    (folder / "started").touch()
    spark.streams.awaitAnyTermination()
    for query in running:
        print(query.exception())
    sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
