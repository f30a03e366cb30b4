"""Frameworks on the broker: each program runs a job, retries one that fails once, and gives one up.

Two of them run in every test run. ``make frameworks`` installs the others in an environment of their own (one
changes pytest itself) and runs all: HOLT_TEST_FRAMEWORKS names that environment's Python. It also runs
clients in Go, Ruby and PHP, from Debian's packages.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holtmq.testing import TestBroker

HERE = Path(__file__).parent
PYTHON = os.environ.get("HOLT_TEST_FRAMEWORKS", "")
DEADLINE = 120.0  # seconds; reached only by a test that would fail anyhow
PLAIN: dict[str, Any] = {"done": ["plain", "shaky"], "tries": {"plain": 1, "shaky": 2, "poison": 3}}
pytestmark = pytest.mark.e2e
nightly = pytest.mark.skipif(not PYTHON, reason="make frameworks runs it")


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker(clock="real") as one:
        yield one


def run(broker: TestBroker, *command: str, **environment: str) -> dict[str, Any]:
    """What a program reports in the last line of its output."""
    done = subprocess.run(
        [*command, broker.amqp_url, broker.http_url],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_python(broker: TestBroker, name: str) -> dict[str, Any]:
    program = HERE / "python" / f"{name}_program.py"
    return run(broker, PYTHON or sys.executable, "-W", "ignore", str(program))


def run_node(broker: TestBroker, name: str) -> dict[str, Any]:
    node = shutil.which("node")
    assert node is not None, "node is not installed"
    return run(broker, node, str(HERE / "node" / f"{name}_program.js"))


def test_dramatiq(broker: TestBroker) -> None:
    assert run_python(broker, "dramatiq") == {**PLAIN, "dead": ["poison"]}


def test_faststream(broker: TestBroker) -> None:
    assert run_python(broker, "faststream") == {**PLAIN, "dead": ["poison"], "answer": "HELLO"}


@nightly
def test_taskiq(broker: TestBroker) -> None:
    assert run_python(broker, "taskiq") == {
        "done": ["delayed", "plain", "shaky"],
        "tries": {**PLAIN["tries"], "delayed": 1},
        "dead": [],
    }


@nightly
def test_nameko(broker: TestBroker) -> None:
    assert run_python(broker, "nameko") == {**PLAIN, "dead": ["poison"], "answer": "HELLO"}


@nightly
def test_amqp_connection_manager(broker: TestBroker) -> None:
    found = run_node(broker, "connection_manager")
    assert found == {**PLAIN, "dead": ["poison"], "reason": "delivery_limit"}


@nightly
def test_rascal(broker: TestBroker) -> None:
    assert run_node(broker, "rascal") == {**PLAIN, "dead": ["poison"], "reason": "rejected"}


@nightly
def test_nestjs(broker: TestBroker) -> None:
    found = run_node(broker, "nestjs")
    assert found == {**PLAIN, "dead": ["poison"], "reason": "delivery_limit", "answer": "HELLO"}


@nightly
def test_the_management_clients_of_npm(broker: TestBroker) -> None:
    found = run_node(broker, "management")
    assert found["calls"] > 80
    assert found["failed"] == [
        "getQueue / npm.r: 404",
        "deleteQueue / npm.q [object Object]: 400",
    ]
    assert "enough" in found["closed"]


@nightly
def test_go(broker: TestBroker, tmp_path: Path) -> None:
    # Debian's packages are a GOPATH of their own.
    modules = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(tmp_path)}
    found = run(broker, "go", "run", str(HERE / "go" / "main.go"), **modules)
    assert found == {**PLAIN, "dead": ["poison"], "reason": "delivery_limit"}


@nightly
def test_ruby(broker: TestBroker) -> None:
    found = run(broker, "ruby", str(HERE / "ruby" / "bunny_program.rb"))
    assert found == {**PLAIN, "dead": ["poison"], "retried": 2}


@nightly
def test_php(broker: TestBroker) -> None:
    found = run(broker, "php", str(HERE / "php" / "amqplib_program.php"))
    assert found == {**PLAIN, "dead": ["poison"], "reason": "delivery_limit"}
