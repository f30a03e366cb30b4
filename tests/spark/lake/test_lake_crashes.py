"""Exactly once without Spark: kill -9 of archivers and of the broker, over every table format."""

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lake_support import FORMATS, ids
from spark_processes import Broker, Process, push_until_taken, until

from holtmq.spark.jobs.archive import archive
from holtmq.spark.jobs.running import Setting

pytestmark = [pytest.mark.crash, pytest.mark.slow]

ROUNDS = int(os.environ.get("HOLT_SPARK_CRASH_ROUNDS", "2"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    one = Broker(tmp_path)
    yield one
    one.kill()


def archiver(broker: Broker, folder: Path, format: str, name: str) -> Process:
    """``holt pipeline archive``, a batch after the other."""
    command = [sys.executable, "-m", "holtmq", "pipeline", "archive", "--engine", "arrow", "--every", "100ms"]
    command += ["--url", broker.url, "--queue", "in", "--lake", str(folder / format), "--format", format]
    command += ["--group", format, "--max-rows", "70", "--retry-timeout", "2m"]
    return Process(command, folder / f"{format}-{name}.log")


@pytest.mark.timeout(240 + 240 * ROUNDS)
def test_killing_archivers_and_the_broker_loses_nothing_and_repeats_nothing(
    broker: Broker, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    dice = random.Random(seed)
    print(f"seed {seed}")  # shown when it fails
    pushed = 0
    for number in range(ROUNDS):
        jobs = [archiver(broker, tmp_path, format, str(number)) for format in FORMATS]
        twins: list[Process] = []
        try:
            push_until_taken(broker, range(pushed, pushed + 300))
            pushed += 300
            lakes = [tmp_path / format / "_holt" / "lock" for format in FORMATS]
            until(lambda: all(_holders(lake) > number for lake in lakes), "each lake has its writer")  # noqa: B023
            twins = [archiver(broker, tmp_path, format, f"{number}-twin") for format in FORMATS]
            for _ in range(2):
                push_until_taken(broker, range(pushed, pushed + 200))
                pushed += 200
                time.sleep(dice.uniform(0, 0.8))
                broker.kill()
                broker.start()
            until(lambda: not any(twin.alive for twin in twins), "each second archiver is refused")  # noqa: B023
            time.sleep(dice.uniform(0, 1.0))
            for job in jobs:
                assert job.alive, job.log.read_text()[-3000:]
        finally:
            for process in dice.sample([*jobs, *twins], len(jobs) + len(twins)):
                process.kill()
        for twin in twins:
            assert "has a writer already" in twin.log.read_text()

    for format in FORMATS:
        archive(Setting(broker.url), "in", str(tmp_path / format), engine="arrow")
        assert ids(tmp_path / format, format) == list(range(pushed)), format


def _holders(lock: Path) -> int:
    """The epoch of the newest holder."""
    return max((int(path.stem) for path in lock.glob("[0-9]*.json")), default=0)
