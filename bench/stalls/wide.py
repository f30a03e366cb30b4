"""One message to very many queues, very many consumers, and deep queues of other kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pika
from bench.stalls import bulk, messages, transactions
from bench.stalls.clients import open_connections
from bench.stalls.site import Prepare, Site

from holtmq.broker.message import make_address
from holtmq.node import Node
from holtmq.wire.properties import Properties, encode_header, encode_properties

_KEPT = pika.BasicProperties(delivery_mode=2)


def publish(
    kind: str, binding: tuple[str, dict[str, Any]], *, durable: bool = True, again: bool = False
) -> Prepare:
    """A message with confirm that reaches as many queues as there are; ``again``: not the first such one."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        def make(node: Node) -> None:
            vhost = node.broker.vhost("/")
            node.broker.exchanges.declare(vhost, "wide", kind, durable=durable)
            for number in range(count):
                node.broker.declare_queue(vhost, f"wide-{number}", durable=durable)
                node.broker.bind(vhost, "wide", f"wide-{number}", *binding)

        site.topology(make)
        site.channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2 if durable else 1, headers={"kind": "k"})

        def send() -> None:
            site.channel.basic_publish("wide", "a.b.c", b"x", properties)

        if again:
            send()
        return send

    return prepare


def _consume(channel: Any, queues: int, count: int, first: int = 0) -> None:
    """Consume without waiting for each answer."""
    impl = channel._impl
    for number in range(first, first + count):
        queue = f"q-{number % queues}"
        method = pika.spec.Basic.Consume(queue=queue, consumer_tag=f"c-{number}", nowait=True)
        impl._send_method(method)
        if number % 1_000 == 0:
            channel.queue_declare(queue, passive=True)
    channel.queue_declare("q-0", passive=True)


def _declare(site: Site, queues: int) -> None:
    for number in range(queues):
        site.channel.queue_declare(f"q-{number}")


def declare_consumers(queues: int) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _declare(site, queues)
        return lambda: _consume(site.channel, queues, count)

    return prepare


