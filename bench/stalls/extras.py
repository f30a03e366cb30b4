"""Requests about keyed rows, timers, traces and the state of stream processors."""

from __future__ import annotations

import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from http.client import HTTPConnection

import msgspec
from bench.stalls.site import Prepare, Site

from holtmq.broker.partitioned.extras.keyed import KeyOp, Verb
from holtmq.broker.partitioned.extras.timers import Timed, TimedChange
from holtmq.broker.partitioned.log.identifiers import promised_id
from holtmq.node import Node

_HOUR_US = 3_600_000_000
_AT_ONCE = 5_000


def put_rows(site: Site, count: int, *, ttl_us: int = 0, age_us: int = 0) -> None:
    """Put rows, as if that had been some time ago."""

    def put(node: Node) -> None:
        keyed, now_us = node.partitioned.keyed, int(time.time() * 1e6) - age_us
        for start in range(0, count, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, count))
            ops = [
                KeyOp(Verb.PUT, "ns", f"key-{n * 7_919 % count:07}", b'{"n":%d}' % n, ttl_us) for n in numbers
            ]
            keyed.commit(keyed.decide(ops, now_us))

    site.topology(put)


def _ask(site: Site, operations: list[dict[str, object]]) -> object:
    return site.http.post("/api/v1/kv", json={"operations": operations}).raise_for_status()


def list_rows(site: Site, count: int) -> Callable[[], object]:
    put_rows(site, count)
    return lambda: _ask(site, [{"op": "getPrefix", "ns": "ns", "prefix": "key", "limit": 1_000}])


def list_rows_often(site: Site, count: int) -> Callable[[], object]:
    """As many lists as one request may have."""
    put_rows(site, count)
    asked: dict[str, object] = {"op": "getPrefix", "ns": "ns", "prefix": "key", "limit": 1_000}
    _ask(site, [asked])
    return lambda: _ask(site, [asked] * 256)


def get_rows(site: Site, count: int) -> Callable[[], object]:
    """Very many rows by their keys in one request."""
    put_rows(site, count)
    keys = [f"key-{number:07}" for number in range(min(count, 5_000))]  # more are refused
    return lambda: _ask(site, [{"op": "getMany", "ns": "ns", "keys": keys}])


def expire_rows(site: Site, count: int) -> Callable[[], object]:
    """Rows of a namespace whose keys are sorted have expired; the next request finds them."""
    put_rows(site, count, ttl_us=_HOUR_US, age_us=2 * _HOUR_US)

    def sort(node: Node) -> None:
        op = KeyOp(Verb.GET_PREFIX, "ns", prefix="key")
        node.partitioned.keyed.decide([op], int(time.time() * 1e6) - 2 * _HOUR_US)

    site.topology(sort)
    return lambda: _ask(site, [{"op": "getPrefix", "ns": "ns", "prefix": "key", "limit": 1}])


