"""Very many queues with messages, and very many clients that are served together."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from bench.stalls.clients import open_connections
from bench.stalls.site import Prepare, Site

from holtmq.broker.message import make_address
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.node import Node
from holtmq.wire.properties import Properties, encode_header, encode_properties

_EACH: Final = 100  # messages in each queue
_OPEN_CHANNEL: Final = b"\x01\x00\x01\x00\x00\x00\x05\x00\x14\x00\x0a\x00\xce"


def _method(payload: bytes) -> bytes:
    return b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"


def _consume(queue: str, *, no_ack: bool) -> bytes:
    name = queue.encode()
    flags = bytes((8 | 2 * no_ack,))  # no-wait
    tag = b"\x00"
    return _method(
        b"\x00\x3c\x00\x14\x00\x00" + bytes((len(name),)) + name + tag + flags + b"\x00\x00\x00\x00"
    )


@contextmanager
def _reading(sockets: Iterable[socket.socket]) -> Iterator[list[int]]:
    """Read and discard what the broker sends; the bytes so far."""
    got = [0]
    is_over = threading.Event()
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)

        def read() -> None:
            while not is_over.is_set():
                for key, _ in selector.select(0.05):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    got[0] += len(sock.recv(1 << 20))

        reader = threading.Thread(target=read)
        reader.start()
        yield got
        is_over.set()
        reader.join()


def _fill(site: Site, queues: int, each: int, expiration: str | None = None) -> None:
    """Queues with messages, from inside."""
    header = encode_header(16, encode_properties(Properties(delivery_mode=2, expiration=expiration)))

    def fill(node: Node) -> None:
        broker = node.broker
        vhost = broker.vhost("/")
        properties = broker.flow.publish_properties.of(header)
        for number in range(queues):
            name = f"full-{number}"
            broker.declare_queue(vhost, name, durable=True)
            route = broker.resolve(vhost, "", name, make_address("", name))
            for _ in range(each):
                broker.flow.publishing.publish(route, properties, header, b"x" * 16)

    site.topology(fill)


def _ready(site: Site) -> int:
    def count(node: Node) -> int:
        return sum(len(queue) for queue in node.broker.vhost("/").queues.values())

    return int(site.broker.call(count))


def _wait_for(site: Site, ready: int) -> None:
    while _ready(site) > ready:
        time.sleep(0.2)


def consume_backlogs(connections: int, *, no_ack: bool) -> Prepare:
    """Consumers begin, each with a queue that has messages; as many as there are messages in all."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        queues = count // _EACH
        _fill(site, queues, _EACH)
        sockets = open_connections(site, connections)
        for one in sockets:
            one.sendall(_OPEN_CHANNEL)

        def begin() -> None:
            with _reading(sockets):
                for at, one in enumerate(sockets):
                    mine = range(at, queues, connections)
                    one.sendall(b"".join(_consume(f"full-{number}", no_ack=no_ack) for number in mine))
                _wait_for(site, 0)

        return begin

    return prepare


