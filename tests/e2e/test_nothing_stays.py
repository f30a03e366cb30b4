"""What clients make and delete again leaves nothing in the broker's memory."""

import gc
import json
import socket
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pika
import pytest

from holtmq.node import Node
from holtmq.testing import TestBroker

pytestmark = pytest.mark.e2e

_DAY_MS = 86_400_000
# Each has something that outlives the call that made it: a timer, a lease, a batch that waits.
_QUEUES: tuple[Mapping[str, object], ...] = (
    {},
    {"x-max-priority": 5},
    {"x-message-ttl": _DAY_MS, "x-dead-letter-exchange": "amq.fanout"},
    {"x-expires": _DAY_MS},
    {"x-queue-type": "quorum", "x-delivery-limit": 3},
    {"x-queue-type": "quorum", "x-retry-delay": _DAY_MS, "x-delivery-limit": 3},
    {"x-single-active-consumer": True},
    {"x-max-length": 2, "x-overflow": "reject-publish"},
    {"x-queue-type": "stream"},
)
# Caches with a limit in bytes: paths of pops, bodies of streams, properties of publishes.
_CACHED = {"Parameters", "StartRequest", "AmqpMetadata", "PublishProperties"}


def amqp_round(url: str, number: int) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    for kind, arguments in enumerate(_QUEUES):
        queue, exchange = f"queue-{number}-{kind}", f"exchange-{number}-{kind}"
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        channel.exchange_declare(exchange, "topic")
        durable = str(arguments.get("x-queue-type", "")) in ("quorum", "stream") or kind % 2 == 0
        channel.queue_declare(queue, durable=durable, arguments=dict(arguments))
        channel.queue_bind(queue, exchange, f"{number}.#")
        for body in range(4):
            properties = pika.BasicProperties(
                delivery_mode=2, message_id=f"{number}-{body}", expiration=str(_DAY_MS)
            )
            channel.basic_publish(exchange, f"{number}.{body}", b"%d" % body, properties)
        held: list[int] = []
        channel.basic_consume(queue, lambda _c, method, _p, _b, held=held: held.append(method.delivery_tag))
        connection.process_data_events(0.02)
        if held and kind != len(_QUEUES) - 1:
            channel.basic_nack(held[0], requeue=True)
        transaction = connection.channel()
        transaction.tx_select()
        transaction.basic_publish(exchange, f"{number}.tx", b"tx")
        if kind % 3 == 0:
            transaction.tx_commit()
        elif kind % 3 == 1:
            transaction.close()
        if kind % 2:
            channel.close()
        connection.channel().queue_delete(queue)
        connection.channel().exchange_delete(exchange)
    connection.close()


