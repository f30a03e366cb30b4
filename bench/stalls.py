"""How long one request holds the broker's loop: the worst of what a client can ask for, in CPU time.

Owns: the requests and the meter. Must not touch: the broker's insides beyond its loop. A loop that is always
busy with the meter notes how much CPU each of its rounds took; the worst round is the stall: all other
clients wait for its end. CPU time, because a busy machine must not look like a slow broker.

    python -m bench.stalls [--scale 1.0] [--only NAME]
"""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import httpx
import pika
from pika.adapters.blocking_connection import BlockingChannel
from rich.console import Console
from rich.table import Table

from holtmq.broker.partitioned.groups.subscriptions import StartRequest
from holtmq.broker.partitioned.requests import PopRequest
from holtmq.config import Config, Limits
from holtmq.heap import COLLECT_AFTER
from holtmq.node import Node
from holtmq.testing import TestBroker

GOAL_MS: Final = 50.0
_PATIENCE: Final = 600.0
_ALL: Final = StartRequest()
_IDLE: Final = 25e-6  # seconds: a round with the meter alone takes about 5 µs


class Meter:
    """Notes the CPU time of each round of a loop while it runs. Rounds with nothing but the meter itself are
    not in the total: a request that waits for its client costs nothing."""

    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker
        self._running = False
        self._last = 0.0
        self.worst = self.total = 0.0  # seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure what happens meanwhile."""
        self._broker.call(self._start)
        yield
        self._broker.call(self._stop)

    def _start(self, _: Node) -> None:
        self._running = True
        self.worst = self.total = 0.0
        self._last = time.thread_time()
        asyncio.get_running_loop().call_soon(self._beat)

    def _stop(self, _: Node) -> None:
        self._beat()
        self._running = False

    def _beat(self) -> None:
        if self._running:
            now = time.thread_time()
            spent, self._last = now - self._last, now
            self.worst = max(self.worst, spent)
            if spent > _IDLE:
                self.total += spent
            asyncio.get_running_loop().call_soon(self._beat)


@dataclass
class Site:
    """A broker with the connections of one request."""

    broker: TestBroker
    channel: BlockingChannel
    http: httpx.Client

    def get(self, path: str) -> None:
        self.http.get(path).raise_for_status()

    def topology(self, work: Callable[[Node], object]) -> None:
        """Set the stage from inside: a hundred thousand requests would take minutes."""
        self.broker.call(work)


Prepare = Callable[[Site, int], Callable[[], object]]


def _bindings(site: Site, count: int, queues: int = 100) -> None:
    def make(node: Node) -> None:
        broker = node.broker
        vhost = broker.vhost("/")
        broker.exchanges.declare(vhost, "many", "topic")
        for number in range(queues):
            broker.declare_queue(vhost, f"bound-{number}")
        for number in range(count):
            broker.bind(vhost, "many", f"bound-{number % queues}", f"key.{number}")

    site.topology(make)


def _queues(site: Site, count: int) -> None:
    def make(node: Node) -> None:
        vhost = node.broker.vhost("/")
        for number in range(count):
            node.broker.declare_queue(vhost, f"queue-{number}")

    site.topology(make)


def _filled(site: Site, queue: str, count: int) -> None:
    site.channel.queue_declare(queue, durable=True)
    for _ in range(count):
        site.channel.basic_publish("", queue, b"x" * 16)
    site.channel.queue_declare(queue, passive=True)


def commit(site: Site, count: int) -> Callable[[], object]:
    site.channel.queue_declare("q", durable=True)
    site.channel.tx_select()
    for _ in range(count):
        site.channel.basic_publish("", "q", b"x" * 16, pika.BasicProperties(delivery_mode=2))
    site.channel.queue_declare("q", passive=True)
    return lambda: site.channel.tx_commit()


