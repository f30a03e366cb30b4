"""A Celery application that knows two nodes. Its task writes down that it ran.

Owns: the task. Must not touch: the nodes' addresses, which come from the environment.
"""

import os

from celery import Celery

app = Celery("failover", broker=os.environ.get("FAILOVER_BROKER", "amqp://"))
app.conf.update(
    task_default_queue="celery.failover",
    task_default_delivery_mode="persistent",
    task_acks_late=True,
    task_ignore_result=True,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_cancel_long_running_tasks_on_connection_loss=True,
)


@app.task  # type: ignore[untyped-decorator]
def note(path: str, number: int) -> None:
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{number}\n")