def consumed(request: Callable[[Site], object], queues: int, *, prefetch: int = 1) -> Prepare:
    """A request to a broker with very many consumers of one connection."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _declare(site, queues)
        site.channel.basic_qos(prefetch_count=prefetch)
        _consume(site.channel, queues, count)
        return lambda: request(site)

    return prepare


def publish_some(site: Site) -> None:
    other = site.channel.connection.channel()
    for _ in range(1_000):
        other.basic_publish("", "q-0", b"x")
    other.queue_declare("q-0", passive=True)


def _busy(site: Site, count: int) -> Any:
    """None of the consumers has room."""
    _declare(site, 1)
    site.channel.basic_qos(prefetch_count=1)
    _consume(site.channel, 1, count)
    other = site.channel.connection.channel()
    for _ in range(count):
        other.basic_publish("", "q-0", b"x")
    while other.queue_declare("q-0", passive=True).method.message_count:
        site.channel.connection.process_data_events(0.1)
    return other


def show_stuck(site: Site, count: int) -> Callable[[], object]:
    """The dashboard and the metrics of a queue whose consumers have all held a message for too long."""
    _busy(site, count)
    limits = site.http.get("/api/v1/dashboard/attention").raise_for_status().json()["thresholds"]
    changed = {**limits, "unacked_seconds": 0.0}
    site.http.put("/api/v1/dashboard/thresholds", json=changed).raise_for_status()

    def show() -> None:
        found = site.http.get("/api/v1/dashboard/attention").raise_for_status().json()
        assert any(one["rule"] == "unacked" for one in found["findings"])
        site.get("/api/v1/dashboard/queues/%2F/q-0")
        site.get("/metrics")

    return show


def publish_to_busy(site: Site, count: int) -> Callable[[], object]:
    other = _busy(site, count)

    def send() -> None:
        for _ in range(100):
            other.basic_publish("", "q-0", b"x")
            other.queue_declare("q-0", passive=True)

    return send


def lose_connection(site: Site) -> object:
    return site.broker.drop_connections()


def on_channels(site: Site, count: int) -> Callable[[], object]:
    """The consumers of one queue are on 2,000 channels of one connection."""
    _declare(site, 1)
    channels = min(2_000, count)
    made = 0
    for number in range(channels):
        channel = site.channel.connection.channel() if number else site.channel
        some = (count - made) // (channels - number)
        _consume(channel, 1, some, made)
        made += some
    return site.broker.drop_connections


def close_channel(site: Site) -> object:
    return site.channel.close()


def list_consumers(site: Site) -> None:
    site.get("/api/consumers")


def show_queue(site: Site) -> None:
    site.get("/api/queues/%2F/q-0")


def delete_queue(site: Site) -> object:
    return site.http.delete("/api/queues/%2F/q-0").raise_for_status()


def list_channels(site: Site, count: int) -> Callable[[], object]:
    """1,000 channels on each connection."""
    sockets = open_connections(site, max(1, count // 1_000))
    for one in sockets:
        opened = b"".join(
            b"\x01" + number.to_bytes(2, "big") + b"\x00\x00\x00\x05\x00\x14\x00\x0a\x00\xce"
            for number in range(1, 1_001)
        )
        one.sendall(opened)
        read = 0
        while read < 1_000 * 16:  # channel.open-ok
            read += len(one.recv(65_536))

    def ask() -> None:
        site.get("/api/channels")
        assert sockets

    return ask


def _fill(site: Site, count: int, arguments: dict[str, Any], expiration: str | None = None) -> None:
    """Fill a queue from inside: a client would take minutes."""
    site.channel.queue_declare("dead", durable=True)
    site.channel.queue_declare("deep", durable=True, arguments=arguments)
    headers = [
        encode_header(
            16, encode_properties(Properties(delivery_mode=2, priority=number, expiration=expiration))
        )
        for number in range(10)
    ]

    def fill(node: Node) -> None:
        broker = node.broker
        route = broker.resolve(broker.vhost("/"), "", "deep", make_address("", "deep"))
        prepared = [(broker.flow.publish_properties.of(header), header) for header in headers]
        for number in range(min(count, 10_000)):
            broker.flow.publishing.publish(route, *prepared[number % 10], b"x" * 16)

    for _ in range(0, count, 10_000):
        site.topology(fill)


def purge(arguments: dict[str, Any], expiration: str | None = None) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _fill(site, count, arguments, expiration)
        return lambda: site.channel.queue_purge("deep")

    return prepare


def delete(arguments: dict[str, Any], expiration: str | None = None) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _fill(site, count, arguments, expiration)
        return lambda: site.channel.queue_delete("deep")

    return prepare


def shrink(arguments: dict[str, Any]) -> Prepare:
    """A policy lowers the limit of a deep queue to one message."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _fill(site, count, arguments)
        return lambda: bulk.shorten(site, "deep")

    return prepare


def delete_with_outcasts(site: Site, count: int) -> Callable[[], object]:
    """A queue is deleted while its messages are being dead-lettered."""
    bulk._fill(site, count, messages.LETTERS)
    bulk.take(site, count)

    def end() -> None:
        site.channel.basic_nack(0, multiple=True, requeue=False)
        site.channel.queue_delete("q")

    return end


def rollback(site: Site, count: int) -> Callable[[], object]:
    messages.commit(site, count)
    return lambda: site.channel.tx_rollback()


def rollback_acks(site: Site, count: int) -> Callable[[], object]:
    transactions.settled(transactions.ack)(site, count)
    return lambda: site.channel.tx_rollback()


def _documents(count: int) -> bytes:
    queues = [
        {"name": f"queue-{n}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for n in range(count)
    ]
    exchange = {"name": "many", "vhost": "/", "type": "topic", "durable": True}
    bindings = [
        {
            "source": "many",
            "vhost": "/",
            "destination": f"queue-{n}",
            "destination_type": "queue",
            "routing_key": f"k.{n}",
        }
        for n in range(count)
    ]
    defaults = {"auto_delete": False, "internal": False, "arguments": {}}
    return json.dumps(
        {
            "queues": queues,
            "exchanges": [{**exchange, **defaults}],
            "bindings": [{**one, "arguments": {}} for one in bindings],
        }
    ).encode()


def import_queues(site: Site, count: int) -> Callable[[], object]:
    """As many bindings as queues, all new."""
    document = _documents(count)
    return lambda: site.load_definitions(document)


def import_again(site: Site, count: int) -> Callable[[], object]:
    document = _documents(count)
    site.load_definitions(document)
    return lambda: site.load_definitions(document)


def export_queues(site: Site, count: int) -> Callable[[], object]:
    site.load_definitions(_documents(count))
    return lambda: site.get("/api/definitions")
