"""Publishers of several libraries, each with a list of nodes as docs/failover.md tells it. Run as a process.

Usage: ``python failover_publishers.py AMQP_PORT,... HTTP_PORT,... BALANCED_PORT FILE``. Prints the name of a
publisher and a number for each confirmed message. The Celery task notes in ``FILE`` that it ran.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import aio_pika
import failover_celery
import kombu
import pika
from queen import Queen

from holtmq.client import Backoff, Client

PAUSE: Final = 0.02
DURABLE: Final = pika.BasicProperties(delivery_mode=2)


class Publisher:
    """One client; its queue has its name."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.number = 0

    def confirm(self) -> None:
        """The broker has confirmed the number; the next one follows."""
        print(f"confirmed {self.queue} {self.number}\n", end="", flush=True)
        self.number += 1
        time.sleep(PAUSE)


def with_pika(ports: Sequence[int]) -> Callable[[Publisher], None]:
    def publish(self: Publisher) -> None:
        hosts = [pika.ConnectionParameters("127.0.0.1", port) for port in ports]
        while True:
            try:
                channel = pika.BlockingConnection(hosts).channel()
                channel.queue_declare(self.queue, durable=True)
                channel.confirm_delivery()
                while True:
                    channel.basic_publish("", self.queue, b"%d" % self.number, DURABLE)
                    self.confirm()
            except pika.exceptions.AMQPError:
                time.sleep(0.1)

    return publish


async def aio_pika_publisher(self: Publisher, ports: Sequence[int]) -> None:
    async def connect() -> aio_pika.abc.AbstractConnection:
        while True:
            for port in ports:
                try:
                    return await aio_pika.connect(f"amqp://127.0.0.1:{port}/")
                except aio_pika.exceptions.CONNECTION_EXCEPTIONS:
                    continue
            await asyncio.sleep(0.1)

    while True:
        try:
            async with await connect() as connection:
                channel = await connection.channel()
                await channel.declare_queue(self.queue, durable=True)
                while True:
                    body = aio_pika.Message(b"%d" % self.number, delivery_mode=2)
                    await channel.default_exchange.publish(body, self.queue)
                    self.confirm()
        except aio_pika.exceptions.CONNECTION_EXCEPTIONS:
            continue


def with_kombu(ports: Sequence[int]) -> Callable[[Publisher], None]:
    def publish(self: Publisher) -> None:
        policy = {"interval_start": 0.1, "interval_max": 0.1, "max_retries": None}
        with kombu.Connection(urls_of(ports), transport_options={"confirm_publish": True}) as connection:
            queue = kombu.Queue(self.queue, durable=True)
            producer = connection.Producer()
            while True:
                producer.publish(
                    str(self.number),
                    routing_key=self.queue,
                    declare=[queue],
                    retry=True,
                    retry_policy=policy,
                    delivery_mode=2,
                )
                self.confirm()

    return publish


def with_celery(path: str, ports: Sequence[int]) -> Callable[[Publisher], None]:
    def publish(self: Publisher) -> None:
        failover_celery.app.conf.broker_url = urls_of(ports)
        policy = {"interval_start": 0.1, "interval_max": 0.1, "max_retries": 1800}
        while True:
            failover_celery.note.apply_async((path, self.number), retry=True, retry_policy=policy)
            self.confirm()

    return publish


def urls_of(ports: Sequence[int]) -> str:
    """Kombu's and Celery's list of brokers."""
    return ";".join(f"amqp://guest:guest@127.0.0.1:{port}//" for port in ports)


async def our_publisher(self: Publisher, ports: Sequence[int]) -> None:
    patient = Backoff(tries=100)  # on a busy machine the takeover may take longer than a user would wait
    async with Client([f"http://127.0.0.1:{port}" for port in ports], backoff=patient) as client:
        while True:
            await client.queue(self.queue).push([{"number": self.number}])
            self.confirm()


async def queen_publisher(self: Publisher, ports: Sequence[int]) -> None:
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    client = Queen(urls=urls, retry_attempts=1, health_retry_after_millis=200)
    while True:
        try:
            await client.queue(self.queue).push([{"data": {"number": self.number}}])
        except Exception:  # it has no class of its own for a broker that is gone
            await asyncio.sleep(0.1)
        else:
            self.confirm()


def in_loop(
    publisher: Callable[[Publisher, Sequence[int]], Coroutine[Any, Any, None]], ports: Sequence[int]
) -> Callable[[Publisher], None]:
    """Run a publisher in an event loop of its own."""
    return lambda self: asyncio.run(publisher(self, ports))


def main(amqp: Sequence[int], http: Sequence[int], balanced: int, path: str) -> None:
    """Start all of them; they run until the process is killed."""
    threads = {
        "pika": with_pika(amqp),
        "haproxy": with_pika([balanced]),
        "aio-pika": in_loop(aio_pika_publisher, amqp),
        "kombu": with_kombu(amqp),
        "celery": with_celery(path, amqp),
        "ours": in_loop(our_publisher, http),
    }
    for name, publish in threads.items():
        threading.Thread(target=publish, args=(Publisher(name),), name=name).start()
    # This client sets signal handlers, which only the main thread may do.
    asyncio.run(queen_publisher(Publisher("queen"), http))


if __name__ == "__main__":
    first, second, port, file = sys.argv[1:]
    main([*map(int, first.split(","))], [*map(int, second.split(","))], int(port), file)
