"""Requests to a node with very many partitioned queues, each with a message and a consumer group.

Owns: filling the node, and what is asked of it. Must not touch: how a request is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from bench.stalls.checkpoints import checkpoint
from bench.stalls.site import Prepare, Site

from holtmq.broker.partitioned.commands import admin
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus
from holtmq.broker.partitioned.groups.subscriptions import StartRequest
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import AckRequest, PopRequest, PushItem
from holtmq.node import Node

_AT_ONCE: Final = 1_000
_ALL: Final = StartRequest()
_SECONDS: Final = 12  # of idling: two readings of the counters for dashboards


def fill(site: Site, count: int, *, acked: bool = False) -> None:
    """So many queues; a group has leased the message of each, or acked it."""

    def some(first: int, node: Node) -> None:
        numbers, now = range(first, min(first + _AT_ONCE, count)), time.time()
        items = [PushItem(f"log-{n}", "p", Body(f"t-{n}", b'{"n":1}')) for n in numbers]
        node.partitioned.push(items, now)

    def read(first: int, node: Node) -> None:
        now, queues = time.time(), node.partitioned.store.queues
        for n in range(first, min(first + _AT_ONCE, count)):
            node.partitioned.pop(PopRequest(f"l-{n}", f"log-{n}", "p", group="g", start=_ALL), now)
            if acked:
                number = queues[f"log-{n}"].number
                ack = AckRequest(number, 0, "g", f"t-{n}", AckStatus.COMPLETED, f"l-{n}")
                node.partitioned.ack([ack], now)

    for first in range(0, count, _AT_ONCE):
        site.topology(partial(some, first))
        site.topology(partial(read, first))


def asked(method: str, path: str, body: object = None) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        fill(site, count)
        return lambda: site.http.request(method, path, json=body).raise_for_status()

    return prepare


def idle(site: Site, count: int) -> Callable[[], object]:
    """What the node does by itself in some seconds."""
    fill(site, count)
    return lambda: time.sleep(_SECONDS)


def retention(site: Site, count: int) -> Callable[[], object]:
    """The messages of all queues are too old at once."""
    fill(site, count)
    options = {"retention_enabled": True, "retention_seconds": 1}

    def configure(first: int, node: Node) -> None:
        for n in range(first, min(first + _AT_ONCE, count)):
            admin.configure(node.partitioned, f"log-{n}", "", "", options, time.time())

    for first in range(0, count, _AT_ONCE):
        site.topology(partial(configure, first))
    time.sleep(2)

    def drop() -> None:
        while site.broker.call(lambda node: node.partitioned.retain(time.time())):
            pass

    return drop


def pop(site: Site, count: int) -> Callable[[], object]:
    """One pop over all queues, by a group that reads none of them yet and finds nothing."""
    fill(site, count)
    path = "/api/v1/pop?namespace=&consumerGroup=new&subscriptionMode=new"
    return lambda: site.get(path)


_G: Final = "/api/v1/consumer-groups/g"
REQUESTS: Final[dict[str, tuple[int, Prepare]]] = {
    "very many partitioned queues, no request": (100_000, idle),
    "retention of very many partitioned queues": (100_000, retention),
    "move a group of very many partitioned queues": (
        100_000,
        asked("POST", f"{_G}/subscription", {"subscriptionTimestamp": "2026-01-01T00:00:00Z"}),
    ),
    "delete a group of very many partitioned queues": (100_000, asked("DELETE", _G)),
    "pop over very many partitioned queues": (100_000, pop),
    "delete one of very many partitioned queues": (
        100_000,
        asked("DELETE", "/api/v1/resources/queues/log-7"),
    ),
    **{
        f"{what} of very many partitioned queues": (100_000, asked("GET", path))
        for what, path in (
            ("groups", "/api/v1/consumer-groups"),
            ("one group", _G),
            ("operations", "/api/v1/analytics/queue-ops"),
            ("findings", "/api/v1/dashboard/attention"),
            ("messages", "/api/v1/messages"),
            ("ranges", "/api/v1/ranges"),
            ("list", "/api/v1/resources/queues"),
            ("overview", "/api/v1/resources/overview"),
            ("status", "/api/v1/status"),
            ("metrics", "/metrics/prometheus"),
        )
    },
}
CHECKPOINTS: Final[dict[str, tuple[int, Prepare]]] = {
    "checkpoint of very many partitioned queues": (100_000, checkpoint(partial(fill, acked=True))),
}
