"""Both brokers seen through real client libraries, as fast as those go: pika, aio-pika, kombu and amqplib.

Owns: one publisher and one consumer process for each library, with messages that differ in id and size. The
client is the bottleneck here, so the rates say little about a broker; its CPU time for a message says more.
Must not touch: brokers that it was not given.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from time import perf_counter

import aio_pika
import kombu
import pika

from holtmq.load.comparison import Target
from holtmq.load.processes import usage

_QUEUE = "holt-load-client"
_PREFETCH = 1000
_SECONDS = 300
_NODE_FOLDER = Path(__file__).parents[1] / "tests" / "e2e" / "node"
_NODE_SCRIPT = Path(__file__).with_name("amqplib_client.js")

Publish = Callable[[str, int], None]
Consume = Callable[[str, int, Event], None]


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """One broker with one library."""

    broker: str
    client: str
    rate: float
    cpu_us_per_message: float | None


def run(targets: Sequence[Target], messages: int) -> list[ClientFigures]:
    """Every library on every broker."""
    clients: list[tuple[str, int, Publish, Consume]] = [
        ("pika", messages, _publish_pika, _consume_pika),
        ("pika, persistent, each confirm awaited", messages // 10, _publish_confirmed, _consume_pika),
        ("aio-pika", messages // 4, _publish_aio, _consume_aio),
        ("kombu", messages // 2, _publish_kombu, _consume_kombu),
    ]
    if shutil.which("node") is not None and (_NODE_FOLDER / "node_modules" / "amqplib").is_dir():
        clients.append(("amqplib", messages, _publish_node, _consume_node))
    return [
        _round(target, name, count, publish, consume)
        for name, count, publish, consume in clients
        for target in targets
    ]


def body(number: int) -> bytes:
    """A body of 20 to 600 bytes."""
    return (b'{"n":%09d,"text":"' % number).ljust(20 + number * 7919 % 580, b"x")


def _round(target: Target, name: str, messages: int, publish: Publish, consume: Consume) -> ClientFigures:
    address = target.address
    url = f"amqp://{address.user}:{address.password}@{address.host}:{address.port}/%2f"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_delete(_QUEUE)
        channel.queue_declare(_QUEUE, durable=True)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    consumer = context.Process(target=consume, args=(url, messages, ready), daemon=True)
    consumer.start()
    ready.wait(_SECONDS)
    before = usage(target.pid) if target.pid is not None else None
    start = perf_counter()
    publish(url, messages)
    consumer.join(_SECONDS)
    seconds = perf_counter() - start
    if consumer.exitcode != 0:
        consumer.kill()
        raise SystemExit(f"{name} did not get all messages from {target.label}")
    cpu = None
    if before is not None and target.pid is not None:
        cpu = (usage(target.pid).cpu_seconds - before.cpu_seconds) / messages * 1e6
    return ClientFigures(target.label, name, messages / seconds, cpu)


def _publish_pika(url: str, messages: int, *, confirmed: bool = False) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        if confirmed:
            channel.confirm_delivery()
        mode = 2 if confirmed else 1
        for number in range(messages):
            properties = pika.BasicProperties(delivery_mode=mode, message_id=f"m-{number:012d}")
            channel.basic_publish("", _QUEUE, body(number), properties)


def _publish_confirmed(url: str, messages: int) -> None:
    _publish_pika(url, messages, confirmed=True)


def _consume_pika(url: str, messages: int, ready: Event) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=_PREFETCH)
        deliveries = channel.consume(_QUEUE, inactivity_timeout=60)
        ready.set()
        for count, (method, _, _) in enumerate(deliveries, 1):
            if method is None:
                raise SystemExit(1)
            channel.basic_ack(method.delivery_tag)
            if count == messages:
                break
        channel.cancel()


def _publish_aio(url: str, messages: int) -> None:
    async def publish() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            for first in range(0, messages, 200):  # it awaits each confirm, so that many must be under way
                numbers = range(first, min(first + 200, messages))
                made = [aio_pika.Message(body(n), message_id=f"m-{n:012d}") for n in numbers]
                await asyncio.gather(*(channel.default_exchange.publish(one, _QUEUE) for one in made))

    asyncio.run(publish())


def _consume_aio(url: str, messages: int, ready: Event) -> None:
    async def consume() -> None:
        async with await aio_pika.connect(url) as connection:
            channel = await connection.channel()
            await channel.set_qos(_PREFETCH)
            queue = await channel.get_queue(_QUEUE)
            count = 0
            async with queue.iterator() as deliveries:
                ready.set()
                async for delivery in deliveries:
                    await delivery.ack()
                    count += 1
                    if count == messages:
                        break

    asyncio.run(consume())


def _publish_kombu(url: str, messages: int) -> None:
    with kombu.Connection(url) as connection:
        producer = connection.Producer()
        for number in range(messages):
            producer.publish(
                body(number),
                routing_key=_QUEUE,
                content_type="application/data",
                content_encoding="binary",
                delivery_mode=1,
                message_id=f"m-{number:012d}",
            )


def _consume_kombu(url: str, messages: int, ready: Event) -> None:
    seen = 0

    def received(_: object, message: kombu.Message) -> None:
        nonlocal seen
        seen += 1
        message.ack()

    with kombu.Connection(url) as connection:
        queue = kombu.Queue(_QUEUE, durable=True)
        with connection.Consumer(
            queue, callbacks=[received], prefetch_count=_PREFETCH, accept=["application/data"]
        ):
            ready.set()
            while seen < messages:
                connection.drain_events(timeout=60)


def _node(*words: str) -> subprocess.Popen[bytes]:
    command = ["node", str(_NODE_SCRIPT), str(_NODE_FOLDER), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def _publish_node(url: str, messages: int) -> None:
    with _node("publish", url, _QUEUE, str(messages)) as process:
        if process.wait(_SECONDS):
            raise SystemExit("amqplib could not publish")


def _consume_node(url: str, messages: int, ready: Event) -> None:
    with _node("consume", url, _QUEUE, str(messages)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ready.set()
        raise SystemExit(process.wait(_SECONDS))
