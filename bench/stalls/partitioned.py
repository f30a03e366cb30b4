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
        node.partitioned.record_deliveries()  # so many pops at once do not belong to what is measured

    site.topology(make)


def partitions_of_group(path: str) -> Prepare:
    """A group that reads very many partitions."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _partitions(site, count)
        site.get("/api/v1/pop/queue/log?consumerGroup=g&subscriptionMode=all")
        return lambda: site.get(path)

    return prepare


def messages_with_groups(path: str) -> Prepare:
    """A list of messages, each with its state over as many groups."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _partitions(site, 1_000)
        _groups(site, count)
        return lambda: site.get(path)

    return prepare


def grouped(path: str, method: str = "GET", body: object = None) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _groups(site, count)
        return lambda: site.http.request(method, path, json=body).raise_for_status()

    return prepare


def push(*, new: bool) -> Prepare:
    """One push to as many queues."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        items = [{"queue": f"log-{number}", "payload": number} for number in range(count)]
        for start in range(0, 0 if new else count, 400):
            site.http.post("/api/v1/push", json={"items": items[start : start + 400]}).raise_for_status()
        return lambda: site.http.post("/api/v1/push", json={"items": items}).raise_for_status()

    return prepare


def push_to_work_queue(site: Site, count: int) -> Callable[[], object]:
    site.channel.queue_declare("work", durable=True)
    items = [{"queue": "work", "payload": number} for number in range(count)]
    return lambda: site.http.post("/api/v1/push", json={"items": items}).raise_for_status()


def transact(site: Site, count: int) -> Callable[[], object]:
    """Each operation is a push to a partition of its own."""
    operations = [
        {"type": "push", "items": [{"queue": "log", "partition": f"p{number}", "payload": number}]}
        for number in range(count)
    ]
    return lambda: site.http.post("/api/v1/transaction", json={"operations": operations}).raise_for_status()


def seek(site: Site, count: int) -> Callable[[], object]:
    """A group that has read from every partition goes back to the start."""
    _leases(site, count)
    path = "/api/v1/consumer-groups/g/queues/log/seek"
    return lambda: site.http.post(path, json={"toStart": True}).raise_for_status()


def delete_group(site: Site, count: int) -> Callable[[], object]:
    _leases(site, count)
    return lambda: site.http.delete("/api/v1/consumer-groups/g").raise_for_status()


def _leases(site: Site, count: int) -> list[dict[str, str]]:
    """Lease one message of each partition; return their acknowledgments."""
    _partitions(site, count)
    found: list[dict[str, str]] = []
    while len(found) < count:
        path = "/api/v1/pop/queue/log?consumerGroup=g&batch=1000&partitions=1000&subscriptionMode=all"
        messages = site.http.get(path).json()["messages"]
        assert messages, found
        names = ("transactionId", "partitionId", "leaseId")
        found += [{name: message[name] for name in names} for message in messages]
    return found


def ack(site: Site, count: int) -> Callable[[], object]:
    found = _leases(site, count)
    body = {"acknowledgments": found, "consumerGroup": "g"}
    return lambda: site.http.post("/api/v1/ack/batch", json=body).raise_for_status()


def dead_letter(partitions: int) -> Prepare:
    """Dead-letter messages of some partitions in one batch."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        for start in range(0, count, 1_000):
            items = [
                {"queue": "log", "partition": f"p{number % partitions}", "payload": number}
                for number in range(start, min(start + 1_000, count))
            ]
            site.http.post("/api/v1/push", json={"items": items}).raise_for_status()
        path = "/api/v1/pop/queue/log?consumerGroup=g&batch=5000&partitions=1000&subscriptionMode=all"
        names = ("transactionId", "partitionId", "leaseId")
        found: list[dict[str, str]] = []
        while len(found) < count:
            messages = site.http.get(path).json()["messages"]
            found += [{**{name: one[name] for name in names}, "status": "dlq"} for one in messages]
        body = {"acknowledgments": found, "consumerGroup": "g"}
        return lambda: site.http.post("/api/v1/ack/batch", json=body).raise_for_status()

    return prepare


