"""Very many deliveries of a stream that end at once, of a reader by itself or of a member of a group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Final

from bench.stalls import endings
from bench.stalls.site import Prepare, Site
from pika.exceptions import ChannelClosedByBroker

from holtmq.broker.partitioned.log.bodies import AmqpMetadata, Body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.node import Node
from holtmq.wire.properties import Properties, encode_properties
from holtmq.wire.tables import FieldTable

_AT_ONCE: Final = 1_000
_EACH: Final = 32  # messages of a partition; a member claims 256 at a time

End = Callable[[Site], object]


def ended(end: End, *, each: int = _EACH, group: bool = True, in_transaction: bool) -> Prepare:
    """End all deliveries of one consumer; ``each``: messages in a partition."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        fill(site, count, each)
        if in_transaction:
            site.channel.tx_select()
        take(site, count, group=group)
        if not in_transaction:
            return partial(end, site)
        end(site)
        return lambda: site.channel.tx_commit()

    return prepare


def consumed(*, each: int = _EACH, group: bool = True, size: int = 0) -> Prepare:
    """Deliver everything to a new consumer."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        fill(site, count, each, lambda n: Body(f"t-{n}", b"m" * size) if size else _small(n))
        return lambda: take(site, count, group=group)

    return prepare


def filtered(arguments: dict[str, object], headers: Callable[[int], FieldTable]) -> Prepare:
    """Ten consumers look for messages that are not there."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        def body(number: int) -> Body:
            properties = encode_properties(Properties(headers=headers(number)))
            return Body(f"t-{number}", b"m", metadata=AmqpMetadata("", "q", properties))

        fill(site, count, 1_000, body)

        def request() -> None:
            for _ in range(10):
                site.channel.basic_consume(
                    "q", lambda *_: None, arguments={"x-stream-offset": "first", **arguments}
                )
            while site.broker.call(lambda node: _unread(node)):
                site.channel.connection.process_data_events(0.01)

        return request

    return prepare


def _unread(node: Node) -> bool:
    queue = node.broker.vhost("/").queues["q"]
    assert isinstance(queue, StreamQueue)
    return queue.is_serving


def _small(number: int) -> Body:
    return Body(f"t-{number}", b'{"n":1}')


def fill(site: Site, count: int, each: int, body: Callable[[int], Body] = _small) -> None:
    """Put messages on the stream ``q``."""
    site.channel.queue_declare("q", durable=True, arguments={"x-queue-type": "stream"})

    def push(first: int, node: Node) -> None:
        numbers = range(first, min(first + _AT_ONCE, count))
        items = [PushItem("q", f"p{n // each}", body(n)) for n in numbers]
        node.partitioned.push(items, node.broker.flow.now_ms / 1000)

    for first in range(0, count, _AT_ONCE):
        site.topology(partial(push, first))


def take(site: Site, count: int, *, group: bool) -> None:
    """Consume so many messages."""
    got = 0

    def count_one(*_: object) -> None:
        nonlocal got
        got += 1

    arguments = {"x-stream-offset": "first"} | ({"x-consumer-group": "g"} if group else {})
    site.channel.basic_consume("q", count_one, arguments=arguments)
    while got < count:
        site.channel.connection.process_data_events(1)


def ack(site: Site) -> None:
    site.channel.basic_ack(0, multiple=True)
    site.channel.queue_declare("q", passive=True)


def ack_each(site: Site) -> None:
    last = site.broker.call(lambda node: max(len(s.by_number) for s in node.broker.sessions))
    for tag in range(1, last + 1):
        site.channel.basic_ack(tag)
    site.channel.queue_declare("q", passive=True)


def refuse(site: Site, *, requeue: bool) -> None:
    site.channel.basic_nack(0, multiple=True, requeue=requeue)
    site.channel.queue_declare("q", passive=True)


def rejected(site: Site, first: int, last: int, count: int) -> None:
    """One partition with so many deliveries, of which these are rejected."""
    fill(site, count, count)
    take(site, count, group=True)
    for start in range(first, last + 1, 1_000):
        for tag in range(start, min(start + 1_000, last + 1)):
            site.channel.basic_reject(tag, requeue=False)
        site.channel.queue_declare("q", passive=True)


def first_at_last(in_transaction: bool) -> Prepare:
    """All deliveries of a partition but the first are rejected; then the first one is settled."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        rejected(site, 2, count, count)
        if in_transaction:
            site.channel.tx_select()
            site.channel.basic_ack(1)

        def request() -> None:
            if in_transaction:
                site.channel.tx_commit()
            else:
                site.channel.basic_ack(1)
            wait_for_letters(site, count - 1)

        return request

    return prepare


def both_ends(is_refused: bool) -> Prepare:
    """All deliveries of a partition but the first and the last are rejected; then a commit acks these."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        rejected(site, 2, count - 1, count)
        site.channel.tx_select()
        site.channel.basic_ack(1)
        site.channel.basic_ack(count)

        def request() -> None:
            with suppress(ChannelClosedByBroker) if is_refused else nullcontext():
                site.channel.tx_commit()
                wait_for_letters(site, count - 2)

        return request

    return prepare


