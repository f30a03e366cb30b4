"""Requests about exchanges, bindings and queues."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from bench.stalls.site import Prepare, Site

from holtmq.node import Node


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
    return lambda: site.load_definitions(body)


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


def list_vhosts(site: Site, count: int) -> Callable[[], object]:
    def make(node: Node) -> None:
        for number in range(count):
            node.broker.put_vhost(f"vhost-{number}")

    site.topology(make)
    return lambda: site.get("/api/vhosts")


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

    def drop() -> None:
        site.broker.drop_connections()
        while site.broker.call(lambda node: len(node.broker.vhost("/").queues)):
            time.sleep(0.01)

    return drop
