"""Deliveries that are held or waited for by very many, and large requests over HTTP."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import pika
import pyarrow as pa
from bench.stalls import bulk, endings, wide
from bench.stalls.site import Prepare, Site

from holtmq.node import Node

_PUSHED_AT_ONCE: Final = 3_000  # as many as one request may push to a work queue


def on_channels(site: Site, count: int) -> Callable[[], object]:
    """Unacked messages of one queue on 2,000 channels of a connection that is lost."""
    bulk._fill(site, count, {})
    channels = min(2_000, count)
    got = 0

    def take(*_: object) -> None:
        nonlocal got
        got += 1

    for _ in range(channels):
        channel = site.channel.connection.channel()
        channel.basic_qos(prefetch_count=-(-count // channels))
        channel.basic_consume("q", take)
    while got < count:
        site.channel.connection.process_data_events(1)
    return site.broker.drop_connections


def while_unacked(request: Callable[[Any], object]) -> Prepare:
    """A request about a queue whose messages are all unacked, from another channel."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        bulk._fill(site, count, {})
        bulk.take(site, count)
        other = site.channel.connection.channel()
        return lambda: request(other)

    return prepare


def look(channel: Any) -> None:
    channel.queue_declare("q", passive=True)


def purge(channel: Any) -> None:
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    channel.queue_purge("q")


def delete(channel: Any) -> None:
    channel.queue_delete("q")


def get_behind_expired(site: Site, count: int) -> Callable[[], object]:
    """All messages have expired but the first, which hid them."""
    site.channel.queue_declare("deep", durable=True)
    site.channel.basic_publish("", "deep", b"x", pika.BasicProperties(delivery_mode=2))
    wide._fill(site, count, {}, "3600000")

    def late(node: Node) -> None:
        node.scheduler._clock = lambda: time.time() + 7_200
        node.scheduler.tick()

    site.topology(late)

    def get() -> None:
        for _ in range(2):
            site.channel.basic_get("deep", auto_ack=True)
        while site.channel.queue_declare("deep", passive=True).method.message_count:
            time.sleep(0.01)

    return get


def pop(size: int, *, work: bool = False) -> Prepare:
    """One pop of very many messages of this size."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        if work:
            site.channel.queue_declare("log", durable=True)
        at_once = max(1, min(1_000, (16 << 20) // size))
        for start in range(0, count, at_once):
            some = min(at_once, count - start)
            items = [{"queue": "log", "partition": "p", "payload": "x" * size}] * some
            site.http.post("/api/v1/push", json={"items": items}).raise_for_status()
        path = f"/api/v1/pop/queue/log?batch={count}"

        def ask() -> None:
            with site.http.stream("GET", path) as answer:
                answer.raise_for_status()
                for _ in answer.iter_raw():
                    pass

        return ask

    return prepare


def wake(work: bool) -> Prepare:
    """Clients that wait for a message; one push has one for each."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        if work:
            site.channel.queue_declare("log", durable=True)
        else:
            items = [{"queue": "log", "partition": f"p{number}", "payload": 1} for number in range(count)]
            site.http.post("/api/v1/push", json={"items": items}).raise_for_status()
            site.http.get(f"/api/v1/pop/queue/log?batch={count}&partitions=64&autoAck=true")
            while (
                site.http.get("/api/v1/pop/queue/log?batch=10000&partitions=64&autoAck=true").status_code
                == 200
            ):
                pass
        port = int(site.broker.http_url.rsplit(":", 1)[1].split("/")[0])
        head = b"Host: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
        ask = b"GET /api/v1/pop/queue/log?wait=true&timeout=300000 HTTP/1.1\r\n" + head
        sockets: list[socket.socket] = []
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port))
            one.sendall(ask)
            sockets.append(one)
        time.sleep(2)
        items = [{"queue": "log", "partition": f"p{number}", "payload": 1} for number in range(count)]

        def push() -> None:
            for start in range(0, count, _PUSHED_AT_ONCE):
                some = items[start : start + _PUSHED_AT_ONCE]
                site.http.post("/api/v1/push", json={"items": some}).raise_for_status()
            for one in sockets:
                assert one.recv(65_536).startswith(b"HTTP/1.1 200")

        return push

    return prepare


