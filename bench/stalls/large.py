"""Large requests, large messages, and messages with very many headers."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from typing import Any, Final

import pika
from bench.stalls import bulk
from bench.stalls.messages import LETTERS
from bench.stalls.site import Prepare, Site

_MIB: Final = 1 << 20
_JSON: Final = {"Content-Type": "application/json"}
# As many as fit into the frame of a content header, which has 128 KiB at most.
_HEADERS: Final = {f"h{number}": number for number in range(9_000)}


def get_messages(site: Site, count: int) -> Callable[[], object]:
    """The management API's look at messages, with as many as it allows."""
    headers = {"kind": "order", "tenant": "t-17", "attempt": 1}
    bulk._fill(site, count, {}, headers=headers, content_type="application/json", message_id="m-1")
    body = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}

    def get() -> None:
        assert len(site.http.post("/api/queues/%2F/q/get", json=body).raise_for_status().json()) == count

    return get


def push(size: int, letter: str = "x", *, is_packed: bool = False) -> Prepare:
    """One push of so many MiB; ``size``: of each payload, in bytes."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        payload = letter * (size // len(letter.encode()))
        items = [{"queue": "log", "partition": "p", "payload": payload}] * (count * _MIB // size)
        body = json.dumps({"items": items}, ensure_ascii=False).encode()
        headers = _JSON
        if is_packed:
            body, headers = gzip.compress(body), {**_JSON, "Content-Encoding": "gzip"}
        site.http.post("/api/v1/push", json={"items": [{"queue": "log", "payload": 1}]}).raise_for_status()
        return lambda: site.http.post("/api/v1/push", content=body, headers=headers).raise_for_status()

    return prepare


def load_definitions(site: Site, count: int) -> Callable[[], object]:
    """As many MiB of definitions."""
    pattern = "^" + "x" * 1_000
    policies = [
        {"vhost": "/", "name": f"p-{number % 100}", "pattern": pattern, "definition": {"max-length": 5}}
        for number in range(count * 900)
    ]
    body = json.dumps({"policies": policies}).encode()
    return lambda: site.load_definitions(body)


def publish_message(site: Site, count: int) -> Callable[[], object]:
    """A message of so many MiB."""
    site.channel.queue_declare("q", durable=True)
    site.channel.confirm_delivery()
    body = b"x" * (count * _MIB)
    kept = pika.BasicProperties(delivery_mode=2)
    return lambda: site.channel.basic_publish("", "q", body, kept)


def get_message(site: Site, count: int) -> Callable[[], object]:
    publish_message(site, count)()

    def get() -> None:
        assert len(site.channel.basic_get("q", auto_ack=True)[2]) == count * _MIB

    return get


def copies(site: Site, count: int) -> Callable[[], object]:
    """A message with as many further keys."""
    site.channel.queue_declare("q", durable=True)
    site.channel.exchange_declare("topics", "topic")
    site.channel.queue_bind("q", "topics", "#")
    properties = pika.BasicProperties(delivery_mode=2, headers={"CC": [f"k{n}" for n in range(count)]})

    def publish() -> None:
        site.channel.basic_publish("topics", "k", b"x", properties)
        site.channel.queue_declare("q", passive=True)

    return publish


def publish_headers(site: Site, count: int) -> Callable[[], object]:
    """Messages with very many headers, to an exchange that reads them."""
    site.channel.queue_declare("q", durable=True)
    site.channel.exchange_declare("heads", "headers")
    for number in range(100):
        site.channel.queue_bind("q", "heads", "", {"h7": number, "x-match": "any"})
    made = [pika.BasicProperties(headers={**_HEADERS, "n": number}) for number in range(count)]

    def publish() -> None:
        for properties in made:
            site.channel.basic_publish("heads", "", b"x", properties)
        site.channel.queue_declare("q", passive=True)

    return publish


def _fill(site: Site, count: int, arguments: dict[str, Any]) -> None:
    site.channel.queue_declare("dead", durable=True)
    site.channel.queue_declare("q", durable=True, arguments=arguments)
    for number in range(count):
        properties = pika.BasicProperties(delivery_mode=2, headers={**_HEADERS, "n": number})
        site.channel.basic_publish("", "q", b"x", properties)
    site.channel.queue_declare("q", passive=True)


def dead_letter(site: Site, count: int) -> Callable[[], object]:
    _fill(site, count, LETTERS)
    bulk.take(site, count)

    def nack() -> None:
        site.channel.basic_nack(0, multiple=True, requeue=False)
        while site.channel.queue_declare("dead", passive=True).method.message_count < count:
            time.sleep(0.01)

    return nack


def commit_dead_letters(site: Site, count: int) -> Callable[[], object]:
    _fill(site, count, LETTERS)
    site.channel.tx_select()
    bulk.take(site, count)
    site.channel.basic_nack(0, multiple=True, requeue=False)
    return lambda: site.channel.tx_commit()


def commit_headers(site: Site, count: int) -> Callable[[], object]:
    site.channel.tx_select()
    publish_headers(site, count)()
    return lambda: site.channel.tx_commit()


def deliver_again(site: Site, count: int) -> Callable[[], object]:
    """A quorum queue counts deliveries in a header."""
    _fill(site, count, {"x-queue-type": "quorum"})
    bulk.take(site, count)

    def again() -> None:
        site.channel.basic_nack(0, multiple=True, requeue=True)
        time.sleep(1)
        site.channel.connection.process_data_events(5)

    return again


def show(site: Site, count: int) -> Callable[[], object]:
    """The management API shows messages with very many headers."""
    _fill(site, count, {})
    body = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}
    return lambda: site.http.post("/api/queues/%2F/q/get", json=body).raise_for_status()


REQUESTS: dict[str, tuple[int, Prepare]] = {
    "get messages over the management API": (5_000, get_messages),
    "get messages with very many headers over the management API": (300, show),
    "push 16 MiB, in messages of 10 KiB": (15, push(10 << 10)),
    "push 16 MiB, in one message": (15, push(15 * _MIB)),
    "push 16 MiB of other letters": (15, push(10 << 10, "ü")),
    "push 16 MiB, compressed": (15, push(10 << 10, is_packed=True)),
    "load 50 MiB of definitions": (50, load_definitions),
    "publish a message of 16 MiB": (16, publish_message),
    "get a message of 16 MiB": (16, get_message),
    "publish with very many copies": (9_000, copies),
    "publish messages with very many headers": (200, publish_headers),
    "dead-letter messages with very many headers": (300, dead_letter),
    "tx.commit of dead letters with very many headers": (100, commit_dead_letters),
    "tx.commit of messages with very many headers": (200, commit_headers),
    "deliver messages with very many headers again, quorum": (300, deliver_again),
}
