"""The Celery application of the Celery tests: what its worker process runs.

Owns: the tasks. Must not touch: the broker's address, which comes from the environment.
"""

import os
import time
from pathlib import Path

from celery import Celery
from kombu import Exchange, Queue

app = Celery("e2e", broker=os.environ.get("E2E_BROKER", "amqp://"), backend="rpc://")
app.conf.update(
    task_default_queue="celery.e2e",
    task_queues=[
        Queue("celery.e2e", Exchange("celery.e2e"), "celery.e2e", queue_arguments={"x-max-priority": 10})
    ],
    task_default_exchange="celery.e2e",
    task_default_routing_key="celery.e2e",
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    worker_send_task_events=True,
    task_send_sent_event=True,
    broker_connection_retry_on_startup=True,
    result_expires=60,
)
seen: list[str] = []


@app.task(shared=False)  # imported again for a second run: other applications must not see it
def add(x: int, y: int) -> int:
    return x + y


@app.task(shared=False)  # imported again for a second run: other applications must not see it
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3, shared=False)
def third_time(self, value: str) -> str:  # type: ignore[no-untyped-def]
    """Fails twice, then succeeds."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.05)
    return f"{value} after {self.request.retries} retries"


@app.task(shared=False)  # imported again for a second run: other applications must not see it
def broken() -> None:
    raise ValueError("on purpose")


@app.task(shared=False)  # imported again for a second run: other applications must not see it
def hold(held: str, released: str) -> None:
    """Keep the worker busy: one file says that it is, the other ends it."""
    Path(held).touch()
    while not Path(released).exists():
        time.sleep(0.01)


@app.task(shared=False)  # imported again for a second run: other applications must not see it
def note(text: str) -> None:
    """Remember in which order tasks ran."""
    seen.append(text)


@app.task(shared=False)  # imported again for a second run: other applications must not see it
def noted() -> list[str]:
    """What ``note`` has seen."""
    return seen