def commit_acks(site: Site, count: int) -> Callable[[], object]:
    requeue(site, count)
    site.channel.tx_select()
    site.channel.basic_ack(0, multiple=True)
    site.channel.queue_declare("q", passive=True)
    return lambda: site.channel.tx_commit()


def delayed(site: Site, count: int) -> Callable[[], object]:
    arguments = {"x-delayed-type": "fanout"}
    site.channel.exchange_declare("late", "x-delayed-message", durable=True, arguments=arguments)
    site.channel.queue_declare("q", durable=True)
    site.channel.queue_bind("q", "late")
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 3_600_000})
    for _ in range(count):
        site.channel.basic_publish("late", "", b"x" * 16, properties)
    site.channel.queue_declare("q", passive=True)

    def the_clock_is_set_forward(node: Node) -> None:
        node.scheduler._clock = lambda: time.time() + 7_200
        node.scheduler.tick()

    def wait() -> None:
        site.topology(the_clock_is_set_forward)
        while site.channel.queue_declare("q", passive=True).method.message_count < count:
            time.sleep(0.01)

    return wait


def load_definitions(site: Site, count: int) -> Callable[[], object]:
    bindings = [
        {
            "source": "many",
            "vhost": "/",
            "destination": f"bound-{number % 100}",
            "destination_type": "queue",
            "routing_key": f"key.{number}",
            "arguments": {},
        }
        for number in range(count)
    ]
    queues = [
        {"name": f"bound-{number}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for number in range(100)
    ]
    exchange = {
        "name": "many",
        "vhost": "/",
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    }
    body = json.dumps({"queues": queues, "exchanges": [exchange], "bindings": bindings}).encode()
    return lambda: site.http.post("/api/definitions", content=body).raise_for_status()


def list_bindings(site: Site, count: int) -> Callable[[], object]:
    _bindings(site, count)
    return lambda: site.get("/api/bindings")


def sort_bindings(site: Site, count: int) -> Callable[[], object]:
    _bindings(site, count)
    return lambda: site.get("/api/bindings?sort=routing_key&sort_reverse=true&columns=source,routing_key")


def export(site: Site, count: int) -> Callable[[], object]:
    _bindings(site, count)
    return lambda: site.get("/api/definitions")


def list_queues(site: Site, count: int) -> Callable[[], object]:
    _queues(site, count)
    return lambda: site.get("/api/queues")


def overview(site: Site, count: int) -> Callable[[], object]:
    _queues(site, count)
    return lambda: site.get("/api/overview")


def put_policy(site: Site, count: int) -> Callable[[], object]:
    _queues(site, count)
    body = {"pattern": "^queue-", "definition": {"max-length": 10}}
    return lambda: site.http.put("/api/policies/%2F/wide", json=body).raise_for_status()


def delete_exchange(site: Site, count: int) -> Callable[[], object]:
    _bindings(site, count)
    return lambda: site.channel.exchange_delete("many")


def delete_queue(site: Site, count: int) -> Callable[[], object]:
    _bindings(site, count, queues=1)
    return lambda: site.channel.queue_delete("bound-0")


def bind_and_unbind(site: Site, count: int) -> Callable[[], object]:
    _bindings(site, count, queues=1)

    def change() -> None:
        site.channel.queue_bind("bound-0", "many", "one.more")
        for key in ("one.more", "key.0", f"key.{count - 1}"):
            site.channel.queue_unbind("bound-0", "many", key)

    return change


def delete_binding(site: Site, count: int) -> Callable[[], object]:
    _bindings(site, count, queues=1)
    return lambda: site.http.delete("/api/bindings/%2F/e/many/q/bound-0/key.7").raise_for_status()


def list_bindings_of_queue(site: Site, count: int) -> Callable[[], object]:
    _bindings(site, count, queues=1)
    return lambda: site.get("/api/queues/%2F/bound-0/bindings")


def _chosen(site: Site, count: int, kind: str) -> None:
    def make(node: Node) -> None:
        broker = node.broker
        vhost = broker.vhost("/")
        broker.exchanges.declare(vhost, "choosing", kind)
        for number in range(count):
            broker.declare_queue(vhost, f"chosen-{number}")
            broker.bind(vhost, "choosing", f"chosen-{number}", "1")

    site.topology(make)


def choose(kind: str) -> Prepare:
    """The first message after a binding was added."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _chosen(site, count, kind)
        site.channel.queue_declare("more")

        def change() -> None:
            site.channel.queue_bind("more", "choosing", "1")
            site.channel.basic_publish("choosing", "key", b"x")
            site.channel.queue_declare("more", passive=True)

        return change

    return prepare


def delete_vhost(site: Site, count: int) -> Callable[[], object]:
    def make(node: Node) -> None:
        broker = node.broker
        broker.put_vhost("large")
        vhost = broker.vhost("large")
        broker.exchanges.declare(vhost, "many", "topic", durable=True)
        for number in range(count):
            broker.declare_queue(vhost, f"queue-{number}", durable=True)
            for key in range(5):
                broker.bind(vhost, "many", f"queue-{number}", f"key.{key}.{number}")

    site.topology(make)
    return lambda: site.http.delete("/api/vhosts/large").raise_for_status()


def sample_used(site: Site, count: int) -> Callable[[], object]:
    """The second in which every queue got a message."""
    _queues(site, count)
    for number in range(count):
        site.channel.basic_publish("", f"queue-{number}", b"x")
    site.channel.queue_declare("queue-0", passive=True)
    return lambda: time.sleep(2.5)


def drop_exclusive(site: Site, count: int) -> Callable[[], object]:
    for number in range(count):
        site.channel.queue_declare(f"mine-{number}", exclusive=True)
    return site.broker.drop_connections


def _consumers(site: Site, count: int) -> None:
    site.channel.queue_declare("q")
    site.channel.basic_qos(prefetch_count=1)
    for number in range(count):
        site.channel.basic_consume("q", lambda *_: None, consumer_tag=f"c-{number}")


def cancel_consumer(site: Site, count: int) -> Callable[[], object]:
    _consumers(site, count)
    return lambda: site.channel.basic_cancel("c-1")


def delete_consumed(site: Site, count: int) -> Callable[[], object]:
    _consumers(site, count)
    return lambda: site.http.delete("/api/queues/%2F/q").raise_for_status()


def publish_to_consumers(site: Site, count: int) -> Callable[[], object]:
    _consumers(site, count)

    def publish() -> None:
        other = site.channel.connection.channel()
        for _ in range(1_000):
            other.basic_publish("", "q", b"x")
        other.queue_declare("q", passive=True)

    return publish


def list_delayed(site: Site, count: int) -> Callable[[], object]:
    delayed(site, count)
    return lambda: site.get("/api/v1/delayed")


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


def list_consumers(site: Site, count: int) -> Callable[[], object]:
    site.channel.queue_declare("q")
    for _ in range(count):
        site.channel.basic_consume("q", lambda *_: None)
    return lambda: site.get("/api/consumers")


def close_consumers(site: Site, count: int) -> Callable[[], object]:
    list_consumers(site, count)
    return site.broker.drop_connections


def purge(site: Site, count: int) -> Callable[[], object]:
    _filled(site, "q", count)
    return lambda: site.channel.queue_purge("q")


def requeue(site: Site, count: int) -> Callable[[], object]:
    _filled(site, "q", count)
    got = 0

    def take(*_: object) -> None:
        nonlocal got
        got += 1

    site.channel.basic_consume("q", take)
    while got < count:
        site.channel.connection.process_data_events(1)
    return lambda: site.channel.close()


REQUESTS: Final[dict[str, tuple[int, Prepare]]] = {
    "tx.commit": (100_000, commit),
    "tx.commit of acks": (100_000, commit_acks),
    "delayed messages due at once": (100_000, delayed),
    "load definitions with bindings": (100_000, load_definitions),
    "list bindings": (100_000, list_bindings),
    "list bindings, sorted, two columns": (100_000, sort_bindings),
    "export definitions with bindings": (100_000, export),
    "list queues": (20_000, list_queues),
    "overview of queues": (20_000, overview),
    "policy over queues": (20_000, put_policy),
    "delete an exchange with bindings": (100_000, delete_exchange),
    "delete a queue with bindings": (100_000, delete_queue),
    "bind and unbind among bindings": (100_000, bind_and_unbind),
    "delete one of many bindings over HTTP": (100_000, delete_binding),
    "bindings of a queue": (100_000, list_bindings_of_queue),
    "publish to a changed random exchange": (10_000, choose("x-random")),
    "publish to a changed consistent-hash exchange": (1_000, choose("x-consistent-hash")),
    "delete a vhost with queues": (20_000, delete_vhost),
    "rates of queues that are all used": (20_000, sample_used),
    "connection lost with exclusive queues": (20_000, drop_exclusive),
    "cancel one of many consumers": (10_000, cancel_consumer),
    "delete a queue with consumers": (10_000, delete_consumed),
    "publish to many consumers": (10_000, publish_to_consumers),
    "list delayed messages": (100_000, list_delayed),
    "pop of any partition": (10_000, partitioned("/api/v1/pop/queue/log?batch=10&partitions=10")),
    "show a queue with partitions": (10_000, partitioned("/api/v1/resources/queues/log")),
    "status of a queue with partitions": (10_000, partitioned("/api/v1/status/queues/log")),
    "delete a queue with partitions": (10_000, partitioned("/api/v1/resources/queues/log", "DELETE")),
    "list groups": (10_000, grouped("/api/v1/consumer-groups")),
    "push to a queue with groups": (
        10_000,
        grouped("/api/v1/push", "POST", {"items": [{"queue": "log", "partition": "p0", "payload": 1}]}),
    ),
    "delete a queue with groups": (10_000, grouped("/api/v1/resources/queues/log", "DELETE")),
    "list consumers": (10_000, list_consumers),
    "connection lost with consumers": (10_000, close_consumers),
    "purge": (100_000, purge),
    "close a channel with unacked": (100_000, requeue),
}


def measure(name: str, scale: float) -> tuple[int, float, float]:
    """How many things it was about, the worst stall and all of the CPU, in milliseconds."""
    size, prepare = REQUESTS[name]
    count = max(1, int(size * scale))
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)  # as ``holt serve`` does
    config = Config(limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0))
    with (
        tempfile.TemporaryDirectory(prefix="holt-stalls-") as folder,
        TestBroker(Path(folder), clock="real", config=config) as broker,
        httpx.Client(base_url=broker.http_url, auth=("guest", "guest"), timeout=_PATIENCE) as http,
    ):
        parameters = pika.URLParameters(broker.amqp_url + "?heartbeat=0")
        connection = pika.BlockingConnection(parameters)
        request = prepare(Site(broker, connection.channel(), http), count)
        meter = Meter(broker)
        gc.collect()  # the client's objects are in the same process
        with meter.running():
            request()
            broker.call(lambda node: node.broker.flow.turn())
        with suppress(pika.exceptions.AMQPError):  # it may be gone
            connection.close()
    return count, meter.worst * 1000, meter.total * 1000


@click.command()
@click.option("--scale", default=1.0, show_default=True, help="How much of each: 0.1 is a tenth.")
@click.option("--only", type=click.Choice(list(REQUESTS)), help="One request alone.")
def main(scale: float, only: str | None) -> None:
    """The worst stall of each request."""
    table = Table("request", "of", "worst stall, ms", "all CPU, ms", f"goal: {GOAL_MS:g} ms")
    for name in [only] if only else REQUESTS:
        count, worst, total = measure(name, scale)
        table.add_row(name, f"{count:,}", f"{worst:.0f}", f"{total:.0f}", "yes" if worst <= GOAL_MS else "no")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