def dead_letter_without_lease(site: Site, count: int) -> Callable[[], object]:
    """The acknowledgments of one batch need no lease, so they may be as many as a batch may have."""
    items = [{"queue": "log", "partition": "p", "transactionId": f"t{n}", "payload": n} for n in range(count)]
    for start in range(0, count, 1_000):
        pushed = site.http.post("/api/v1/push", json={"items": items[start : start + 1_000]}).json()
    home = pushed[0]["partition_id"]
    acks = [{"transactionId": f"t{n}", "partitionId": home, "status": "dlq"} for n in range(count)]
    body = {"acknowledgments": acks, "consumerGroup": "g"}
    return lambda: site.http.post("/api/v1/ack/batch", json=body).raise_for_status()


def ack_unknown(site: Site, count: int) -> Callable[[], object]:
    """Messages of these ids do not exist: they are searched for among those around the group's cursor."""
    home = _deep_partition(site)
    acks = [{"transactionId": f"unknown-{number}", "partitionId": home} for number in range(count)]
    return lambda: site.http.post("/api/v1/ack/batch", json={"acknowledgments": acks}).raise_for_status()


def transact_unknown(site: Site, count: int) -> Callable[[], object]:
    home = _deep_partition(site)
    operations = [
        {"type": "ack", "transactionId": f"unknown-{number}", "partitionId": home} for number in range(count)
    ]
    return lambda: site.http.post("/api/v1/transaction", json={"operations": operations}).raise_for_status()


def _deep_partition(site: Site) -> str:
    items = [{"queue": "log", "partition": "p", "payload": n} for n in range(1_000)]
    for _ in range(10):
        pushed = site.http.post("/api/v1/push", json={"items": items}).json()
    return str(pushed[0]["partition_id"])


def limited(site: Site, count: int) -> Callable[[], object]:
    """A push to a queue that may be full, after something was acknowledged."""
    site.http.post("/api/v1/configure", json={"queue": "log", "options": {"maxSize": 10_000_000}})
    _partitions(site, count)
    for group in ("g", "h"):
        site.get(f"/api/v1/pop/queue/log?consumerGroup={group}&subscriptionMode=all&autoAck=true")
    item = {"queue": "log", "partition": "p0", "payload": 1}

    def push_again() -> None:
        for _ in range(3):
            site.get("/api/v1/pop/queue/log?consumerGroup=g&autoAck=true")
            site.http.post("/api/v1/push", json={"items": [item]}).raise_for_status()

    return push_again


def ack_by_turns(site: Site, count: int) -> Callable[[], object]:
    """Each ack is for another group than the one before it, so each is settled by itself."""
    found = _leases(site, count)
    acks = [{**one, "consumerGroup": "gh"[at % 2]} for at, one in enumerate(found)]
    return lambda: site.http.post("/api/v1/ack/batch", json={"acknowledgments": acks}).raise_for_status()


def ack_work_queue(status: str) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        site.channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        site.channel.queue_declare("work", durable=True, arguments=arguments)
        for start in range(0, count, 1_000):
            items = [{"queue": "work", "payload": n} for n in range(start, start + 1_000)]
            site.http.post("/api/v1/push", json={"items": items}).raise_for_status()
        names = ("transactionId", "partitionId", "leaseId")
        acks: list[dict[str, str]] = []
        while len(acks) < count:
            messages = site.http.get("/api/v1/pop/queue/work?batch=5000").json()["messages"]
            acks += [{**{name: one[name] for name in names}, "status": status} for one in messages]
        body = {"acknowledgments": acks}
        return lambda: site.http.post("/api/v1/ack/batch", json=body).raise_for_status()

    return prepare


def expire(site: Site, count: int) -> Callable[[], object]:
    """All leases expire at once."""
    _leases(site, count)

    def late(node: Node) -> None:
        node.scheduler._clock = lambda: time.time() + 7_200
        node.scheduler.tick()

    def wait() -> None:
        site.topology(late)
        site.get("/api/v1/resources/queues/log")

    return wait
