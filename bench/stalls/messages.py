"""Requests about messages of work queues, and about their consumers."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pika
from bench.stalls.site import Prepare, Site

from holtmq.node import Node
from holtmq.wire.tables import FieldTable

LETTERS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def _filled(site: Site, queue: str, count: int, arguments: dict[str, object] | None = None) -> None:
    site.channel.queue_declare(queue, durable=True, arguments=arguments)
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


def commit_special(kind: str) -> Prepare:
    """A commit of messages whose queues are not known by their key alone, or that may be refused."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        channel = site.channel
        headers: dict[str, object] = {"a": 1}
        if kind == "headers":
            channel.exchange_declare("special", "headers", durable=True)
        elif kind in ("delay", "delays"):
            headers = {"x-delay": 3_600_000}
            arguments = {"x-delayed-type": "fanout"}
            channel.exchange_declare("special", "x-delayed-message", durable=True, arguments=arguments)
        else:
            channel.exchange_declare("special", "fanout", durable=True)
        options: dict[str, dict[str, object]] = {
            "reject-publish": {"x-overflow": "reject-publish", "x-max-length": 2 * count},
            "full": {"x-overflow": "reject-publish", "x-max-length": 1_000},
            "full-dlx": {"x-overflow": "reject-publish-dlx", "x-max-length": 1_000, **LETTERS},
            "stream": {"x-queue-type": "stream"},
            "partitions": {"x-queue-type": "stream"},
        }
        queues = ["q", "r", "s"] if kind == "fanout" else ["q"]
        for queue in queues:
            channel.queue_declare(queue, durable=True, arguments=options.get(kind))
            channel.queue_bind(queue, "special", arguments={"a": 1})
        if kind == "streams":
            for stream in range(20):
                channel.queue_declare(f"s{stream}", durable=True, arguments={"x-queue-type": "stream"})
        channel.tx_select()
        for number in range(count):
            if kind == "delays":
                headers = {"x-delay": 3_600_000 + number * 7 % count}
            elif kind == "partitions":
                headers = {"x-partition": str(number * 7 % (count // 10))}
            properties = pika.BasicProperties(delivery_mode=2, headers=headers)
            exchange, key = ("", f"s{number % 20}") if kind == "streams" else ("special", "")
            channel.basic_publish(exchange, key, b"x" * 16, properties)
        channel.queue_declare("q", passive=True)
        if not kind.startswith("full"):
            return lambda: channel.tx_commit()

        def refused() -> None:
            with suppress(pika.exceptions.ChannelClosedByBroker):
                channel.tx_commit()

        return refused

    return prepare


def commit_mixed(site: Site, count: int) -> Callable[[], object]:
    """Acks of all messages of a queue, and as many messages to it, to a stream and with a delay."""
    channel = site.channel
    requeue(site, count // 3)
    arguments = {"x-delayed-type": "fanout"}
    channel.exchange_declare("late", "x-delayed-message", durable=True, arguments=arguments)
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.tx_select()
    channel.basic_ack(0, multiple=True)
    for number in range(count):
        exchange, key = (("", "q"), ("", "s"), ("late", "q"))[number % 3]
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 3_600_000})
        channel.basic_publish(exchange, key, b"x" * 16, properties)
    channel.queue_declare("q", passive=True)
    return lambda: channel.tx_commit()


def commit_patterns(site: Site, count: int) -> Callable[[], object]:
    """A few messages, each of which is compared with very many patterns."""
    channel = site.channel
    channel.queue_declare("q", durable=True)

    def bind(node: Node) -> None:
        vhost = node.broker.vhost("/")
        for number in range(count):
            arguments: FieldTable = {"x-match": "any", "absent": None, "n": number}
            node.broker.bind(vhost, "amq.headers", "q", "", arguments)

    site.topology(bind)
    channel.tx_select()
    for _ in range(20):
        properties = pika.BasicProperties(delivery_mode=2, headers={"n": -1})
        channel.basic_publish("amq.headers", "", b"x" * 16, properties)
    channel.queue_declare("q", passive=True)
    return lambda: channel.tx_commit()


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


def list_delayed(site: Site, count: int) -> Callable[[], object]:
    delayed(site, count)
    return lambda: site.get("/api/v1/delayed")


def purge(site: Site, count: int) -> Callable[[], object]:
    _filled(site, "q", count)
    return lambda: site.channel.queue_purge("q")


def requeue(site: Site, count: int, arguments: dict[str, object] | None = None) -> Callable[[], object]:
    _filled(site, "q", count, arguments)
    got = 0

    def take(*_: object) -> None:
        nonlocal got
        got += 1

    site.channel.basic_consume("q", take)
    while got < count:
        site.channel.connection.process_data_events(1)
    return lambda: site.channel.close()


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


def list_consumers(site: Site, count: int) -> Callable[[], object]:
    site.channel.queue_declare("q")
    for _ in range(count):
        site.channel.basic_consume("q", lambda *_: None)
    return lambda: site.get("/api/consumers")


def close_consumers(site: Site, count: int) -> Callable[[], object]:
    list_consumers(site, count)
    return site.broker.drop_connections
