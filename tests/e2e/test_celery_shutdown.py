"""Celery's warm shutdown with late acks and two workers: a task that is running runs once.

The worker cancels its consumer first and acks the running task when it ends. With HoltMQ's default the cancel
returns the message, so the other worker would run it again; the profile and the queue argument prevent it.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from e2e_support import DEADLINE, eventually
from msgspec.structs import replace

from holtmq.config import Limits, load
from holtmq.testing import TestBroker

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("celery"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Worker:
    """A worker process with one thread for tasks."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        self._log = folder / f"{name}.log"
        command = f"-A celery_shutdown_app worker --pool=threads -c 1 -l INFO --without-mingle -n {name}@e2e"
        with self._log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", *command.split()],
                cwd=Path(__file__).parent,
                env={**os.environ, "PYTHONWARNINGS": "ignore", **environment},
                stdout=out,
                stderr=out,
            )

    def wait_ready(self) -> None:
        eventually(
            lambda: " ready." in self._log.read_text() or self.process.poll() is not None,
            "worker",
            2 * DEADLINE,
        )
        assert self.process.poll() is None, self._log.read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(params=["profile", "queue"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[TestBroker, dict[str, str]]]:
    """A broker, and the workers' environment: one of the two has the setting."""
    is_profile = request.param == "profile"
    config = load({"HOLT_PROFILE": "rabbitmq"} if is_profile else {}).config
    config = replace(config, limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0))
    arguments = {} if is_profile else {"x-cancel-requeue": False}
    with TestBroker(clock="real", config=config) as broker:
        yield broker, {"E2E_BROKER": broker.amqp_url, "E2E_QUEUE_ARGUMENTS": json.dumps(arguments)}


def consumers(broker: TestBroker) -> int:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        count: int = connection.channel().queue_declare("shutdown", passive=True).method.consumer_count
        return count


def application(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.modules.pop("celery_shutdown_app", None)
        return importlib.import_module("celery_shutdown_app")


def test_a_task_that_runs_during_a_warm_shutdown_runs_once(
    place: tuple[TestBroker, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, environment = place
    celery = application(environment, monkeypatch)
    runs, released = tmp_path / "runs", tmp_path / "released"
    workers = [Worker("leaving", tmp_path, environment)]
    try:
        workers[0].wait_ready()
        task = celery.work.delay(str(runs), str(released))
        eventually(runs.exists, "the task runs")
        workers.append(Worker("staying", tmp_path, environment))
        workers[1].wait_ready()
        eventually(lambda: consumers(broker) == 2, "both workers consume")

        workers[0].process.send_signal(signal.SIGTERM)
        eventually(lambda: consumers(broker) == 1, "the leaving worker has cancelled its consumer")
        # The other worker would have taken the task before this one, had it come back.
        assert celery.answer.delay().get(timeout=DEADLINE) == "here"
        released.touch()

        task.get(timeout=DEADLINE)
        assert workers[0].process.wait(DEADLINE) == 0
        assert celery.answer.delay().get(timeout=DEADLINE) == "here"
        assert runs.read_text().splitlines() == ["run"]
        broker_queue = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
        declared = broker_queue.channel().queue_declare("shutdown", passive=True)
        broker_queue.close()
        assert declared.method.message_count == 0
    finally:
        celery.app.close()
        for worker in workers:
            worker.end()