def wait_for_letters(site: Site, count: int) -> None:
    """Until so many messages are dead letters."""
    while site.broker.call(lambda node: len(node.partitioned.store.queues["q"].dead_letters)) < count:
        site.channel.connection.process_data_events(0.01)


def by_turns(end: End, streams: int) -> Prepare:
    """End deliveries of as many streams, one of each in turn, each in its own partition."""
    names = ["q", *(f"q{n}" for n in range(1, streams))]

    def prepare(site: Site, count: int) -> Callable[[], object]:
        got = 0

        def push(first: int, node: Node) -> None:
            items = [PushItem(name, f"p{first}", _small(first + n)) for n, name in enumerate(names)]
            node.partitioned.push(items, node.broker.flow.now_ms / 1000)

        def count_one(*_: object) -> None:
            nonlocal got
            got += 1

        for name in names:
            site.channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
            arguments = {"x-stream-offset": "first", "x-consumer-group": "g"}
            site.channel.basic_consume(name, count_one, arguments=arguments)
        for first in range(0, count, streams):
            site.topology(partial(push, first))
            while got < first:
                site.channel.connection.process_data_events(0.01)
        return partial(end, site)

    return prepare


def delete(site: Site) -> None:
    site.channel.connection.channel().queue_delete("q")


def _different(number: int) -> FieldTable:
    return {"n": number, "name": f"name-{number}"}


def _large(number: int) -> FieldTable:
    return {f"key-{key}": number for key in range(8_000)}


def _most(what: str, who: str) -> int:
    """How many deliveries one transaction settles: of 3,000 partitions and rejected messages at most."""
    if "each" in who:
        return 1_500 if what == "reject all" else 3_000
    return 2_900 if what == "reject all" else 96_000


_LONGEST: Final = " OR ".join(["n<0"] * 127)
_ENDS: Final[dict[str, End]] = {
    "ack all": ack,
    "ack each": ack_each,
    "reject all": partial(refuse, requeue=False),
    "nack all": partial(refuse, requeue=True),
}
_READERS: Final = {
    "a reader": {"group": False, "each": 100_000},
    "a group": {},
    "a group, each in its partition": {"each": 1},
}
STREAM_DELIVERIES: Final[dict[str, tuple[int, Prepare]]] = {
    "stream filters": (100_000, filtered({"x-stream-filter": "none"}, _different)),
    "SQL filters": (100_000, filtered({"x-stream-sql-filter": "n < 0 OR name LIKE '%x%'"}, _different)),
    "SQL filters, the longest": (100_000, filtered({"x-stream-sql-filter": _LONGEST}, _different)),
    "SQL filters, large headers": (1_000, filtered({"x-stream-sql-filter": "n < 0"}, _large)),
    "reject all but the first, then ack it": (20_000, first_at_last(False)),
    "reject all but the first, then commit its ack": (20_000, first_at_last(True)),
    "reject all between, then commit acks of both ends": (2_900, both_ends(is_refused=False)),
    "the same with more, which is refused": (40_000, both_ends(is_refused=True)),
    **{
        f"{what} of {streams} groups by turns": (12_000, by_turns(end, streams))
        for streams in (3, 1_000)
        for what, end in _ENDS.items()
    },
    "large deliveries to a reader": (400, consumed(each=10, group=False, size=1 << 20)),
    "large deliveries to a group": (400, consumed(each=1, size=1 << 20)),
    **{f"deliveries to {who}": (100_000, consumed(**how)) for who, how in _READERS.items()},  # type: ignore[arg-type]
    **{
        f"{what} of {who}": (100_000, ended(end, in_transaction=False, **how))  # type: ignore[arg-type]
        for who, how in _READERS.items()
        for what, end in _ENDS.items()
        if what not in ("reject all", "nack all") or who != "a reader"
    },
    **{
        f"tx.commit, {what} of {who}": (
            _most(what, who),
            ended(end, in_transaction=True, **how),  # type: ignore[arg-type]
        )
        for who, how in _READERS.items()
        for what, end in _ENDS.items()
        if what not in ("reject all", "nack all") or who != "a reader"
    },
    **{
        f"{what} with deliveries of {who}": (
            100_000,
            ended(end, in_transaction=False, **how),  # type: ignore[arg-type]
        )
        for who, how in _READERS.items()
        for what, end in (
            ("close a channel", lambda site: site.channel.close()),
            ("connection lost", lambda site: site.broker.drop_connections()),
            ("cancel", lambda site: site.channel.basic_cancel(site.channel.consumer_tags[0])),
            ("recover", lambda site: endings.recover(site, "")),
            ("delete a queue", delete),
        )
    },
}
