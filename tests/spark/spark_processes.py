"""Processes of the Spark tests: a broker by itself, and whatever a test must be able to kill."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from ports import free_port


def until(ready: Callable[[], bool], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


class Process:
    """A process group: with Spark's JVM and its Python workers in it."""

    def __init__(self, command: list[str], log: Path, **environment: str) -> None:
        self.log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
        with log.open("a") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**kept, **environment}, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(120)


class Broker:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts = 0
        self.port = free_port()  # kept over kills: one that the kernel chose could be another's meanwhile
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._starts += 1
        log = self._folder / f"broker-{self._starts}.log"
        self._process = Process(
            [sys.executable, "-m", "holtmq", "serve"],
            log,
            HOLT_DATA_DIR=str(self._folder / "data"),
            HOLT_AMQP_PORT="0",
            HOLT_AMQP_HOST="127.0.0.1",
            HOLT_HTTP_HOST="127.0.0.1",
            HOLT_HTTP_PORT=str(self.port),
        )

        def ready() -> bool:
            assert self._process.alive, log.read_text()
            return re.search(r"ready.*http_port=\d+", log.read_text()) is not None

        until(ready, "broker is ready", 120)

    def kill(self) -> None:
        self._process.kill()


def push_until_taken(broker: Broker, numbers: range) -> None:
    """Push into queue ``in`` until the broker has it; it may be away, and ids make a repeat harmless."""
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
