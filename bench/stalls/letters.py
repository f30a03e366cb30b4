"""Dead letters of partitioned queues, and the rows of external writers."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.stalls.partitioned import _leases
from bench.stalls.site import Prepare, Site

from holtmq.broker.partitioned.commands.staging_records import StagedRow, Winner
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.node import Node

_AT_ONCE = 10_000


def _letters(site: Site, count: int) -> None:
    """One dead letter for each of very many messages."""
    found = _leases(site, count)
    for start in range(0, count, 1_000):
        acks = [{**one, "status": "dlq"} for one in found[start : start + 1_000]]
        body = {"acknowledgments": acks, "consumerGroup": "g"}
        site.http.post("/api/v1/ack/batch", json=body).raise_for_status()


def letters(method: str, path: str) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _letters(site, count)
        return lambda: site.http.request(method, path).raise_for_status()

    return prepare


def redrive(site: Site, count: int) -> Callable[[], object]:
    _letters(site, count)

    def run() -> None:
        path = "/api/v1/operator/dead-letters/redrive?wait=0"
        job = site.http.post(path, json={"queue": "log"}).raise_for_status().json()
        while site.http.get(f"/api/v1/operator/jobs/{job['id']}").json()["state"] == "running":
            time.sleep(0.05)

    return run


def _staged(site: Site, count: int, partitions: int = 16) -> None:
    def stage(node: Node, start: int) -> None:
        rows = [
            StagedRow("rows", f"p{number % partitions}", Body(f"t-{number}", b"1"))
            for number in range(start, min(start + _AT_ONCE, count))
        ]
        node.partitioned.staging.stage("w", 1, 0, 0, start // _AT_ONCE, rows, time.time())

    for start in range(0, count, _AT_ONCE):
        site.topology(lambda node, start=start: stage(node, start))  # type: ignore[misc]


def commit_rows(partitions: int) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _staged(site, count, partitions)
        body = {"tasks": [{"task": 0, "attempt": 0, "rows": count}]}
        return lambda: site.http.post("/api/v1/staging/w/1/commit", json=body).raise_for_status()

    return prepare


def abort_rows(site: Site, count: int) -> Callable[[], object]:
    _staged(site, count)
    return lambda: site.http.delete("/api/v1/staging/w/1").raise_for_status()


def _published(site: Site, count: int) -> None:
    _staged(site, count)

    def publish(node: Node) -> None:
        for _ in node.partitioned.staging.commit("w", 1, [Winner(0, 0, count)], time.time()):
            pass

    site.topology(publish)


def read_rows(site: Site, count: int) -> Callable[[], object]:
    """All offsets, then all rows, of a log."""
    _published(site, count)
    site.get("/api/v1/ranges/rows/rows?from=0&to=1")  # imports Arrow

    def read() -> None:
        site.get("/api/v1/ranges")
        with site.http.stream("GET", f"/api/v1/ranges/rows/rows?from=0&to={count}") as answer:
            answer.raise_for_status()
            for _ in answer.iter_raw():
                pass

    return read


def clear_rows(site: Site, count: int) -> Callable[[], object]:
    _published(site, count)
    return lambda: site.http.delete("/api/v1/queues/rows/clear").raise_for_status()


def delete_rows(site: Site, count: int) -> Callable[[], object]:
    _published(site, count)
    return lambda: site.http.delete("/api/v1/resources/queues/rows").raise_for_status()
