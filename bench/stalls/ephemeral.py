"""Requests about ephemeral queues, which are in memory only."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Final

from bench.stalls.site import Prepare, Site

from holtmq.broker.partitioned.extras.ephemeral import EphemeralQueue
from holtmq.broker.partitioned.extras.ephemeral_values import NAMELESS, EphemeralConfig
from holtmq.node import Node

_BASE: Final = "/api/v1/ephemeral"
_AT_ONCE: Final = 10_000  # the most of one push, pop or ack
opened: list[HTTPConnection] = []


def _fill(site: Site, partitions: int, each: int = 1, groups: tuple[str, ...] = (), **config: float) -> None:
    """Messages in as many partitions, for groups that have asked."""

    def make(node: Node) -> None:
        options = EphemeralConfig(max_length=2_000_000, max_bytes=1 << 30, **config)  # type: ignore[arg-type]
        queue = node.partitioned.ephemeral["e"] = EphemeralQueue("e", options)
        queue.declared = True
        for group in groups:
            queue.pop(group, None, 1, True, time.time())

    site.topology(make)
    for start in range(0, partitions, 5_000):

        def push(node: Node, start: int = start) -> None:
            queue = node.partitioned.ephemeral["e"]
            for number in range(start, min(start + 5_000, partitions)):
                queue.push(f"p{number}", [b"%d" % number] * each, time.time())

        site.topology(push)


def _take(site: Site, count: int, group: str = NAMELESS, *, ack: bool = False) -> list[str]:
    """Lease as many messages over HTTP; return their ids."""
    ids: list[str] = []
    flag = "&autoAck=true" if ack else ""
    while len(ids) < count:
        batch = min(_AT_ONCE, count - len(ids))
        answer = site.http.get(f"{_BASE}/pop?queue=e&group={group}&batch={batch}{flag}").json()
        assert answer["messages"], len(ids)
        ids += [message["id"] for message in answer["messages"]]
    return ids


def _ack(site: Site, ids: list[str], status: str = "completed") -> object:
    acks = [{"id": one, "status": status} for one in ids]
    return site.http.post(f"{_BASE}/ack", json={"queue": "e", "acks": acks}).raise_for_status()


def asked(path: str, *, groups: int = 0, method: str = "GET", partitions: int | None = None) -> Prepare:
    """A request about a queue with very many messages, each in its partition unless said otherwise."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        each = 1 if partitions is None else count // partitions
        names = tuple(f"g{number}" for number in range(groups))
        _fill(site, partitions or count, each, names)
        body = {"queue": "e"} if method == "POST" else None
        return lambda: site.http.request(method, _BASE + path, json=body).raise_for_status()

    return prepare


def ack(status: str, partitions: int | None = None) -> Prepare:
    """One ack of as many messages as a call may have, while very many others are out."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        each = 1 if partitions is None else count // partitions
        _fill(site, partitions or count, each)
        ids = _take(site, count)
        return lambda: _ack(site, ids[:_AT_ONCE], status)

    return prepare


def ack_backwards(site: Site, count: int) -> Callable[[], object]:
    """Each message by itself, the newest first, so that none can be removed before the last."""
    _fill(site, 1, count)
    ids = _take(site, count)[::-1][:50]

    def settle() -> None:
        for one in ids:
            _ack(site, [one])

    return settle


def push_many(partitions: int) -> Prepare:
    """One push of as many messages as a call may have, beside very many others."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _fill(site, partitions, count // partitions, ("g", "h"))
        body = {"queue": "e", "messages": [{"payload": n} for n in range(_AT_ONCE)]}
        return lambda: site.http.post(f"{_BASE}/push", json=body).raise_for_status()

    return prepare


def drop_oldest(site: Site, count: int) -> Callable[[], object]:
    """A push into a full queue drops as many messages, each of its own partition."""
    _fill(site, count, 1, ("g",))

    def limit(node: Node) -> None:
        node.partitioned.ephemeral["e"].config = EphemeralConfig(max_length=count, drops_oldest=True)

    site.topology(limit)
    body = {"queue": "e", "messages": [{"payload": n} for n in range(1_000)]}
    return lambda: site.http.post(f"{_BASE}/push", json=body).raise_for_status()