def expire(site: Site, count: int) -> Callable[[], object]:
    """The messages of very many queues expire at once."""
    _fill(site, count // _EACH, _EACH, "3600000")

    def late(node: Node) -> None:
        node.scheduler._clock = lambda: time.time() + 7_200
        node.scheduler.tick()

    def wait() -> None:
        site.topology(late)
        _wait_for(site, 0)

    return wait


def shorten(site: Site, count: int) -> Callable[[], object]:
    """A policy lowers the limit of very many queues to one message."""
    queues = count // _EACH
    _fill(site, queues, _EACH)
    body = {"pattern": "^full-", "definition": {"max-length": 1}}

    def put() -> None:
        site.http.put("/api/policies/%2F/short", json=body).raise_for_status()
        _wait_for(site, queues)

    return put


def _consumers_of_their_own(site: Site, count: int, queues: int) -> list[socket.socket]:
    """Each has a connection; they share so many queues, which a fanout reaches."""

    def make(node: Node) -> None:
        broker = node.broker
        vhost = broker.vhost("/")
        broker.exchanges.declare(vhost, "wide", "fanout")
        for number in range(queues):
            broker.declare_queue(vhost, f"own-{number}")
            broker.bind(vhost, "wide", f"own-{number}", "")

    site.topology(make)
    sockets = open_connections(site, count)
    for number, one in enumerate(sockets):
        one.sendall(_OPEN_CHANNEL + _consume(f"own-{number % queues}", no_ack=True))

    def consumers(node: Node) -> int:
        return sum(len(queue.consumers) for queue in node.broker.vhost("/").queues.values())

    while site.broker.call(consumers) < count:
        time.sleep(0.1)
    return sockets


def publish_to_connections(*, shared: bool) -> Prepare:
    """A message for each consumer: one from its own queue, or one of many in a queue that all share."""

    def prepare(site: Site, count: int) -> Callable[[], object]:
        sockets = _consumers_of_their_own(site, count, 1 if shared else count)

        def send() -> None:
            def publish(node: Node) -> None:
                broker = node.broker
                header = encode_header(16, encode_properties(Properties()))
                route = broker.resolve(broker.vhost("/"), "wide", "", make_address("wide", ""))
                properties = broker.flow.publish_properties.of(header)
                for _ in range(count if shared else 1):
                    broker.flow.publishing.publish(route, properties, header, b"x" * 16)

            site.topology(publish)
            for one in sockets:
                while b"x" * 16 not in one.recv(4_096):
                    pass  # the answer to channel.open

        return send

    return prepare


def alarm(site: Site, count: int) -> Callable[[], object]:
    """Publishers on as many connections are paused by an alarm, and go on."""
    sockets = open_connections(site, count)
    name = b"none"
    publish = _method(b"\x00\x3c\x00\x28\x00\x00\x00" + bytes((len(name),)) + name + b"\x00")
    header = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\x00\x00"
    content = b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce"
    content += b"\x03\x00\x01\x00\x00\x00\x01x\xce"
    for one in sockets:
        one.sendall(_OPEN_CHANNEL + publish + content)
    time.sleep(2)

    def raise_and_lift() -> None:
        site.broker.call(lambda node: node.amqp.raise_alarm("memory"))
        time.sleep(0.2)
        site.broker.call(lambda node: node.amqp.lift_alarm())
        time.sleep(0.2)
        assert sockets

    return raise_and_lift


def overdue(site: Site, count: int) -> Callable[[], object]:
    """Very many consumers of one queue, on ten connections, have not acknowledged their messages in time."""
    site.channel.queue_declare("late", durable=True, arguments={"x-consumer-timeout": 3_600_000})
    sockets = open_connections(site, 10)
    each = -(-count // len(sockets))
    qos = _method(b"\x00\x3c\x00\x0a\x00\x00\x00\x00\x00\x01\x00")
    for one in sockets:
        one.sendall(_OPEN_CHANNEL + qos)
        one.sendall(_consume("late", no_ack=False) * each)

    def queue(node: Node) -> WorkQueue:
        found = node.broker.vhost("/").queues["late"]
        assert isinstance(found, WorkQueue)
        return found

    while site.broker.call(lambda node: len(queue(node).consumers)) < each * len(sockets):
        time.sleep(0.1)
    for _ in range(count):
        site.channel.basic_publish("", "late", b"x")
    with _reading(sockets):
        while site.broker.call(lambda node: queue(node).unacked) < count:
            time.sleep(0.1)

    def late(node: Node) -> None:
        node.scheduler._clock = lambda: time.time() + 7_200
        node.scheduler.tick()

    def wait() -> None:
        with _reading(sockets):
            site.topology(late)
            while site.broker.call(lambda node: queue(node).figures.returned) < count:
                time.sleep(0.2)

    return wait


def publish_together(site: Site, count: int) -> Callable[[], object]:
    """As many publishers send 10,000 messages each, as fast as they can."""

    def make(node: Node) -> None:
        for number in range(count):
            node.broker.declare_queue(node.broker.vhost("/"), f"busy-{number}", durable=True)

    site.topology(make)
    sockets = open_connections(site, count)
    header = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\x10\x00\x02"
    content = b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce"
    content += b"\x03\x00\x01\x00\x00\x00\x01x\xce"
    for one in sockets:
        one.sendall(_OPEN_CHANNEL)

    def send(number: int) -> None:
        name = f"busy-{number}".encode()
        publish = _method(b"\x00\x3c\x00\x28\x00\x00\x00" + bytes((len(name),)) + name + b"\x00")
        sockets[number].sendall((publish + content) * 10_000)

    def publish_all() -> None:
        threads = [threading.Thread(target=send, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while _ready(site) < count * 10_000:
            time.sleep(0.1)

    return publish_all


REQUESTS: dict[str, tuple[int, Prepare]] = {
    "consume from very many queues with messages": (200_000, consume_backlogs(1, no_ack=False)),
    "consume from very many queues with messages, no acks": (200_000, consume_backlogs(1, no_ack=True)),
    "consume by 100 connections from very many queues with messages": (
        200_000,
        consume_backlogs(100, no_ack=False),
    ),
    "messages of very many queues expire at once": (200_000, expire),
    "a policy drops messages of very many queues": (200_000, shorten),
    "publish to a queue for each of very many connections": (5_000, publish_to_connections(shared=False)),
    "publish to a queue of very many connections": (5_000, publish_to_connections(shared=True)),
    "very many consumers of a queue do not acknowledge in time": (20_000, overdue),
    "publish by 100 connections at once": (100, publish_together),
    "alarm while very many publish": (5_000, alarm),
}
