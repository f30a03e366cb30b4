"""Messages that match very many bindings or reach very many queues, and frames that arrive together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from bench.stalls.site import Prepare, Site

from holtmq.node import Node


def _bound(
    site: Site, kind: str, count: int, queues: int, binding: Callable[[int], tuple[str, dict[str, Any]]]
) -> None:
    def make(node: Node) -> None:
        broker = node.broker
        vhost = broker.vhost("/")
        broker.exchanges.declare(vhost, "source", kind)
        for number in range(queues):
            broker.declare_queue(vhost, f"bound-{number}")
        for number in range(count):
            key, arguments = binding(number)
            broker.bind(vhost, "source", f"bound-{number % queues}", key, arguments)

    site.topology(make)


def _publish(site: Site, headers: dict[str, Any] | None = None) -> Callable[[], object]:
    site.channel.queue_declare("end")

    def publish() -> None:
        site.channel.basic_publish("source", "a.b.c", b"x", pika.BasicProperties(headers=headers))
        site.channel.queue_declare("end", passive=True)

    return publish


def headers(match: str) -> Prepare:
    """A headers exchange whose bindings are to 100 queues; ``match``: how many fit."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        def binding(number: int) -> tuple[str, dict[str, Any]]:
            wanted = {"all": {"x-match": "any", "kind": "k", "n": number}}.get(match, {"n": number})
            return "", wanted

        _bound(site, "headers", count, 100, binding)
        return _publish(site, {"kind": "k", "n": 7})

    return prepare


def topic(site: Site, count: int) -> Callable[[], object]:
    _bound(site, "topic", count, 100, lambda number: ("#", {"n": number}))
    return _publish(site)


def _long_patterns(site: Site, count: int) -> None:
    """Bindings with 200 headers each; half of them differ from the message in the last one only."""

    def binding(number: int) -> tuple[str, dict[str, Any]]:
        if number % 2:
            return "", {"x-match": "any", **{f"k{at}": number for at in range(200)}}
        return "", {"x-match": "all", **{f"k{at}": at for at in range(199)}, "last": number}

    _bound(site, "headers", count, count, binding)


def long_patterns(site: Site, count: int) -> Callable[[], object]:
    _long_patterns(site, count)
    return _publish(site, {f"k{at}": at for at in range(1_000)})


def delete_long_patterns(site: Site, count: int) -> Callable[[], object]:
    _long_patterns(site, count)
    return lambda: site.channel.exchange_delete("source")


def through_exchanges(site: Site, count: int) -> Callable[[], object]:
    """An exchange that leads to one queue through very many others."""

    def make(node: Node) -> None:
        broker = node.broker
        vhost = broker.vhost("/")
        broker.declare_queue(vhost, "sink", durable=True)
        broker.exchanges.declare(vhost, "source", "fanout")
        for number in range(count):
            broker.exchanges.declare(vhost, f"between-{number}", "fanout")
            broker.bind(vhost, "source", f"between-{number}", "", to_exchange=True)
            broker.bind(vhost, f"between-{number}", "sink", "")

    site.topology(make)
    return _publish(site)


def topic_of_users(site: Site, count: int) -> Callable[[], object]:
    """Each binding has a word of its own; a message for each of them."""
    _bound(site, "topic", count, 100, lambda number: (f"user.{number}.#", {}))
    site.channel.queue_declare("end")

    def publish() -> None:
        for number in range(count):
            site.channel.basic_publish("source", f"user.{number * 7_919 % count}.created", b"x")
        site.channel.queue_declare("end", passive=True)

    return publish


def fanout(queues: int | None = None, *, again: bool = False) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _bound(site, "fanout", count, queues or count, lambda number: (str(number), {}))
        publish = _publish(site)
        if again:
            publish()
        return publish

    return prepare


def chosen(kind: str) -> Prepare:
    """100 queues; the first message after one binding was added."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _bound(site, kind, count, 100, lambda number: ("1", {"n": number}))
        publish = _publish(site)

        def change() -> None:
            site.channel.queue_bind("end", "source", "1")
            publish()

        return change

    return prepare


def delete_chosen(kind: str) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _bound(site, kind, count, 1, lambda number: ("1", {"n": number}))
        return lambda: site.channel.queue_delete("bound-0")

    return prepare


def delete_choosing(kind: str) -> Prepare:
    """The exchange is deleted, whose bindings are to one queue, with one key."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _bound(site, kind, count, 1, lambda number: ("1", {"n": number}))
        return lambda: site.channel.exchange_delete("source")

    return prepare


def unbind_last(site: Site, count: int) -> Callable[[], object]:
    """All bindings of a consistent hash exchange were removed, except one."""
    _bound(site, "x-consistent-hash", count, 1, lambda number: ("1", {"n": number}))

    def unbind(node: Node) -> None:
        vhost = node.broker.vhost("/")
        for number in range(count - 1):
            node.broker.exchanges.unbind(vhost, "source", "bound-0", "1", {"n": number})

    site.topology(unbind)
    return lambda: site.channel.queue_unbind("bound-0", "source", "1", {"n": count - 1})


def heavy(site: Site, count: int) -> Callable[[], object]:
    _bound(site, "x-consistent-hash", 49, 100, lambda number: ("1000", {}))
    publish = _publish(site)

    def change() -> None:
        site.channel.queue_bind("bound-60", "source", str(count))
        publish()
        site.channel.queue_unbind("bound-60", "source", str(count))
        publish()

    return change


def history(site: Site, count: int) -> Callable[[], object]:
    """A queue is bound to an exchange that keeps as many messages as it may."""
    site.channel.exchange_declare("source", "x-recent-history", arguments={"x-recent-history-length": count})
    for _ in range(count):
        site.channel.basic_publish("source", "", b"x")
    site.channel.queue_declare("end")
    return lambda: site.channel.queue_bind("end", "source")


def together(frames: Callable[[Any, int], None]) -> Prepare:
    """Frames that a client sends in one go, without waiting for replies."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _bound(site, "x-consistent-hash", 1, 1, lambda number: ("1", {}))
        site.channel.exchange_declare("wide", "fanout")

        def make(node: Node) -> None:
            vhost = node.broker.vhost("/")
            for number in range(1_000):
                node.broker.declare_queue(vhost, f"wide-{number}")
                node.broker.bind(vhost, "wide", f"wide-{number}", "")

        site.topology(make)
        site.channel.queue_declare("end")
        impl = site.channel._impl

        def send() -> None:
            connection = impl.connection
            held: list[bytes] = []
            output = connection._output_marshaled_frames
            connection._output_marshaled_frames = held.extend
            try:
                for number in range(count):
                    frames(impl, number)
            finally:
                connection._output_marshaled_frames = output
            output([b"".join(held)])
            site.channel.queue_declare("end", passive=True)

        return send

    return prepare


def declare(channel: Any, number: int) -> None:
    channel._send_method(pika.spec.Queue.Declare(queue=f"new-{number}", nowait=True))


def bind_heavy(channel: Any, number: int) -> None:
    method = pika.spec.Queue.Unbind if number % 2 else pika.spec.Queue.Bind
    arguments = {} if number % 2 else {"nowait": True}
    channel._send_method(method(queue="bound-0", exchange="source", routing_key="1000", **arguments))


def publish_wide(channel: Any, number: int) -> None:
    channel.basic_publish("wide", "", b"x")