def expire_work(site: Site, count: int) -> Callable[[], object]:
    """Messages of a work queue, leased over HTTP by one worker; all leases expire at once."""
    bulk._fill(site, count, {})
    while site.http.get("/api/v1/pop/queue/q?batch=10000").status_code == 200:
        pass

    def late(node: Node) -> None:
        node.scheduler._clock = lambda: time.time() + 7_200
        node.scheduler.tick()

    def wait() -> None:
        site.topology(late)
        while site.channel.queue_declare("q", passive=True).method.message_count < count:
            time.sleep(0.01)

    return wait


def stage(site: Site, count: int) -> Callable[[], object]:
    """One part of a batch, as Arrow."""
    where = "/api/v1/staging/w/1/0/0"
    parameters: dict[str, str | int] = {"part": 0, "queue": "out", "partition": "p"}
    body = _rows(count)
    return lambda: site.http.put(where, content=body, params=parameters).raise_for_status()


def publish_rows(site: Site, count: int) -> Callable[[], object]:
    """Rows for an exchange, as Arrow."""
    site.channel.queue_declare("q", durable=True)
    where = "/api/v1/exchanges/amq.default/rows?routingKey=q"
    body = _rows(count)
    return lambda: site.http.post(where, content=body).raise_for_status()


def _rows(count: int) -> bytes:
    table = pa.table({"payload": [f'{{"n":{number}}}' for number in range(count)]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def import_shovels(site: Site, count: int) -> Callable[[], object]:
    """Their source cannot be reached."""
    value = {
        "src-protocol": "amqp091",
        "src-uri": "amqp://127.0.0.1:1",
        "src-queue": "a",
        "dest-protocol": "amqp091",
        "dest-uri": "amqp://",
        "dest-queue": "b",
    }
    rows = [
        {"vhost": "/", "component": "shovel", "name": f"shovel-{number}", "value": value}
        for number in range(count)
    ]
    body = json.dumps({"parameters": rows}).encode()

    def load() -> None:
        site.load_definitions(body)
        time.sleep(2)

    return load


def put_operator_policies(site: Site, count: int) -> Callable[[], object]:
    """As many operator policies as queues, each by a request of its own; measured for the last ones."""

    def make(node: Node) -> None:
        for number in range(count):
            node.broker.declare_queue(node.broker.vhost("/"), f"queue-{number}")

    site.topology(make)

    def put(number: int) -> None:
        body = {"pattern": f"^queue-{number}$", "definition": {"max-length": 10}, "apply-to": "queues"}
        site.http.put(f"/api/operator-policies/%2F/policy-{number}", json=body).raise_for_status()

    for number in range(count - 10):
        put(number)

    def put_last() -> None:
        for number in range(max(0, count - 10), count):
            put(number)

    return put_last


REQUESTS: dict[str, tuple[int, Prepare]] = {
    "connection lost with unacked on 2,000 channels": (100_000, on_channels),
    "pop 1 KiB messages": (10_000, pop(1 << 10)),
    "pop 100 KiB messages": (10_000, pop(100 << 10)),
    "pop 1 KiB messages of a work queue": (10_000, pop(1 << 10, work=True)),
    "pop 100 KiB messages of a work queue": (10_000, pop(100 << 10, work=True)),
    "import shovels": (400, import_shovels),
    "import policies for 5,000 queues": (5_000, endings.import_policies),
    "put operator policies for as many queues": (1_000, put_operator_policies),
    "stage rows": (20_000, stage),
    "publish rows to an exchange": (100_000, publish_rows),
    "leases of a work queue expire at once": (100_000, expire_work),
    "wake clients that wait": (5_000, wake(work=False)),
    "wake clients that wait for a work queue": (5_000, wake(work=True)),
    "get behind expired messages": (1_000_000, get_behind_expired),
    "look at a queue with unacked": (100_000, while_unacked(look)),
    "purge a queue with unacked": (100_000, while_unacked(purge)),
    "delete a queue with unacked": (100_000, while_unacked(delete)),
    "recover all unacked, priorities": (100_000, bulk.unacked(endings.recover, {"x-max-priority": 9})),
}
