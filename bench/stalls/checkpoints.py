"""Checkpoints of a node that has very many objects of one kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from bench.stalls import bulk, extras, messages, rows
from bench.stalls.site import Prepare, Site
from pika import BasicProperties

from holtmq.broker.partitioned.groups.subscriptions import StartRequest
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import PopRequest, PushItem
from holtmq.node import Node

_AT_ONCE: Final = 1_000
_ALL: Final = StartRequest()


def checkpoint(fill: Callable[[Site, int], object]) -> Prepare:
    """The checkpoint after ``fill``, until it is written."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        fill(site, count)
        make(site)  # not the first one: topology is encoded
        return lambda: make(site)

    return prepare


def make(site: Site) -> None:
    site.broker.call(lambda node: node.checkpoints.make())
    while site.broker.call(lambda node: node.checkpoints.is_making):
        time.sleep(0.01)


def _push_all(items: list[PushItem], node: Node) -> None:
    node.partitioned.push(items, time.time())


def _push(site: Site, count: int, partitions: int, queues: int = 1) -> None:
    for start in range(0, count, _AT_ONCE):
        items = [
            PushItem(f"log-{number % queues}", f"p{number % partitions}", Body(f"t-{number}", b'{"n":1}'))
            for number in range(start, min(start + _AT_ONCE, count))
        ]
        site.topology(partial(_push_all, items))


def _pop(site: Site, count: int, *, auto_ack: bool) -> None:
    def pop(node: Node) -> None:
        for number in range(_AT_ONCE):
            request = PopRequest(f"l{number}", "log-0", "p0", group="g", auto_ack=auto_ack, start=_ALL)
            node.partitioned.pop(request, time.time())

    for _ in range(count // _AT_ONCE):
        site.broker.call(pop)


def rows_of_a_log(site: Site, count: int) -> None:
    _push(site, count, 100)


def partitioned_queues(site: Site, count: int) -> None:
    """Many queues with a few messages each."""
    _push(site, 5 * count, 1, queues=count)


def partitions(site: Site, count: int) -> None:
    """A message in each partition, and a group that has read some."""
    _push(site, count, count)
    _pop(site, _AT_ONCE, auto_ack=True)


def deliveries(site: Site, count: int) -> None:
    """Acked one by one, so that the queue's log of deliveries is full."""
    _push(site, count, 1)
    _pop(site, count, auto_ack=True)


def traces(site: Site, count: int) -> None:
    extras.add_traces(site, count, lambda number: [f"name-{number}"])


def imported(what: str) -> Callable[[Site, int], object]:
    return lambda site, count: rows.load(what)(site, count)()


def unacked(site: Site, count: int) -> None:
    bulk.unacked(lambda _site, _tag: None, {})(site, count)


def delayed(site: Site, count: int) -> None:
    messages.list_delayed(site, count)


def work_queues(arguments: dict[str, object] | None) -> Callable[[Site, int], None]:
    """A message in each of many queues; none without ``arguments``."""

    def fill(site: Site, count: int) -> None:
        def declare(node: Node) -> None:
            vhost = node.broker.vhost("/")
            for number in range(count):
                node.broker.declare_queue(vhost, f"queue-{number}", durable=True, arguments=arguments)

        site.topology(declare)
        for number in range(count if arguments is not None else 0):
            site.channel.basic_publish("", f"queue-{number}", b"x", BasicProperties(delivery_mode=2))
        site.channel.queue_declare("queue-0", passive=True)

    return fill


def groups(site: Site, count: int) -> None:
    """As many groups, a hundredth of them in each of 100 queues."""
    _push(site, 100, 1, queues=100)

    def join(first: int, node: Node) -> None:
        for number in range(first, first + _AT_ONCE):
            name = f"log-{number % 100}"
            request = PopRequest(f"l{number}", name, "p0", group=f"user-{number}", start=_ALL)
            node.partitioned.pop(request, time.time())
        node.partitioned.record_deliveries()

    for first in range(0, count, _AT_ONCE):
        site.topology(partial(join, first))


CHECKPOINTS: Final[dict[str, tuple[int, Prepare]]] = {
    f"checkpoint of {name}": (count, checkpoint(fill))
    for name, count, fill in (
        ("idle queues", 20_000, work_queues(None)),
        ("queues with a message", 20_000, work_queues({})),
        ("very many queues with a message", 100_000, work_queues({})),
        ("priority queues with a message", 100_000, work_queues({"x-max-priority": 9})),
        ("unacked messages", 100_000, unacked),
        ("delayed messages", 100_000, delayed),
        ("exchanges", 20_000, imported("exchanges")),
        ("users with permissions", 20_000, imported("users")),
        ("policies", 20_000, imported("policies")),
        ("messages in a partitioned queue", 2_000_000, rows_of_a_log),
        ("partitioned queues", 10_000, partitioned_queues),
        ("partitions with a group", 100_000, partitions),
        ("very many groups", 100_000, groups),
        ("deliveries of a group", 128_000, deliveries),
        ("keyed rows", 100_000, extras.put_rows),
        ("timers", 100_000, extras.set_timers),
        ("traces", 100_000, traces),
    )
}
