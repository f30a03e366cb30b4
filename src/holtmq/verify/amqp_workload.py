"""The AMQP workload: publishers with confirms, a consumer with acks, a client with transactions.

They use work queues, a stream, and a queue behind a delaying exchange.

Owns: what AMQP clients do until the broker is killed, and reading the queues.
Must not touch: verdicts; every step is written into the record before or after it, never guessed.
"""

import asyncio
import time
from collections import deque
from contextlib import closing, suppress
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
    ExchangeDeclare,
    ExchangeDeclareOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from holtmq.verify.amqp_client import AmqpClient
from holtmq.verify.record import Record, make_body, name_of, publisher_and_number
from holtmq.verify.workload import Gone, Ports, Watch, connect_all, raise_unless_gone
from holtmq.wire.tables import FieldTable

PLAIN: Final = "plain"
WORK: Final = "work"
MARKERS: Final = "markers"
IN: Final = "in"
OUT: Final = "out"
AUDIT: Final = "audit"
STREAM: Final = "stream"
LATE: Final = "late"  # behind DELAYING; read when every delay is over
DELAYING: Final = "delaying"
QUEUES: Final = (PLAIN, WORK, MARKERS, IN, OUT, AUDIT, STREAM, LATE)

_WINDOW: Final = 16  # publishes awaiting their confirm
_PADDING_MAX: Final = 2_000
_ACKS_PER_MARKER: Final = 8
_PER_TRANSACTION: Final = 3
_DELAY_MS: Final = 50
_PATIENCE: Final = 30.0  # for the next delivery, or for a delayed message to arrive, on a busy machine
_LOOK_SECONDS: Final = 1.0  # without a delivery, then the queue is asked whether it has more
_PREFETCH: Final = 1_000


