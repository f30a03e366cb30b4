"""The Celery application of the warm shutdown test: what its two workers run.

Owns: the tasks. Must not touch: the broker's address and the queue's arguments, which come from the
environment.
"""

import json
import os
import time
from pathlib import Path

from celery import Celery
from kombu import Exchange, Queue

app = Celery("shutdown", broker=os.environ.get("E2E_BROKER", "amqp://"), backend="rpc://")
app.conf.update(
    task_default_queue="shutdown",
    task_queues=[
        Queue(
            "shutdown",
            Exchange("shutdown"),
            "shutdown",
            queue_arguments=json.loads(os.environ.get("E2E_QUEUE_ARGUMENTS", "{}")),
        )
    ],
    task_default_exchange="shutdown",
    task_default_routing_key="shutdown",
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    result_expires=60,
)


@app.task(shared=False)  # imported once per test: other applications must not see each of them
def work(runs: str, released: str) -> None:
    """Note that it runs, then go on until a file appears."""
    with Path(runs).open("a") as out:
        out.write("run\n")
    while not Path(released).exists():
        time.sleep(0.01)


@app.task(shared=False)  # imported once per test: other applications must not see each of them
def answer() -> str:
    return "here"
