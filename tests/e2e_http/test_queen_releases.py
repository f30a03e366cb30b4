"""Two releases of Queen's own client, unmodified from PyPI, do everything they offer on this broker.

The scenarios are in queen_scenarios*.py. The old release lies in a folder of its own, put there by
scripts/setup.sh: both are called ``queen``.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

import jwt
import pytest

from holtmq.config import Auth, Config, Limits
from holtmq.config.values import Secret
from holtmq.testing import TestBroker

HERE = Path(__file__).parent
OLD_RELEASE = Path(sys.prefix) / "queen-0.15"
# One process runs all scenarios of a release; each worker that had one of its tests would start another.
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("queen-releases")]


def _names() -> list[str]:
    files = sorted(HERE.glob("queen_scenarios_*.py"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    marked = [lines[at + 1] for at, line in enumerate(lines) if line == "@scenario"]
    return [line.removeprefix("async def ").partition("(")[0] for line in marked]


@cache
def results(release: str, url: str, *token: str) -> dict[str, str | None]:
    """Scenario -> what went wrong, or None."""
    command = [sys.executable, str(HERE / "queen_scenarios.py"), url, f"release-{release}", *token]
    path = str(OLD_RELEASE) if release == "0.15" else ""
    with TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdout=said, stderr=subprocess.STDOUT
        )
        try:
            process.wait(240)
        except subprocess.TimeoutExpired:
            process.kill()  # what it had to say counts; the rest did not finish
            process.wait()
        said.seek(0)
        text = said.read()
    rows = [json.loads(line[7:]) for line in text.splitlines() if line.startswith("RESULT ")]
    unfinished: dict[str, str | None] = dict.fromkeys(_names(), f"did not finish: {text[-4000:]}")
    return unfinished | {row["scenario"]: row["problem"] for row in rows}


def test_the_old_release_is_the_one_meant() -> None:
    (folder,) = OLD_RELEASE.glob("queen_mq-*.dist-info")

    assert folder.name.startswith("queen_mq-0.15.")


@pytest.mark.parametrize("scenario", _names())
@pytest.mark.parametrize("release", ["0.15", "newest"])
def test_release(shared: TestBroker, release: str, scenario: str) -> None:
    problem = results(release, shared.http_url)[scenario]

    assert problem is None, problem


@pytest.mark.parametrize("release", ["0.15", "newest"])
def test_release_with_a_token(release: str) -> None:
    secret = "a secret of more than thirty-two bytes"
    limits = Limits(memory_high_watermark=1.0, disk_free_min_bytes=0)
    config = Config(limits=limits, auth=Auth(jwt_enabled=True, jwt_secret=Secret(secret)))
    token = jwt.encode({"sub": "tester", "role": "read-write"}, secret, algorithm="HS256")
    with TestBroker(clock="real", config=config) as guarded:
        problem = results(release, guarded.http_url, token)["with_a_token"]

    assert problem is None, problem