class AmqpWorkload:
    """The clients and queues of the AMQP workload. A place in the record is a queue."""

    def __init__(self) -> None:
        self.record = Record()
        self.watch = Watch()
        self._counts: dict[str, int] = {}

    async def prepare(self, ports: Ports) -> None:
        """Declare the queues, all durable."""
        with closing(await AmqpClient.connect(ports.amqp)) as client:
            for queue in QUEUES:
                await client.call(_declaration(queue), QueueDeclareOk)
            await client.call(
                ExchangeDeclare(
                    DELAYING, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
                ),
                ExchangeDeclareOk,
            )
            await client.call(QueueBind(LATE, DELAYING, LATE), QueueBindOk)

    async def read(self, ports: Ports) -> dict[str, list[bytes]]:
        """Read all ready messages, in order, and leave them in their queues."""
        last = await self._publish_last(ports)
        found = {queue: await self._read_queue(ports, queue) for queue in QUEUES}
        deadline = time.monotonic() + _PATIENCE
        while last not in map(name_of, found[LATE]) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            found[LATE] = await self._read_queue(ports, LATE)
        self._counts = {queue: len(bodies) for queue, bodies in found.items()}
        found[LATE].sort(key=publisher_and_number)  # they arrived in the order of their due times
        return found

    async def _publish_last(self, ports: Ports) -> str:
        """Publish a message with the longest delay: when it arrives, every other delay is over."""
        with closing(await AmqpClient.connect(ports.amqp)) as client:
            await client.call(ConfirmSelect(), ConfirmSelectOk)
            name = self.record.next_name(LATE, "f")
            client.publish(LATE, make_body(name, 0), DELAYING, _DELAY_MS + 1)
            while not isinstance((await client.next())[0], BasicAck):
                pass
            self.record.confirm(name)
        return name

    async def _read_queue(self, ports: Ports, queue: str) -> list[bytes]:
        """As many as the broker says there are, or as it delivers: it may find that it cannot read some."""
        bodies: list[bytes] = []
        with closing(await AmqpClient.connect(ports.amqp)) as client:
            count = (await client.call(_declaration(queue), QueueDeclareOk)).message_count
            if not count:
                return bodies
            if queue == STREAM:
                await client.call(BasicQos(prefetch_count=_PREFETCH), BasicQosOk)
                first = BasicConsume(queue, "reader", arguments={"x-stream-offset": "first"})
                await client.call(first, BasicConsumeOk)
            else:
                await client.call(BasicConsume(queue, "reader"), BasicConsumeOk)
            deadline = time.monotonic() + _PATIENCE
            while len(bodies) < count and time.monotonic() < deadline:
                method, body = await self._next(client, queue)
                if isinstance(method, BasicDeliver):
                    bodies.append(body)
                    deadline = time.monotonic() + _PATIENCE
                    if queue == STREAM:
                        client.send(BasicAck(method.delivery_tag))
                elif isinstance(method, QueueDeclareOk) and not method.message_count:
                    break
        return bodies

    async def _next(self, client: AmqpClient, queue: str) -> tuple[Method, bytes]:
        """What arrives next. After some silence the queue is asked whether it has more.

        It is asked on the reader's channel, where all that was delivered before comes before the answer.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    return await client.next()
            client.send(_declaration(queue))

    async def finish_reading(self, ports: Ports, most: int) -> None:
        """Purge the queues that are too long; a stream cannot be purged and is recreated."""
        for queue, count in self._counts.items():
            if count > most:
                with closing(await AmqpClient.connect(ports.amqp)) as client:
                    if queue == STREAM:
                        await client.call(QueueDelete(queue), QueueDeleteOk)
                        await client.call(_declaration(queue), QueueDeclareOk)
                    else:
                        await client.call(QueuePurge(queue), QueuePurgeOk)
                self.record.purged(queue)

    async def work(self, ports: Ports, random: Random) -> None:
        """Run all clients until each has lost its connection."""
        seeds = [Random(random.random()) for _ in range(6)]
        try:
            clients = await connect_all(AmqpClient.connect, ports.amqp, 8)
        except Gone:
            return
        work = [
            self._publish(clients[0], seeds[0], PLAIN, "a"),
            self._publish(clients[1], seeds[1], PLAIN, "b"),
            self._publish(clients[2], seeds[2], WORK, "c"),
            self._publish(clients[3], seeds[3], IN, "d"),
            self._consume(clients[4]),
            self._move(clients[5]),
            self._publish(clients[6], seeds[4], STREAM, "e"),
            self._publish(clients[7], seeds[5], LATE, "f", DELAYING),
        ]
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        for client in clients:
            client.close()
        raise_unless_gone(outcomes)

    async def _publish(
        self, client: AmqpClient, random: Random, queue: str, publisher: str, exchange: str = ""
    ) -> None:
        await client.call(ConfirmSelect(), ConfirmSelectOk)
        waiting: deque[tuple[int, str, float]] = deque()  # tag, name, send time
        tag = 0
        while True:
            for _ in range(random.randint(1, _WINDOW - len(waiting)) if len(waiting) < _WINDOW else 0):
                tag += 1
                name = self.record.next_name(queue, publisher)
                waiting.append((tag, name, time.perf_counter()))
                body = make_body(name, int(random.random() ** 3 * _PADDING_MAX))
                client.publish(queue, body, exchange, random.randint(1, _DELAY_MS) if exchange else 0)
            method, _ = await client.next()
            now = time.perf_counter()
            if isinstance(method, BasicAck):
                while waiting and waiting[0][0] <= method.delivery_tag:
                    _, name, began = waiting.popleft()
                    self.record.confirm(name)
                    self.watch.confirm_seconds.append(now - began)
                self.watch.on_promise()
            elif isinstance(method, BasicNack):
                raise self.watch.refuse("the broker refused a message")

    async def _consume(self, client: AmqpClient) -> None:
        """Ack every delivery. An ack has no reply, so two markers prove it durable.

        The first marker is published after the acks, the second after the first was confirmed. So the acks
        precede the second in the journal, and its confirm covers them.
        """
        await client.call(ConfirmSelect(), ConfirmSelectOk)
        await client.call(BasicQos(prefetch_count=32), BasicQosOk)
        await client.call(BasicConsume(WORK, "worker"), BasicConsumeOk)
        acked: list[str] = []
        behind: list[str] = []  # acks before the last confirmed marker
        covered: list[str] = []  # acks before the marker that is not confirmed yet
        marker = ""
        while True:
            method, body = await client.next()
            if isinstance(method, BasicDeliver):
                name = self.watch.receive(WORK, body)
                self.record.leave(name)
                acked.append(name)
                client.send(BasicAck(method.delivery_tag))
            elif isinstance(method, BasicAck):
                self.record.confirm(marker)
                self.record.ack_is_durable(behind)
                self.watch.on_promise()
                behind, marker = covered, ""
            if not marker and len(acked) >= _ACKS_PER_MARKER:
                covered, acked = acked, []
                marker = self.record.next_name(MARKERS, "m")
                client.publish(MARKERS, make_body(marker, 0))

    async def _move(self, client: AmqpClient) -> None:
        """Take from one queue and publish to two others, a few at a time, each time in one transaction."""
        await client.call(TxSelect(), TxSelectOk)
        await client.call(BasicQos(prefetch_count=32), BasicQosOk)
        await client.call(BasicConsume(IN, "mover"), BasicConsumeOk)
        waiting: deque[tuple[int, str]] = deque()
        committing = False
        while True:
            method, body = await client.next()
            if isinstance(method, BasicDeliver):
                waiting.append((method.delivery_tag, self.watch.receive(IN, body)))
            elif isinstance(method, TxCommitOk):
                self.record.moved()
                self.watch.on_promise()
                committing = False
            if waiting and not committing:
                batch = [waiting.popleft() for _ in range(min(_PER_TRANSACTION, len(waiting)))]
                for tag, _ in batch:
                    client.send(BasicAck(tag))
                for queue, copy in self.record.move([name for _, name in batch], (OUT, AUDIT)):
                    client.publish(queue, make_body(copy, 0))
                client.send(TxCommit())
                committing = True


def _declaration(queue: str) -> QueueDeclare:
    kind: FieldTable = {"x-queue-type": "stream"} if queue == STREAM else {}
    return QueueDeclare(queue, durable=True, arguments=kind)
