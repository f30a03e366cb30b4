"""Ends that concern very many things: channels, connections of a vhost, deep queues, readers of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable

import pika
from bench.stalls.clients import open_connections
from bench.stalls.site import Site

from holtmq.broker.message import make_address
from holtmq.node import Node
from holtmq.wire.properties import Properties, encode_header, encode_properties


def recover(site: Site, tag: str) -> object:
    return site.channel.basic_recover(requeue=True)


def close_channels(site: Site, count: int) -> Callable[[], object]:
    """A connection with very many channels, each with a consumer, is lost."""
    site.channel.queue_declare("q")
    for _ in range(count):
        site.channel.connection.channel().basic_consume("q", lambda *_: None)
    return site.broker.drop_connections


def delete_used_vhost(site: Site, count: int) -> Callable[[], object]:
    """As many connections as queues."""
    site.http.put("/api/vhosts/large").raise_for_status()
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    site.http.put("/api/permissions/large/guest", json=rights).raise_for_status()
    sockets = open_connections(site, count, vhost="large")

    def make(node: Node) -> None:
        for number in range(count):
            node.broker.declare_queue(node.broker.vhost("large"), f"queue-{number}", durable=True)

    site.topology(make)

    def delete() -> None:
        site.http.delete("/api/vhosts/large").raise_for_status()
        assert sockets

    return delete


def _fill(site: Site, queue: str, count: int) -> None:
    site.channel.queue_declare(queue, durable=True)
    header = encode_header(16, encode_properties(Properties(delivery_mode=2)))

    def publish(node: Node) -> None:
        broker = node.broker
        route = broker.resolve(broker.vhost("/"), "", queue, make_address("", queue))
        properties = broker.flow.publish_properties.of(header)
        for _ in range(min(count, 10_000)):
            broker.flow.publishing.publish(route, properties, header, b"x" * 16)

    for _ in range(0, count, 10_000):
        site.topology(publish)


def purge_deep(site: Site, count: int) -> Callable[[], object]:
    _fill(site, "deep", count)
    return lambda: site.channel.queue_purge("deep")


def delete_deep(site: Site, count: int) -> Callable[[], object]:
    _fill(site, "deep", count)
    return lambda: site.channel.queue_delete("deep")


def import_policies(site: Site, count: int) -> Callable[[], object]:
    """As many policies as there are queues, each for one of them."""

    def make(node: Node) -> None:
        for number in range(count):
            node.broker.declare_queue(node.broker.vhost("/"), f"queue-{number}")

    site.topology(make)
    policies = [
        {
            "vhost": "/",
            "name": f"policy-{number}",
            "pattern": f"^queue-{number}$",
            "definition": {"max-length": 10},
            "priority": 0,
            "apply-to": "queues",
        }
        for number in range(count)
    ]
    body = json.dumps({"policies": policies}).encode()
    return lambda: site.load_definitions(body)


def publish_to_readers(site: Site, count: int) -> Callable[[], object]:
    """Very many readers of one stream."""
    site.channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
    site.channel.basic_qos(prefetch_count=10)
    for number in range(count):  # without waiting for each answer
        method = pika.spec.Basic.Consume(queue="log", consumer_tag=f"c-{number}", nowait=True)
        site.channel._impl._send_method(method)
    site.channel.queue_declare("log", passive=True)
    other = site.channel.connection.channel()
    other.confirm_delivery()

    def publish() -> None:
        other.basic_publish("", "log", b"x", pika.BasicProperties(delivery_mode=2))
        other.queue_declare("log", passive=True)

    return publish
