"""The same two brokers seen through pika: what an ordinary Python client gets.

Owns: one publisher and one consumer process with pika's blocking connection. The client is the bottleneck
here, so the rates say little about a broker; its CPU time for a message says more.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from time import perf_counter

import pika

from holtmq.load.comparison import Target
from holtmq.load.processes import usage

_QUEUE = "holt-load-pika"
_PREFETCH = 1000


@dataclass(frozen=True, slots=True)
class PikaFigures:
    """One broker, one way of publishing."""

    broker: str
    work: str
    rate: float
    cpu_us_per_message: float | None


def run(targets: Sequence[Target], messages: int) -> list[PikaFigures]:
    """Transient and unconfirmed, then persistent with a confirm awaited for each message."""
    figures = []
    for confirmed in (False, True):
        count = messages // 10 if confirmed else messages
        for target in targets:
            figures.append(_round(target, count, confirmed=confirmed))
    return figures


def _round(target: Target, messages: int, *, confirmed: bool) -> PikaFigures:
    address = target.address
    url = f"amqp://{address.user}:{address.password}@{address.host}:{address.port}/%2f"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_delete(_QUEUE)
        channel.queue_declare(_QUEUE, durable=confirmed)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    consumer = context.Process(target=_consume, args=(url, messages, ready), daemon=True)
    consumer.start()
    ready.wait()
    before = usage(target.pid) if target.pid is not None else None
    start = perf_counter()
    _publish(url, messages, confirmed=confirmed)
    consumer.join(300)
    seconds = perf_counter() - start
    if consumer.exitcode != 0:
        consumer.kill()
        raise SystemExit(f"pika did not get all messages from {target.label}")
    cpu = None
    if before is not None and target.pid is not None:
        cpu = (usage(target.pid).cpu_seconds - before.cpu_seconds) / messages * 1e6
    work = "persistent, each confirm awaited" if confirmed else "transient"
    return PikaFigures(target.label, work, messages / seconds, cpu)


def _publish(url: str, messages: int, *, confirmed: bool) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        if confirmed:
            channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2 if confirmed else 1)
        for _ in range(messages):
            channel.basic_publish("", _QUEUE, bytes(16), properties)


def _consume(url: str, messages: int, ready: Event) -> None:
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
        channel.queue_delete(_QUEUE)
