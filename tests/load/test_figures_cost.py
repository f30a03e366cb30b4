"""The broker can be run without its figures, for the measurement of what they cost: it then counts nothing,
and its clients get the same.

A rule for statements that were renamed would go unnoticed until the figures are needed.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
from bench.figures_cost.replay import Child

STREAMS = (
    "durable, basic.get and ack",
    "durable, confirms, acks, a message a read",
    "HTTP, pop and ack, work",
)


def replayed(*without: str) -> list[Child]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.figures_cost.replay", "20", "40", "and ack", *without],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return [msgspec.json.decode(line, type=Child) for line in done.stdout.splitlines()]


def test_without_its_figures_the_broker_does_the_same_and_counts_nothing(tmp_path: Path) -> None:
    counted, bare = replayed(), replayed(str(tmp_path))

    assert [child.digest for child in counted] == [child.digest for child in bare]
    assert [child.counted for child in counted] == [20, 40] * (len(counted) // 2)
    assert {child.counted for child in bare} == {0}
