"""What the judge's clients do until the broker dies under them.

Owns: publishers with confirms, a consumer with acks, a consumer that moves messages in transactions.
Must not touch: verdicts; every step is written into the record before or after it, never guessed.
"""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Final

from holtmq.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicNack,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
    QueuePurge,
    QueuePurgeOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from holtmq.verify.client import Client, Gone
from holtmq.verify.record import Record, make_body, name_of

PLAIN: Final = "plain"
WORK: Final = "work"
MARKERS: Final = "markers"
IN: Final = "in"
OUT: Final = "out"
AUDIT: Final = "audit"
QUEUES: Final = (PLAIN, WORK, MARKERS, IN, OUT, AUDIT)

_WINDOW: Final = 16  # publishes on their way to a confirm
_PADDING_MAX: Final = 2_000
_ACKS_PER_MARKER: Final = 8
_PER_TRANSACTION: Final = 3


@dataclass(slots=True)
class Watch:
    """What the clients measured."""

    confirm_seconds: list[float] = field(default_factory=list)
    duplicates: int = 0  # deliveries of something the consumer had been given before
    given: set[str] = field(default_factory=set)
    nacked: int = 0

    def receive(self, body: bytes) -> str:
        """Note a delivery; the name of what was delivered."""
        name = name_of(body)
        if name is None:
            raise Gone("a damaged body was delivered")  # the comparison will find it
        self.duplicates += name in self.given
        self.given.add(name)
        return name


async def declare_queues(port: int) -> None:
    """Durable queues, all of them."""
    client = await Client.connect(port)
    for queue in QUEUES:
        await client.call(QueueDeclare(queue, durable=True), QueueDeclareOk)
    client.close()


async def read_queues(port: int) -> dict[str, list[bytes]]:
    """Everything that waits, in order; it is left there."""
    found: dict[str, list[bytes]] = {}
    for queue in QUEUES:
        client = await Client.connect(port)
        count = (await client.call(QueueDeclare(queue, durable=True), QueueDeclareOk)).message_count
        bodies = found[queue] = []
        if count:
            await client.call(BasicConsume(queue, "reader"), BasicConsumeOk)
        while len(bodies) < count:
            method, body = await client.next()
            if isinstance(method, BasicDeliver):
                bodies.append(body)
        client.close()
    return found


async def purge(port: int, queue: str) -> None:
    """Empty a queue."""
    client = await Client.connect(port)
    await client.call(QueuePurge(queue), QueuePurgeOk)
    client.close()


async def work_until_death(port: int, record: Record, watch: Watch, random: Random) -> None:
    """All clients at once, until each of them has lost its connection."""
    seeds = [Random(random.random()) for _ in range(4)]
    try:
        clients = [await Client.connect(port) for _ in range(6)]
    except Gone:
        return
    work = [
        _publish(clients[0], record, watch, seeds[0], PLAIN, "a"),
        _publish(clients[1], record, watch, seeds[1], PLAIN, "b"),
        _publish(clients[2], record, watch, seeds[2], WORK, "c"),
        _publish(clients[3], record, watch, seeds[3], IN, "d"),
        _consume(clients[4], record, watch),
        _move(clients[5], record, watch),
    ]
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, Gone):
            raise outcome
    for client in clients:
        client.close()


async def _publish(
    client: Client, record: Record, watch: Watch, random: Random, queue: str, publisher: str
) -> None:
    await client.call(ConfirmSelect(), ConfirmSelectOk)
    waiting: deque[tuple[int, str, float]] = deque()  # tag, name, when
    tag = 0
    while True:
        for _ in range(random.randint(1, _WINDOW - len(waiting)) if len(waiting) < _WINDOW else 0):
            tag += 1
            name = record.next_name(queue, publisher)
            waiting.append((tag, name, time.perf_counter()))
            client.publish(queue, make_body(name, int(random.random() ** 3 * _PADDING_MAX)))
        method, _ = await client.next()
        now = time.perf_counter()
        if isinstance(method, BasicAck):
            while waiting and waiting[0][0] <= method.delivery_tag:
                _, name, began = waiting.popleft()
                record.confirm(name)
                watch.confirm_seconds.append(now - began)
        elif isinstance(method, BasicNack):
            watch.nacked += 1
            raise Gone("the broker refused a message")


async def _consume(client: Client, record: Record, watch: Watch) -> None:
    """Ack what comes. An ack has no answer, so two markers prove it durable.

    The first marker is published behind the acks; the second when the first was confirmed, so the acks are
    before it in the journal; its confirm therefore covers them.
    """
    await client.call(ConfirmSelect(), ConfirmSelectOk)
    await client.call(BasicQos(prefetch_count=32), BasicQosOk)
    await client.call(BasicConsume(WORK, "worker"), BasicConsumeOk)
    acked: list[str] = []
    behind: list[str] = []  # acks before the last confirmed marker
    covered: list[str] = []  # acks before the marker that is on its way
    marker = ""
    while True:
        method, body = await client.next()
        if isinstance(method, BasicDeliver):
            name = watch.receive(body)
            record.leave(name)
            acked.append(name)
            client.send(BasicAck(method.delivery_tag))
        elif isinstance(method, BasicAck):
            record.confirm(marker)
            record.ack_is_durable(behind)
            behind, marker = covered, ""
        if not marker and len(acked) >= _ACKS_PER_MARKER:
            covered, acked = acked, []
            marker = record.next_name(MARKERS, "m")
            client.publish(MARKERS, make_body(marker, 0))


async def _move(client: Client, record: Record, watch: Watch) -> None:
    """Take from one queue and publish to two others, a few at a time, each time in one transaction."""
    await client.call(TxSelect(), TxSelectOk)
    await client.call(BasicQos(prefetch_count=32), BasicQosOk)
    await client.call(BasicConsume(IN, "mover"), BasicConsumeOk)
    waiting: deque[tuple[int, str]] = deque()
    committing = False
    while True:
        method, body = await client.next()
        if isinstance(method, BasicDeliver):
            waiting.append((method.delivery_tag, watch.receive(body)))
        elif isinstance(method, TxCommitOk):
            record.moved()
            committing = False
        if waiting and not committing:
            batch = [waiting.popleft() for _ in range(min(_PER_TRANSACTION, len(waiting)))]
            for tag, _ in batch:
                client.send(BasicAck(tag))
            for queue, copy in record.move([name for _, name in batch], (OUT, AUDIT)):
                client.publish(queue, make_body(copy, 0))
            client.send(TxCommit())
            committing = True