def http_round(url: str, number: int) -> None:
    def call(method: str, path: str, body: object = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    queue, vhost = f"partitioned-{number}", f"vhost-{number}"
    items = [{"queue": queue, "partition": f"p{n % 3}", "payload": n} for n in range(9)]
    call("POST", "/api/v1/push", {"items": items})
    for group in ("one", "two"):
        call("GET", f"/api/v1/pop/queue/{queue}?batch=3&consumerGroup={group}-{number}&wait=false")
    unknown = {"transactionId": "unknown", "partitionId": "1-0", "consumerGroup": "one"}
    call("POST", "/api/v1/ack/batch", {"acknowledgments": [unknown]})
    call("POST", "/api/v1/fetch", {"entries": [{"queue": queue, "partition": "p1", "offset": 0}]})
    call("DELETE", f"/api/v1/resources/queues/{queue}")
    call("POST", "/api/v1/ephemeral/push", {"queue": queue, "messages": [{"payload": n} for n in range(9)]})
    call("GET", f"/api/v1/ephemeral/pop?queue={queue}&batch=3&group=g")
    call("GET", f"/api/v1/ephemeral/pop?queue={queue}&partition=none&wait=true&timeout=20")
    call("DELETE", f"/api/v1/ephemeral/queue/{queue}")
    call("PUT", f"/api/vhosts/{vhost}")
    call("PUT", f"/api/queues/{vhost}/q", {"durable": True, "arguments": {"x-expires": _DAY_MS}})
    call("PUT", f"/api/policies/{vhost}/p", {"pattern": "q", "definition": {"message-ttl": _DAY_MS}})
    call("DELETE", f"/api/vhosts/{vhost}")


def lost_round(broker: TestBroker, number: int) -> None:
    """Connections that end in the middle of something, or before they began."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    for kind, arguments in enumerate(_QUEUES):
        queue = f"lost-{number}-{kind}"
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        exclusive = not arguments
        durable = str(arguments.get("x-queue-type", "")) in ("quorum", "stream")
        channel.queue_declare(queue, durable=durable, exclusive=exclusive, arguments=dict(arguments))
        for _ in range(3):
            channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
        group = {"x-stream-offset": "first", "x-consumer-group": "g"} if durable else {}
        if kind % 2:
            channel.tx_select()
            channel.basic_publish("", queue, b"never committed")
        channel.basic_consume(queue, lambda *_: None, arguments=group if "stream" in str(arguments) else {})
        if "stream" not in str(arguments):
            connection.channel().basic_get(queue)
    channel = connection.channel()
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
    channel.basic_publish("", f"lost-{number}-0", b"", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    with suppress(pika.exceptions.ChannelClosedByBroker):
        connection.channel().queue_declare("no such queue", passive=True)
    connection.process_data_events(0.02)
    broker.drop_connections()
    wrong = pika.URLParameters(broker.amqp_url.replace("guest:guest", "guest:wrong"))
    with suppress(pika.exceptions.AMQPError):
        pika.BlockingConnection(wrong)
    pika.BlockingConnection(pika.URLParameters(broker.amqp_url)).close()
    delete = pika.BlockingConnection(pika.URLParameters(broker.amqp_url))
    for kind in range(len(_QUEUES)):
        delete.channel().queue_delete(f"lost-{number}-{kind}")
    delete.close()
    host, port = urlsplit(broker.http_url).netloc.split(":")
    for request in (
        b"GET /api/v1/pop/queue/nothing?wait=true&timeout=30000&consumerGroup=g HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        b"GET /api/v1/push HTTP/1.1\r\nHost:",
        b"not HTTP\r\n\r\n",
        b"",
    ):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(request)
            time.sleep(0.01)
    while broker.call(lambda node: len(node.amqp.connections)):
        time.sleep(0.01)


def forget_used(node: Node) -> None:
    """What the sampling of the figures does once a second, and their history every five."""
    node.broker.flow.used.clear()
    node.broker.flow.used_exchanges.clear()
    deque(node.partitioned.counters.readings(), maxlen=0)


@contextmanager
def uncollected() -> Iterator[Counter[str]]:
    """No garbage collection within; what it would have freed, by class, is known at the end."""
    left: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield left
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left.update(f"{type(found).__module__}.{type(found).__qualname__}" for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def objects() -> Counter[str]:
    """Objects of the broker in memory, by class."""
    gc.collect()
    names = (f"{type(found).__module__}.{type(found).__qualname__}" for found in gc.get_objects())
    return Counter(name for name in names if name.startswith("holtmq."))


def test_queues_connections_and_vhosts_that_are_gone_leave_nothing_in_memory() -> None:
    with TestBroker() as broker:

        def rounds(first: int, count: int) -> Counter[str]:
            for number in range(first, first + count):
                amqp_round(broker.amqp_url, number)
                http_round(broker.http_url, number)
            broker.clock.advance(3600)
            broker.call(forget_used)
            return objects()

        before = rounds(0, 2)
        after = rounds(2, 6)

    grown = {kind: after[kind] - before[kind] for kind in after if after[kind] - before[kind] >= 6}
    assert {kind: more for kind, more in grown.items() if kind.rpartition(".")[2] not in _CACHED} == {}


def test_what_is_gone_needs_no_garbage_collection() -> None:
    """Full collections are rare, and hold everything up: a cycle would keep the memory for hours."""
    with TestBroker() as broker, uncollected() as left:
        for number in range(3):
            amqp_round(broker.amqp_url, number)
            http_round(broker.http_url, number)
            lost_round(broker, number)
        broker.clock.advance(3600)
        broker.call(forget_used)

    ours = {
        kind: count for kind, count in left.items() if kind.startswith(("holtmq.", "uvloop.", "_asyncio."))
    }
    assert ours == {}
    assert left  # the client's own cycles
