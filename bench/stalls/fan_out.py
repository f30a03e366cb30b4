"""One message to very many queues, by other ways than a plain publish."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from bench.stalls.site import Prepare, Site

from holtmq.node import Node

_KEPT = pika.BasicProperties(delivery_mode=2)
_MESSAGES = 100  # where there are several


def _make(site: Site, count: int, kind: str, arguments: dict[str, Any] | None = None) -> None:
    """An exchange that leads to as many durable queues, and a queue whose last one of them is known."""

    def make(node: Node) -> None:
        vhost = node.broker.vhost("/")
        node.broker.exchanges.declare(vhost, "wide", kind, durable=True, arguments=arguments or {})
        for number in range(count):
            node.broker.declare_queue(vhost, f"wide-{number}", durable=True)
            node.broker.bind(vhost, "wide", f"wide-{number}", "")

    site.topology(make)


def _until_placed(site: Site, count: int) -> None:
    while not site.channel.queue_declare(f"wide-{count - 1}", passive=True).method.message_count:
        site.channel.connection.process_data_events(0.01)


def through_another(site: Site, count: int) -> Callable[[], object]:
    """A direct exchange whose alternate is a fanout that is bound to the one with the queues."""
    _make(site, count, "fanout")
    site.channel.exchange_declare("middle", "fanout")
    site.channel.exchange_bind("wide", "middle")
    site.channel.exchange_declare("first", "direct", arguments={"alternate-exchange": "middle"})
    site.channel.confirm_delivery()
    return lambda: site.channel.basic_publish("first", "k", b"x", _KEPT)


def over_http(site: Site, count: int) -> Callable[[], object]:
    _make(site, count, "fanout")
    message = {
        "properties": {"delivery_mode": 2},
        "routing_key": "k",
        "payload": "x",
        "payload_encoding": "string",
    }
    return lambda: site.http.post("/api/exchanges/%2F/wide/publish", json=message).raise_for_status()


def transaction(site: Site, count: int) -> Callable[[], object]:
    _make(site, count, "fanout")
    site.channel.tx_select()
    site.channel.basic_publish("wide", "k", b"x", _KEPT)
    return lambda: site.channel.tx_commit()


def dead_letter(site: Site, count: int) -> Callable[[], object]:
    _make(site, count, "fanout")
    site.channel.queue_declare("dying", durable=True, arguments={"x-dead-letter-exchange": "wide"})
    site.channel.basic_publish("", "dying", b"x", _KEPT)
    method, _, _ = site.channel.basic_get("dying")

    def reject() -> None:
        site.channel.basic_reject(method.delivery_tag, requeue=False)
        _until_placed(site, count)

    return reject


def _until_all(site: Site, count: int, messages: int) -> None:
    """Wait until so many messages are in the last queue."""
    while site.channel.queue_declare(f"wide-{count - 1}", passive=True).method.message_count < messages:
        site.channel.connection.process_data_events(0.1)


def transaction_of_many(site: Site, count: int) -> Callable[[], object]:
    _make(site, count, "fanout")
    site.channel.tx_select()
    for _ in range(_MESSAGES):
        site.channel.basic_publish("wide", "k", b"x", _KEPT)
    return lambda: site.channel.tx_commit()


def transaction_among_others(site: Site, count: int) -> Callable[[], object]:
    """A message for 10,000 queues, and as many others for one queue before and behind it."""
    _make(site, 10_000, "fanout")
    site.channel.queue_declare("one", durable=True)
    site.channel.tx_select()
    for number in range(count):
        if number == count // 2:
            site.channel.basic_publish("wide", "k", b"x", _KEPT)
        site.channel.basic_publish("", "one", b"x", _KEPT)
    return lambda: site.channel.tx_commit()


def dead_letters(site: Site, count: int) -> Callable[[], object]:
    """All messages of a queue are rejected."""
    _make(site, count, "fanout")
    site.channel.queue_declare("dying", durable=True, arguments={"x-dead-letter-exchange": "wide"})
    for _ in range(_MESSAGES):
        site.channel.basic_publish("", "dying", b"x", _KEPT)
    for _ in range(_MESSAGES):
        site.channel.basic_get("dying")

    def reject() -> None:
        site.channel.basic_nack(0, multiple=True, requeue=False)
        _until_all(site, count, _MESSAGES)

    return reject


def delayed_together(site: Site, count: int) -> Callable[[], object]:
    """Many messages are due at once."""
    _make(site, count, "x-delayed-message", {"x-delayed-type": "fanout"})
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 1_000})

    def send() -> None:
        for _ in range(3 * _MESSAGES):
            site.channel.basic_publish("wide", "k", b"x", properties)
        _until_all(site, count, 3 * _MESSAGES)

    return send


def pipelined(connections: int) -> Prepare:
    """Messages one behind the other, without waiting for an answer."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _make(site, count, "fanout")
        parameters = pika.URLParameters(site.broker.amqp_url + "?heartbeat=0")
        opened = [pika.BlockingConnection(parameters) for _ in range(connections)]
        channels = [connection.channel() for connection in opened]

        def send() -> None:
            for number in range(_MESSAGES):
                channels[number % connections].basic_publish("wide", "k", b"x", _KEPT)
            _until_all(site, count, _MESSAGES)
            for connection in opened:
                connection.close()

        return send

    return prepare


def delayed(site: Site, count: int) -> Callable[[], object]:
    _make(site, count, "x-delayed-message", {"x-delayed-type": "fanout"})
    properties = pika.BasicProperties(delivery_mode=2, headers={"x-delay": 100})

    def send() -> None:
        site.channel.basic_publish("wide", "k", b"x", properties)
        _until_placed(site, count)

    return send


WAYS: dict[str, tuple[int, Prepare]] = {
    "publish to very many queues through two exchanges": (100_000, through_another),
    "publish to very many queues over HTTP": (100_000, over_http),
    "tx.commit of a message for very many queues": (100_000, transaction),
    "dead letter for very many queues": (100_000, dead_letter),
    "delayed message for very many queues": (100_000, delayed),
    "tx.commit of 100 messages for many queues": (10_000, transaction_of_many),
    "tx.commit with a message for many queues": (100_000, transaction_among_others),
    "100 dead letters for many queues": (10_000, dead_letters),
    "300 delayed messages for many queues, due at once": (10_000, delayed_together),
    "100 messages for many queues in one write": (10_000, pipelined(1)),
    "100 messages for many queues by ten connections": (10_000, pipelined(10)),
}
