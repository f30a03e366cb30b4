"""Celery on the broker: a real worker process, results over rpc."""

import importlib
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from e2e_support import DEADLINE, eventually

from holtmq.testing import TestBroker

# One process for all of them: starting a worker is what takes the time.
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("celery"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def celery_app(broker: TestBroker) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # An application keeps its connections: a second run, with another broker, needs another one.
        sys.modules.pop("celery_app", None)
        celery_app = importlib.import_module("celery_app")
        celery_app.app.conf.broker_url = broker.amqp_url
        yield celery_app
        celery_app.app.close()


@pytest.fixture(scope="module")
def worker(broker: TestBroker, celery_app: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    log = tmp_path_factory.mktemp("celery") / "worker.log"
    command = "-A celery_app worker --pool=solo --loglevel=INFO -E --without-mingle --hostname=e2e@localhost"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", *command.split()],
            cwd=Path(__file__).parent,
            env={**os.environ, "E2E_BROKER": broker.amqp_url, "PYTHONWARNINGS": "ignore"},
            stdout=out,
            stderr=out,
        )
    try:
        eventually(lambda: " ready." in log.read_text() or process.poll() is not None, "worker", 2 * DEADLINE)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_a_task_runs_and_its_result_comes_back(celery_app: Any, worker: None) -> None:
    assert celery_app.add.delay(2, 3).get(timeout=DEADLINE) == 5


def test_many_tasks_keep_their_results_apart(celery_app: Any, worker: None) -> None:
    results = [celery_app.add.delay(n, n) for n in range(50)]

    assert [result.get(timeout=DEADLINE) for result in results] == [2 * n for n in range(50)]


def test_a_failing_task_raises_where_its_result_is_asked_for(celery_app: Any, worker: None) -> None:
    with pytest.raises(ValueError, match="on purpose"):
        celery_app.broken.delay().get(timeout=DEADLINE)


def test_a_task_is_retried_until_it_succeeds(celery_app: Any, worker: None) -> None:
    assert celery_app.third_time.delay("done").get(timeout=DEADLINE) == "done after 2 retries"


def test_a_countdown_is_waited_for(celery_app: Any, worker: None) -> None:
    began = time.monotonic()

    assert celery_app.add.apply_async((1, 1), countdown=0.5).get(timeout=DEADLINE) == 2

    assert time.monotonic() - began >= 0.5


def test_an_eta_is_waited_for(celery_app: Any, worker: None) -> None:
    due = datetime.now(UTC) + timedelta(seconds=0.5)

    assert celery_app.add.apply_async((1, 1), eta=due).get(timeout=DEADLINE) == 2

    assert datetime.now(UTC) >= due


def test_a_group_gives_all_results(celery_app: Any, worker: None) -> None:
    from celery import group

    assert group(celery_app.add.s(n, 1) for n in range(10))().get(timeout=DEADLINE) == list(range(1, 11))


def test_a_chain_hands_results_on(celery_app: Any, worker: None) -> None:
    from celery import chain

    assert (
        chain(celery_app.add.s(1, 2), celery_app.add.s(3), celery_app.add.s(4))().get(timeout=DEADLINE) == 10
    )


def test_a_chord_is_refused_by_the_rpc_backend_itself(celery_app: Any, worker: None) -> None:
    """Celery's rpc backend has no chords, on any broker: a group's results are summed by the caller."""
    from celery import chord, group

    with pytest.raises(NotImplementedError, match="chord"):
        chord(celery_app.add.s(n, n) for n in range(3))(celery_app.total.s()).get(timeout=DEADLINE)

    parts = group(celery_app.add.s(n, n) for n in range(3))().get(timeout=DEADLINE)
    assert celery_app.total.delay(parts).get(timeout=DEADLINE) == 6


def test_urgent_tasks_overtake(celery_app: Any, worker: None, tmp_path: Path) -> None:
    """With one task at a time and late acks, all but the first wait in the broker by priority."""
    held, released = tmp_path / "held", tmp_path / "released"
    celery_app.hold.delay(str(held), str(released))
    eventually(held.exists, "the worker is busy")
    for n in range(5):
        celery_app.note.apply_async((f"low {n}",), priority=1)
    for n in range(5):
        celery_app.note.apply_async((f"high {n}",), priority=9)
    released.touch()

    def finished() -> list[str]:
        seen: list[str] = celery_app.noted.apply_async(priority=0).get(timeout=DEADLINE)
        return seen if len(seen) == 10 else []

    seen = eventually(finished)
    high, low = [f"high {n}" for n in range(5)], [f"low {n}" for n in range(5)]
    # The worker may have had one low one in its hands before the first high one came.
    assert seen in (high + low, low[:1] + high + low[1:])


def test_a_revoked_task_does_not_run(celery_app: Any, worker: None) -> None:
    from celery import uuid
    from celery.exceptions import TaskRevokedError

    unwanted = uuid()
    celery_app.app.control.revoke(unwanted, reply=True, limit=1, timeout=DEADLINE)
    result = celery_app.add.apply_async((1, 1), task_id=unwanted)

    with pytest.raises(TaskRevokedError):
        result.get(timeout=DEADLINE)


def test_remote_control_reaches_the_worker(celery_app: Any, worker: None) -> None:
    def ping() -> Any:
        return celery_app.app.control.ping(timeout=1)

    assert eventually(ping) == [{"e2e@localhost": {"ok": "pong"}}]
    worker_alone = celery_app.app.control.inspect(["e2e@localhost"], timeout=DEADLINE)
    registered = worker_alone.registered()
    assert "celery_app.add" in registered["e2e@localhost"]


def test_events_tell_what_happens_to_a_task(celery_app: Any, worker: None) -> None:
    kinds: list[str] = []
    ids: dict[str, list[str]] = {}
    ready = threading.Event()

    def listen() -> None:
        def saw(event: dict[str, Any]) -> None:
            kinds.append(event["type"])
            ids.setdefault(event.get("uuid", ""), []).append(event["type"])

        with celery_app.app.connection() as connection:
            receiver = celery_app.app.events.Receiver(connection, handlers={"*": saw})
            with receiver.consumer_context() as (events, _, _):
                ready.set()
                until = time.monotonic() + DEADLINE
                while time.monotonic() < until and "task-succeeded" not in ids.get(wanted, []):
                    try:
                        events.drain_events(timeout=0.2)
                    except TimeoutError:
                        continue

    wanted = ""
    thread = threading.Thread(target=listen)
    from celery import uuid

    wanted = uuid()
    thread.start()
    assert ready.wait(DEADLINE)

    celery_app.add.apply_async((1, 1), task_id=wanted).get(timeout=DEADLINE)

    while thread.is_alive():  # a worker with nothing to do keeps its last events for a while
        celery_app.add.delay(0, 0).get(timeout=DEADLINE)
    assert {"task-received", "task-started", "task-succeeded"} <= set(ids[wanted])
