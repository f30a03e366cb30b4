"""Requests about partitioned queues."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from bench.stalls.site import Prepare, Site

from holtmq.broker.partitioned.groups.subscriptions import StartRequest
from holtmq.broker.partitioned.requests import PopRequest
from holtmq.node import Node

_ALL: Final = StartRequest()


def _partitions(site: Site, count: int) -> None:
    for start in range(0, count, 1_000):
        items = [
            {"queue": "log", "partition": f"p{number}", "payload": number}
            for number in range(start, min(start + 1_000, count))
        ]
        site.http.post("/api/v1/push", json={"items": items}).raise_for_status()


def partitioned(path: str, method: str = "GET") -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _partitions(site, count)
        return lambda: site.http.request(method, path).raise_for_status()

    return prepare


def _groups(site: Site, count: int) -> None:
    _partitions(site, 10)

    def make(node: Node) -> None:
        for number in range(count):
            request = PopRequest(f"l{number}", "log", "p0", group=f"g{number}", start=_ALL)
            node.partitioned.pop(request, time.time())

    site.topology(make)


def grouped(path: str, method: str = "GET", body: object = None) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _groups(site, count)
        return lambda: site.http.request(method, path, json=body).raise_for_status()

    return prepare
