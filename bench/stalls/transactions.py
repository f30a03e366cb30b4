"""Commits of very many settlements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pika
from bench.stalls import bulk, messages
from bench.stalls.site import Prepare, Site

LETTERS: Final = messages.LETTERS
_BODY: Final = b"x" * 16

Settle = Callable[[Site, int], object]


def settled(
    settle: Settle,
    arguments: dict[str, Any] | None = None,
    dead: dict[str, Any] | None = None,
    *,
    late: bool = False,
) -> Prepare:
    """Commit the settlements of all messages of a queue; ``dead``: arguments of the dead-letter queue.

    ``late``: their consumer was cancelled, so they are in the queue again.
    """

    def prepare(site: Site, count: int) -> Callable[[], object]:
        tag = _deliver(site, count, arguments or {}, dead or {})
        if late:
            site.channel.basic_cancel(tag)
        settle(site, count)
        site.channel.queue_declare("q", passive=True)
        return lambda: site.channel.tx_commit()

    return prepare


def added(settle: Settle, arguments: dict[str, Any] | None = None) -> Prepare:
    """Add the settlements to a transaction."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        _deliver(site, count, arguments or {}, {})

        def add() -> None:
            settle(site, count)
            site.channel.queue_declare("q", passive=True)

        return add

    return prepare


def lost(settle: Settle) -> Prepare:
    """The connection ends before the commit."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        settled(settle)(site, count)
        return site.broker.drop_connections

    return prepare


def _deliver(site: Site, count: int, arguments: dict[str, Any], dead: dict[str, Any]) -> str:
    site.channel.queue_declare("dead", durable=True, arguments=dead)
    site.channel.exchange_declare("letters", "fanout", durable=True)
    for name in ("dead-1", "dead-2"):
        site.channel.queue_declare(name, durable=True)
        site.channel.queue_bind(name, "letters")
    site.channel.queue_declare("q", durable=True, arguments=arguments)
    for number in range(count):
        lasting = pika.BasicProperties(delivery_mode=2, priority=number % 10)
        site.channel.basic_publish("", "q", _BODY, lasting)
    site.channel.queue_declare("q", passive=True)
    tag = bulk.take(site, count)
    site.topology(lambda node: node.broker.pauses.pause(node.broker.vhost("/").queue("q"), "bench"))
    site.channel.tx_select()
    return tag


def ack(site: Site, count: int) -> None:
    site.channel.basic_ack(0, multiple=True)


def reject(site: Site, count: int) -> None:
    site.channel.basic_nack(0, multiple=True, requeue=False)


def requeue(site: Site, count: int) -> None:
    site.channel.basic_nack(0, multiple=True, requeue=True)


def of_all_kinds(site: Site, count: int) -> None:
    """A quarter each of acks, rejections, returns, and as many messages."""
    quarter = count // 4
    for number in range(1, count - quarter + 1):
        if number % 3 == 0:
            site.channel.basic_ack(number)
        else:
            site.channel.basic_nack(number, requeue=number % 3 == 1)
    for _ in range(quarter):
        site.channel.basic_publish("", "q", _BODY, pika.BasicProperties(delivery_mode=2))


COMMITS: Final[dict[str, tuple[int, Prepare]]] = {
    "tx.commit of acks": (100_000, settled(ack)),
    "tx.commit of rejections": (100_000, settled(reject)),
    "tx.commit of rejections, with dead letters": (100_000, settled(reject, LETTERS)),
    "tx.commit of rejections, with dead letters in two queues": (
        100_000,
        settled(reject, {"x-dead-letter-exchange": "letters"}),
    ),
    "tx.commit of rejections, with dead letters by priority": (
        100_000,
        settled(reject, LETTERS, {"x-max-priority": 9}),
    ),
    "tx.commit of rejections, with dead letters beyond a limit": (
        100_000,
        settled(reject, LETTERS, {"x-max-length": 1_000}),
    ),
    "tx.commit of rejections, dead letters refused": (
        100_000,
        settled(reject, LETTERS, {"x-max-length": 1_000, "x-overflow": "reject-publish"}),
    ),
    "tx.commit of late acks": (100_000, settled(ack, late=True)),
    "tx.commit of late rejections, with dead letters": (100_000, settled(reject, LETTERS, late=True)),
    "tx.commit of returns": (100_000, settled(requeue)),
    "tx.commit of returns, priorities": (100_000, settled(requeue, {"x-max-priority": 9})),
    "tx.commit of returns, quorum": (100_000, settled(requeue, {"x-queue-type": "quorum"})),
    "tx.commit of settlements of all kinds": (100_000, settled(of_all_kinds, LETTERS)),
    "nack all in a transaction": (100_000, added(reject, LETTERS)),
    "ack all in a transaction": (100_000, added(ack)),
    "connection lost with acks of a transaction": (100_000, lost(ack)),
}