def shrink(site: Site, count: int) -> Callable[[], object]:
    """Its new bound is far below what the queue has."""
    _fill(site, 1_000, count // 1_000, ("g",))
    options = {"maxLength": 10, "policy": "dropOldest"}
    body = {"queue": "e", "messages": [{"payload": 1}]}

    def change() -> None:
        configured = {"queue": "e", "options": options}
        site.http.post(f"{_BASE}/configure", json=configured).raise_for_status()
        site.http.post(f"{_BASE}/push", json=body).raise_for_status()

    return change


def expire(partitions: int | None) -> Prepare:
    """All messages are too old at once."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _fill(site, partitions or count, 1 if partitions is None else count // partitions, ("g",))

        def late(node: Node) -> None:
            node.partitioned.ephemeral["e"].config = EphemeralConfig(ttl_seconds=0.001)

        site.topology(late)
        return lambda: site.get(f"{_BASE}/pop?queue=e&group=g&batch=10")

    return prepare


def leases_end(site: Site, count: int) -> Callable[[], object]:
    """All messages are given back at once, because nobody settled them in time."""
    _fill(site, count, 1, lease_seconds=15)
    _take(site, count)
    time.sleep(16)
    return lambda: site.get(f"{_BASE}/pop?queue=e&batch=10")


def settled(site: Site, count: int) -> Callable[[], object]:
    """Pops and pushes after very many partitions were used and settled."""
    _fill(site, count, 1, ("g",))
    _take(site, count, "g", ack=True)
    body = {"queue": "e", "partition": "new", "messages": [{"payload": 1}]}

    def again() -> None:
        for _ in range(20):
            site.http.post(f"{_BASE}/push", json=body).raise_for_status()
            site.get(f"{_BASE}/pop?queue=e&group=g&batch=10&autoAck=true")

    return again


def queues(path: str, body: object = None) -> Prepare:
    """A request among as many queues, which are empty."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        def make(node: Node, start: int) -> None:
            for number in range(start, min(start + 1_000, count)):
                queue = node.partitioned.ephemeral[f"e{number}"] = EphemeralQueue(
                    f"e{number}", EphemeralConfig()
                )
                for inbox in range(10):
                    queue.pop(NAMELESS, f"p{inbox}", 1, True, time.time())

        for start in range(0, count, 1_000):
            site.topology(lambda node, start=start: make(node, start))  # type: ignore[misc]
        method = "GET" if body is None else "POST"
        return lambda: site.http.request(method, _BASE + path, json=body).raise_for_status()

    return prepare


def last_of_groups(site: Site, count: int) -> Callable[[], object]:
    """All groups but one have settled the messages; it settles them, so they are removed."""
    _fill(site, 100, count // 100, ("slow",))
    for number in range(200):

        def take(node: Node, group: str = f"g{number}") -> None:
            node.partitioned.ephemeral["e"].pop(group, None, count, True, time.time())

        site.topology(take)
    return lambda: _take(site, count, "slow", ack=True)


def wake(messages: int, partition: str = "") -> Prepare:
    """One push, while very many clients wait."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _fill(site, 1)
        site.get(f"{_BASE}/pop?queue=e&batch=10&autoAck=true")
        url, head = site.http.base_url, {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        where = f"&partition={partition}" if partition else ""
        waiting = [HTTPConnection(url.host, url.port) for _ in range(count)]
        for one in waiting:
            one.request("GET", f"{_BASE}/pop?queue=e&wait=true&timeout=300000{where}", headers=head)
        time.sleep(3)
        items = [{"payload": n} for n in range(messages)]
        body = {"queue": "e", "messages": items, **({"partition": partition} if partition else {})}

        def push() -> None:
            site.http.post(f"{_BASE}/push", json=body).raise_for_status()
            time.sleep(2)
            opened.extend(waiting)  # they stay open until the broker ends

        return push

    return prepare


REQUESTS: Final[dict[str, tuple[int, Prepare]]] = {
    "pop from an ephemeral queue with partitions": (100_000, asked("/pop?queue=e&batch=10")),
    "pop very many of an ephemeral queue with partitions": (100_000, asked("/pop?queue=e&batch=10000")),
    "pop very many of one ephemeral partition": (100_000, asked("/pop?queue=e&batch=10000", partitions=1)),
    "pop, each message of its partition, settled before": (100_000, settled),
    "push very many to an ephemeral queue": (100_000, push_many(1)),
    "push very many to an ephemeral queue with partitions": (100_000, push_many(100_000)),
    "push to a full ephemeral queue with partitions": (100_000, drop_oldest),
    "push to an ephemeral queue with a new bound": (100_000, shrink),
    "messages of an ephemeral partition expire at once": (100_000, expire(1)),
    "messages of an ephemeral queue expire at once": (100_000, expire(None)),
    "leases of an ephemeral queue end at once": (100_000, leases_end),
    "ack very many of one ephemeral partition": (100_000, ack("completed", 1)),
    "ack very many of an ephemeral queue with partitions": (100_000, ack("completed")),
    "give back very many of one ephemeral partition": (100_000, ack("failed", 1)),
    "give back very many of an ephemeral queue with partitions": (100_000, ack("failed")),
    "ack one of very many ephemeral messages": (100_000, ack_backwards),
    "depth of an ephemeral queue with partitions": (100_000, asked("/queues/e/depth", groups=3)),
    "list an ephemeral queue with partitions": (100_000, asked("/queues", groups=3)),
    "reset an ephemeral queue with partitions": (100_000, asked("/reset", method="POST", groups=3)),
    "reset one ephemeral partition": (100_000, asked("/reset", method="POST", partitions=1)),
    "delete an ephemeral queue with partitions": (
        100_000,
        asked("/queue/e", method="DELETE", groups=3),
    ),
    "delete an ephemeral queue of one partition": (100_000, asked("/queue/e", method="DELETE", partitions=1)),
    "list ephemeral queues": (10_000, queues("/queues")),
    "push to a new ephemeral queue, the others are idle": (
        10_000,
        queues("/push", {"queue": "new", "messages": [{"payload": 1}]}),
    ),
    "settle ephemeral messages, the last of 200 groups": (100_000, last_of_groups),
    "push one message to waiting ephemeral pops": (5_000, wake(1)),
    "push as many messages as ephemeral pops wait": (5_000, wake(5_000)),
    "push to waiting pops of one ephemeral partition": (5_000, wake(5_000, "p")),
}
