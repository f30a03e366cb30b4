"""A Spark program to be killed: a query copies a queue into a second one, jobs archive it in every format."""

import os
import sys
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from lake_support import FORMATS
from spark_support import QUICK

from holtmq.spark import session
from holtmq.spark.jobs.archive import archive
from holtmq.spark.jobs.running import Setting
from holtmq.spark.lake.writer import Care


def copy_options(url: str) -> dict[str, str]:
    return {"url": url, "queue": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "70"}


def main(url: str, folder: Path) -> None:
    spark = session("crash", "local[2]", **QUICK)
    source = spark.readStream.format("holtmq").options(**copy_options(url))
    copied = source.load().select("payload", "partition").writeStream.format("holtmq")
    copied = copied.options(url=url, queue="out").option(
        "checkpointLocation", str(folder / "checkpoints" / "copy")
    )
    query = copied.trigger(processingTime="0 seconds").start()

    def keep_archiving(format: str) -> object:
        setting = Setting(url, "local[2]", every=0.05, retry_timeout="2m")
        care = Care(compact_from=3)
        lake = str(folder / format)
        return archive(setting, "in", lake, format=format, group=format, max_rows=70, care=care)

    with ThreadPoolExecutor(len(FORMATS)) as pool:
        ended, _ = wait([pool.submit(keep_archiving, format) for format in FORMATS], None, FIRST_COMPLETED)
        print(query.exception(), *(job.exception() or job.result() for job in ended), flush=True)
        os._exit(3)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
