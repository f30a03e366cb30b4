"""Exactly once, the hard way: kill -9 of the Spark driver and of the broker at random moments."""

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from crash_job import copy_options
from lake_support import FORMATS, ids
from pyspark.sql import SparkSession
from spark_processes import Broker, Process, push_until_taken, until

from holtmq.spark.jobs.archive import archive
from holtmq.spark.jobs.running import Setting

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.xdist_group("spark")]

ROUNDS = int(os.environ.get("HOLT_SPARK_CRASH_ROUNDS", "1"))


def offset(broker: Broker, queue: str) -> int:
    try:
        answer = httpx.get(f"{broker.url}/api/v1/ranges", params={"names": queue}, timeout=10)
    except httpx.TransportError:
        return 0
    return int(answer.json()["queues"][0]["nextOffset"]) if answer.status_code == 200 else 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path)
    yield one
    one.kill()


@pytest.mark.timeout(240 + 360 * ROUNDS)
def test_killing_spark_and_the_broker_loses_nothing_and_repeats_nothing(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    dice = random.Random(seed)
    print(f"seed {seed}")  # shown when it fails
    pushed = 0
    script = str(Path(__file__).with_name("crash_job.py"))
    for number in range(ROUNDS):
        before = offset(broker, "out")
        job = Process([sys.executable, script, broker.url, str(tmp_path)], tmp_path / f"job-{number}.log")
        try:
            push_until_taken(broker, range(pushed, pushed + 300))
            pushed += 300

            def moving(job: Process = job, before: int = before) -> bool:
                assert job.alive, job.log.read_text()[-3000:]
                return offset(broker, "out") > before

            until(moving, "the job copies", 300)
            for _ in range(3):
                push_until_taken(broker, range(pushed, pushed + 200))
                pushed += 200
                time.sleep(dice.uniform(0, 0.8))
                broker.kill()
                broker.start()
            time.sleep(dice.uniform(0, 1.5))
        finally:
            job.kill()

    out = _copied(spark, broker, tmp_path)
    assert sorted(out) == list(range(pushed))
    for format in FORMATS:
        archive(Setting(broker.url), "in", str(tmp_path / format), engine="arrow")
        assert ids(tmp_path / format, format) == list(range(pushed)), format


def _copied(spark: SparkSession, broker: Broker, folder: Path) -> list[int]:
    """Finish the copy in this process, on its checkpoint; the ids in the queue."""
    source = spark.readStream.format("holtmq").options(
        **copy_options(broker.url) | {"maxOffsetsPerTrigger": "5000"}
    )
    copied = source.load().select("payload", "partition").writeStream.format("holtmq")
    query = copied.options(url=broker.url, queue="out").option(
        "checkpointLocation", str(folder / "checkpoints" / "copy")
    )
    assert query.trigger(availableNow=True).start().awaitTermination(300), "never caught up"
    found = spark.read.format("holtmq").options(url=broker.url, queue="out").load()
    column = "CAST(get_json_object(CAST(payload AS STRING), '$.id') AS BIGINT) AS id"
    return [row.id for row in found.selectExpr(column).collect()]
