"""Very many messages that change their place at once: returned, dead-lettered, expired, dropped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
from bench.stalls.messages import LETTERS
from bench.stalls.site import Prepare, Site

from holtmq.node import Node


def _fill(site: Site, count: int, arguments: dict[str, Any], **properties: Any) -> None:
    site.channel.queue_declare("dead", durable=True)
    site.channel.queue_declare("q", durable=True, arguments=arguments)
    prepared = [pika.BasicProperties(delivery_mode=2, priority=number, **properties) for number in range(10)]
    for number in range(count):
        site.channel.basic_publish("", "q", b"x" * 16, prepared[number % 10])
    site.channel.queue_declare("q", passive=True)


def take(site: Site, count: int) -> str:
    """Consume so many messages; the consumer's tag."""
    got = 0

    def count_one(*_: object) -> None:
        nonlocal got
        got += 1

    tag = str(site.channel.basic_consume("q", count_one))
    while got < count:
        site.channel.connection.process_data_events(1)
    return tag


def unacked(end: Callable[[Site, str], object], arguments: dict[str, Any], *, then: str = "") -> Prepare:
    """End the deliveries of all messages of a queue; ``then``: wait until they are in this queue."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _fill(site, count, arguments)
        tag = take(site, count)

        def finish() -> None:
            end(site, tag)
            if then:
                _wait(site, then, count)

        return finish

    return prepare


def _wait(site: Site, queue: str, count: int) -> None:
    channel = site.channel.connection.channel()
    while channel.queue_declare(queue, passive=True).method.message_count < count:
        time.sleep(0.01)


def cancel(site: Site, tag: str) -> object:
    return site.channel.basic_cancel(tag)


def close_channel(site: Site, tag: str) -> object:
    return site.channel.close()


def close_connection(site: Site, tag: str) -> object:
    return site.broker.drop_connections()


def nack(requeue: bool) -> Callable[[Site, str], object]:
    def end(site: Site, tag: str) -> None:
        if requeue:
            site.channel.basic_cancel(tag)  # else it would get them back
        site.channel.basic_nack(0, multiple=True, requeue=requeue)
        site.channel.queue_declare("q", passive=True)

    return end


def ack_late(site: Site, tag: str) -> None:
    """The messages are in the queue again, since their consumer was cancelled."""
    site.channel.basic_cancel(tag)
    site.channel.basic_ack(0, multiple=True)
    site.channel.queue_declare("q", passive=True)


def return_each(site: Site, count: int) -> Callable[[], object]:
    """One by one, the oldest first, while nobody consumes."""
    _fill(site, count, {"x-cancel-requeue": False})
    site.channel.basic_cancel(take(site, count))

    def nack() -> None:
        for number in range(1, count + 1):
            site.channel.basic_nack(number, requeue=True)
        site.channel.queue_declare("q", passive=True)

    return nack


def purge(site: Site, count: int) -> Callable[[], object]:
    _fill(site, count, {"x-max-priority": 9})
    return lambda: site.channel.queue_purge("q")


def expire(letters: bool) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _fill(site, count, LETTERS if letters else {}, expiration="3600000")

        def late(node: Node) -> None:
            node.scheduler._clock = lambda: time.time() + 7_200
            node.scheduler.tick()

        def wait() -> None:
            site.topology(late)
            while site.channel.queue_declare("q", passive=True).method.message_count:
                time.sleep(0.01)

        return wait

    return prepare


def shrink(letters: bool) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _fill(site, count, LETTERS if letters else {})
        return lambda: shorten(site, "q")

    return prepare


def shorten(site: Site, queue: str) -> None:
    """A policy lowers the queue's limit to one message; wait until the others are gone."""
    body = {"pattern": f"^{queue}$", "definition": {"max-length": 1}}
    site.http.put("/api/policies/%2F/short", json=body).raise_for_status()
    while site.channel.queue_declare(queue, passive=True).method.message_count > 1:
        time.sleep(0.01)


def delete_full(site: Site, count: int) -> Callable[[], object]:
    """A queue with messages, which is where another queue sends its dead letters."""
    _fill(site, count, LETTERS)
    site.channel.queue_delete("dead")
    return lambda: site.channel.queue_delete("q")
