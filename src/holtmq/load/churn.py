"""Queues that are created and deleted during a workload's traffic.

Owns: one connection that declares, binds and deletes them, in its own thread, at a steady rate.
Must not touch: the workload's own queues.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holtmq.load.errors import LoadError
from holtmq.load.link import Address, Link
from holtmq.load.workloads import Workload


@contextmanager
def churning(address: Address, workload: Workload, exchange: str) -> Iterator[None]:
    """Change the topology ``workload.churn`` times a second while the block runs."""
    if not workload.churn:
        yield
        return
    link = Link(address)
    stop = threading.Event()
    failures: list[LoadError] = []

    def change() -> None:
        serial = 0
        try:
            while not stop.wait(1 / workload.churn):
                serial += 1
                name = f"holt-load-passing-{serial}"
                link.declare_queue(name, durable=False, arguments={})
                link.bind(name, exchange, f"passing.{serial}.#")
                link.delete_queue(name)
        except LoadError as error:
            failures.append(error)

    thread = threading.Thread(target=change, name="churn", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        link.close()
    if failures:
        raise failures[0]
