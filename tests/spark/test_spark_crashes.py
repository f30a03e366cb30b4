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
from pyspark.sql import SparkSession
from spark_processes import Broker, Process, until

from holtmq.spark.lake import Lake

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.xdist_group("spark")]

ROUNDS = int(os.environ.get("HOLT_SPARK_CRASH_ROUNDS", "2"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path)
    yield one
    one.kill()


def push(broker: Broker, numbers: range) -> None:
    """Until the broker has them; it may be away meanwhile, and ids make a repeat harmless."""
    items = [
        {"queue": "in", "partition": f"p{n % 4}", "transactionId": f"t{n}", "payload": {"id": n}}
        for n in numbers
    ]
    deadline = time.monotonic() + 300
    while True:
        try:
            answer = httpx.post(f"{broker.url}/api/v1/push", json={"items": items}, timeout=10)
            assert answer.status_code == 201, answer.text
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def offset(broker: Broker, queue: str) -> int:
    try:
        answer = httpx.get(f"{broker.url}/api/v1/ranges", params={"names": queue}, timeout=10)
    except httpx.TransportError:
        return 0
    return int(answer.json()["queues"][0]["nextOffset"]) if answer.status_code == 200 else 0


@pytest.mark.timeout(1800)
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
            push(broker, range(pushed, pushed + 300))
            pushed += 300

            def moving(job: Process = job, before: int = before) -> bool:
                assert job.alive, job.log.read_text()[-3000:]
                return offset(broker, "out") > before

            until(moving, "the job copies", 600)
            for _ in range(3):
                push(broker, range(pushed, pushed + 200))
                pushed += 200
                time.sleep(dice.uniform(0, 0.8))
                broker.kill()
                broker.start()
            time.sleep(dice.uniform(0, 1.5))
        finally:
            job.kill()

    lake, out = _catch_up(spark, broker, tmp_path)

    assert sorted(out) == list(range(pushed))
    assert sorted(lake) == list(range(pushed))


def _catch_up(spark: SparkSession, broker: Broker, folder: Path) -> tuple[list[int], list[int]]:
    """Finish both queries in this process, on their checkpoints; the ids in the lake and in the queue."""
    lake = Lake(spark, str(folder / "lake"))
    lake.settle()
    checkpoints = folder / "checkpoints"

    def add(batch, number) -> None:  # type: ignore[no-untyped-def]
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        lake.add(batch, query, number)

    source = spark.readStream.format("holtmq").options(
        **copy_options(broker.url) | {"maxOffsetsPerTrigger": "5000"}
    )
    archived = source.load().writeStream.foreachBatch(add)
    copied = source.load().select("payload", "partition").writeStream.format("holtmq")
    for query in (
        archived.option("checkpointLocation", str(checkpoints / "archive")),
        copied.options(url=broker.url, queue="out").option("checkpointLocation", str(checkpoints / "copy")),
    ):
        assert query.trigger(availableNow=True).start().awaitTermination(600), "never caught up"
    ids = "CAST(get_json_object(CAST(payload AS STRING), '$.id') AS BIGINT) AS id"
    found = spark.read.format("holtmq").options(url=broker.url, queue="out").load()
    return (
        [row.id for row in lake.frame().selectExpr(ids).collect()],
        [row.id for row in found.selectExpr(ids).collect()],
    )