def put_rows_again(site: Site, count: int) -> Callable[[], object]:
    """Rows that expire are put again, which leaves outdated deadlines."""
    put_rows(site, count, ttl_us=_HOUR_US)
    bodies = [
        msgspec.json.encode(
            {
                "operations": [
                    {"op": "put", "ns": "ns", "key": f"key-{n % count:07}", "value": n, "ttlSeconds": 3_600}
                    for n in range(start, start + 256)
                ]
            }
        )
        for start in range(0, 2 * count, 256)
    ]
    user = b64encode(b"guest:guest").decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {user}"}

    def again() -> None:
        # httpx leaves cycles; the broker's thread would collect those of 782 requests, for 30 to 150 ms.
        connection = HTTPConnection(site.http.base_url.host, site.http.base_url.port)
        for body in bodies:
            connection.request("POST", "/api/v1/kv", body, headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
        connection.close()

    return again


def set_timers(site: Site, count: int, delay_us: int = _HOUR_US) -> None:
    payload = b'{"n":1}'

    def put(node: Node) -> None:
        service, due_us = node.partitioned, int(time.time() * 1e6) + delay_us
        for start in range(0, count, _AT_ONCE):
            timers = [
                Timed(
                    "log",
                    f"key-{n * 7_919 % count:07}",
                    "p",
                    f"t-{n}",
                    payload,
                    due_us + n,
                    promised_id(due_us + n, n),
                )
                for n in range(start, min(start + _AT_ONCE, count))
            ]
            service.store.commit_state(service.timed.record(TimedChange(timers)))
        service.plan_timed()

    site.topology(put)


def list_timers(site: Site, count: int) -> Callable[[], object]:
    set_timers(site, count)
    return lambda: site.get("/api/v1/timers/log?limit=1000")


def move_timers(site: Site, count: int) -> Callable[[], object]:
    """Each move leaves an outdated entry."""
    set_timers(site, count)
    payload = b64encode(b"1").decode()

    def move() -> None:
        for start in range(0, 2 * count, 256):
            ops = [
                {
                    "op": "reschedule",
                    "queue": "log",
                    "timerKey": f"key-{n % count:07}",
                    "delayMs": 7_200_000,
                    "payload": payload,
                }
                for n in range(start, start + 256)
            ]
            site.http.post("/api/v1/timers", json={"operations": ops}).raise_for_status()

    return move


def fire_timers(site: Site, count: int) -> Callable[[], object]:
    """All are due at once."""
    set_timers(site, count, 3_000_000)

    def wait() -> None:
        while len(site.broker.call(lambda node: node.partitioned.timed)):
            time.sleep(0.05)

    return wait


def add_traces(site: Site, count: int, names: Callable[[int], list[str]]) -> None:
    site.http.post(
        "/api/v1/push",
        json={"items": [{"queue": "log", "partition": "p", "payload": 1, "transactionId": "t"}]},
    ).raise_for_status()

    def add(node: Node) -> None:
        from holtmq.broker.partitioned.commands.admin import trace

        queue = node.partitioned.store.queues["log"]
        for number in range(count):
            given = tuple(names(number))
            trace(node.partitioned, queue.number, 0, "t", "g", "info", given, b"1", time.time())

    site.topology(add)


def list_trace_names(site: Site, count: int) -> Callable[[], object]:
    add_traces(site, count, lambda number: [f"name-{number}"])
    return lambda: site.get("/api/v1/traces/names")


def list_traces(site: Site, count: int) -> Callable[[], object]:
    """10,000 of very many events of one name."""
    add_traces(site, count, lambda _: ["name"])
    return lambda: site.get("/api/v1/traces/by-name/name?limit=10000&from=2020-01-01T00:00:00Z")


def read_state(site: Site, count: int) -> Callable[[], object]:
    """All state rows of a query in a partition, of which few are wanted."""
    items = [{"queue": "log", "partition": "p", "payload": 1}]
    site.http.post("/api/v1/push", json={"items": items}).raise_for_status()
    asked = {"name": "query", "source_queue": "log", "config_hash": "1"}
    query = site.http.post("/streams/v1/queries", json=asked).raise_for_status().json()["query_id"]
    popped = site.http.get("/api/v1/pop/queue/log?consumerGroup=g&subscriptionMode=all").json()
    partition = popped["messages"][0]["partitionId"]

    def put(node: Node) -> None:
        from holtmq.broker.partitioned.extras.stream_state import StateOp

        streams = node.partitioned.streams
        for start in range(0, count, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, count))
            ops = [StateOp(f"key-{n:07}", msgspec.json.encode({"windowEnd": n})) for n in numbers]
            node.partitioned.store.commit_state(streams.change(query, partition, ops, time.time()))

    site.topology(put)
    wanted = {"query_id": query, "partition_id": partition, "ripe_at_or_before": 10}
    return lambda: site.http.post("/streams/v1/state/get", json=wanted).raise_for_status()


def show_day(path: str) -> Prepare:
    """The figures of a day in which as many queues were used in each minute."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        now_us = int(time.time() * 1e6)

        def count_in(minute: int, node: Node) -> None:
            for number in range(count):
                node.partitioned.counters.of(f"queue-{number}").push_messages += 1
            deque(node.http._context.history._reading(now_us // 60_000_000 + minute - 24 * 60), maxlen=0)

        for minute in range(24 * 60):
            site.topology(partial(count_in, minute))
        since = datetime.fromtimestamp(now_us / 1e6 - 24 * 3_600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return lambda: site.get(f"{path}?from={since}")

    return prepare
