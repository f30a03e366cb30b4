"""A queue or an exchange that very many exchanges lead to."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from bench.stalls.site import Prepare, Site

from holtmq.broker.broker import Broker
from holtmq.broker.topology.vhost import VHost
from holtmq.node import Node


def _declare_sources(broker: Broker, vhost: VHost, count: int, auto_delete: bool = False) -> None:
    for number in range(count):
        broker.exchanges.declare(vhost, f"source-{number}", "fanout", durable=True, auto_delete=auto_delete)


def _bind_sources(broker: Broker, vhost: VHost, count: int, *, to_exchange: bool) -> None:
    owner = None if to_exchange else vhost.queues["end"].owner
    for number in range(count):
        broker.bind(vhost, f"source-{number}", "end", "", to_exchange=to_exchange, owner=owner)


def _sources(
    site: Site, count: int, *, vhost: str = "/", to_exchange: bool = False, auto_delete: bool = False
) -> None:
    def make(node: Node) -> None:
        broker = node.broker
        broker.put_vhost(vhost)
        where = broker.vhost(vhost)
        _declare_sources(broker, where, count, auto_delete=auto_delete)
        if to_exchange:
            broker.exchanges.declare(where, "end", "fanout", durable=True)
        elif "end" not in where.queues:
            broker.declare_queue(where, "end", durable=True)
        _bind_sources(broker, where, count, to_exchange=to_exchange)

    site.topology(make)


def delete_queue(auto_delete: bool = False) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _sources(site, count, auto_delete=auto_delete)
        return lambda: site.channel.queue_delete("end")

    return prepare


def delete_exchange(auto_delete: bool = False) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _sources(site, count, to_exchange=True, auto_delete=auto_delete)
        return lambda: site.channel.exchange_delete("end")

    return prepare


def delete_end_of_chain(site: Site, count: int) -> Callable[[], object]:
    """Each exchange leads to the next one, and is deleted after it."""

    def make(node: Node) -> None:
        broker, vhost = node.broker, node.broker.vhost("/")
        _declare_sources(broker, vhost, count, auto_delete=True)
        broker.declare_queue(vhost, "end", durable=True)
        for number in range(1, count):
            broker.bind(vhost, f"source-{number}", f"source-{number - 1}", "", to_exchange=True)
        broker.bind(vhost, "source-0", "end", "")

    site.topology(make)
    return lambda: site.channel.queue_delete("end")


def lose_connection(site: Site, count: int) -> Callable[[], object]:
    """The queue is exclusive."""
    site.channel.queue_declare("end", exclusive=True)
    _sources(site, count)
    return partial(_until_deleted, site, lambda: site.broker.drop_connections())


def cancel(site: Site, count: int) -> Callable[[], object]:
    """The queue is deleted with its last consumer."""
    site.channel.queue_declare("end", auto_delete=True)
    tag = site.channel.basic_consume("end", lambda *_: None)
    _sources(site, count)
    return partial(_until_deleted, site, lambda: site.channel.basic_cancel(tag))


def _until_deleted(site: Site, request: Callable[[], object]) -> None:
    request()
    while site.broker.call(lambda node: "end" in node.broker.vhost("/").queues):
        time.sleep(0.01)


def unbind(site: Site, count: int) -> Callable[[], object]:
    """The exchange is deleted with its last binding."""

    def make(node: Node) -> None:
        broker, vhost = node.broker, node.broker.vhost("/")
        broker.exchanges.declare(vhost, "end", "fanout", auto_delete=True)
        _declare_sources(broker, vhost, count)
        _bind_sources(broker, vhost, count, to_exchange=True)
        broker.declare_queue(vhost, "q")
        broker.bind(vhost, "end", "q", "")

    site.topology(make)
    return lambda: site.channel.queue_unbind("q", "end", "")


def delete_vhost(site: Site, count: int) -> Callable[[], object]:
    _sources(site, count, vhost="large", auto_delete=True)
    return lambda: site.http.delete("/api/vhosts/large").raise_for_status()


def listed(path: str, *, to_exchange: bool) -> Prepare:
    def prepare(site: Site, count: int) -> Callable[[], object]:
        _sources(site, count, to_exchange=to_exchange)
        return lambda: site.get(path)

    return prepare


_NAMED: Final = "that very many exchanges lead to"
SOURCES: Final[dict[str, tuple[int, Prepare]]] = {
    f"delete a queue {_NAMED}": (100_000, delete_queue()),
    f"delete an exchange {_NAMED}": (100_000, delete_exchange()),
    f"delete a queue {_NAMED}, auto-delete": (100_000, delete_queue(auto_delete=True)),
    f"delete an exchange {_NAMED}, auto-delete": (100_000, delete_exchange(auto_delete=True)),
    "delete the end of a chain of auto-delete exchanges": (100_000, delete_end_of_chain),
    f"connection lost with a queue {_NAMED}": (100_000, lose_connection),
    f"cancel the last consumer of a queue {_NAMED}": (100_000, cancel),
    f"unbind an auto-delete exchange {_NAMED}": (100_000, unbind),
    f"delete a vhost with a queue {_NAMED}": (100_000, delete_vhost),
    f"list the bindings to a queue {_NAMED}": (
        100_000,
        listed("/api/queues/%2F/end/bindings", to_exchange=False),
    ),
    f"list the bindings to an exchange {_NAMED}": (
        100_000,
        listed("/api/exchanges/%2F/end/bindings/destination", to_exchange=True),
    ),
    f"dashboard of an exchange {_NAMED}": (
        100_000,
        listed("/api/v1/dashboard/exchanges/%2F/end", to_exchange=True),
    ),
}
