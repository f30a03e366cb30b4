"""A recorded stream of AMQP clients' bytes, through the protocol objects and the broker, without sockets.

Owns: the streams, and feeding them. Must not touch: counting instructions.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, cast

from bench.figures_cost.scene import Scene, Socket

from holtmq.amqp.methods import BasicConsume, BasicGet, BasicQos, ChannelOpen, ConfirmSelect
from holtmq.amqp.protocol import AmqpProtocol
from holtmq.load import frames
from holtmq.load.link import CHANNEL
from holtmq.load.varied_blob import VariedBlob, Variety, binding_key
from holtmq.load.workloads import WORKLOADS, Workload

_EXCHANGE: Final = "holt-load"
_FRAME_BYTES: Final = 131072
_SAMPLED_EVERY: Final = 1_000  # messages: of these streams the slowest has more a second


@dataclass(frozen=True, slots=True)
class Stream:
    """What is published and how much of it is read from the socket at a time."""

    workload: Workload
    read: int  # bytes; 0: one message
    gets: bool = False  # by ``basic.get``, not by a consumer


_UNIQUE: Final = WORKLOADS["unique-ids"]
_DURABLE: Final = replace(_UNIQUE, durable=True, window=5000)
STREAMS: Final = {
    "transient, acks": Stream(_UNIQUE, 65536),
    "transient, acks, a message a read": Stream(_UNIQUE, 0),
    "transient, 100,000 keys, acks": Stream(WORKLOADS["mixed-keys"], 65536),
    "transient, fanout to 5 queues, acks": Stream(replace(_UNIQUE, queues=5), 65536),
    "durable, confirms, acks": Stream(_DURABLE, 65536),
    "durable, confirms, acks, a message a read": Stream(_DURABLE, 0),
    "durable, basic.get and ack": Stream(_DURABLE, 65536, gets=True),
    "durable, basic.get and ack, a message a read": Stream(_DURABLE, 0, gets=True),
}


class Recording:
    """The bytes of the clients of one stream, made before anything is counted."""

    def __init__(self, stream: Stream, messages: int) -> None:
        self.stream = stream
        blob = VariedBlob(Variety.of(replace(stream.workload, distinct=messages)), _EXCHANGE, _FRAME_BYTES)
        ends = [blob.end_of(count) for count in range(messages + 1)]
        self.publishes = [blob.data[begin:end] for begin, end in pairwise(ends)]
        self.acks = [frames.ack(CHANNEL, tag, multiple=False) for tag in range(1, messages + 1)]
        self.get = frames.method(CHANNEL, BasicGet("q0"))

    def reads(self, messages: int) -> list[tuple[int, bytes]]:
        """What each read of the publisher's socket returns: how many messages, and their bytes."""
        found: list[tuple[int, bytes]] = []
        pending: list[bytes] = []
        size = 0
        for publish in self.publishes[:messages]:
            pending.append(publish)
            size += len(publish)
            if size >= self.stream.read:
                found.append((len(pending), b"".join(pending)))
                pending, size = [], 0
        if pending:
            found.append((len(pending), b"".join(pending)))
        return found


class Replay:
    """A node with the clients of one stream."""

    def __init__(self, recording: Recording, *, sampled: bool) -> None:
        self._recording = recording
        self._scene = Scene(sampled=sampled)
        self._clients: list[AmqpProtocol] = []
        self._digest = 0

    async def run(self, messages: int) -> int:
        """Publish and consume; return a checksum of all that the clients received."""
        await self._open()
        publisher, *consumers = self._clients
        acks, done, since = self._recording.acks, [0] * len(consumers), 0
        for count, read in self._recording.reads(messages):
            publisher.data_received(read)
            await self._turn()
            if self._recording.stream.gets:
                consumers[0].data_received(self._recording.get * count)
                await self._turn()
            while self._acknowledge(consumers, acks, done):
                await self._turn()
            since += count
            if since >= _SAMPLED_EVERY:
                since = 0
                self._scene.second()
        if any(count != messages for count in done):
            raise SystemExit(f"{messages} messages were published and {done} delivered")
        return self._digest

    def counted(self) -> int:
        """How many messages the figures say were published."""
        return self._scene.node.broker.counts.received

    async def _open(self) -> None:
        await self._scene.start()
        broker, stream = self._scene.node.broker, self._recording.stream
        vhost, workload = broker.vhost("/"), stream.workload
        broker.exchanges.declare(vhost, _EXCHANGE, workload.exchange_kind, durable=False, arguments={})
        publisher = self._connect()
        if workload.window:
            publisher.data_received(frames.method(CHANNEL, ConfirmSelect()))
        for number in range(workload.queues):
            name = f"q{number}"
            broker.declare_queue(vhost, name, durable=workload.durable)
            broker.bind(vhost, _EXCHANGE, name, "#" if workload.queues > 1 else binding_key(number), {})
            consumer = self._connect()
            if not stream.gets:
                consumer.data_received(frames.method(CHANNEL, BasicQos(prefetch_count=workload.prefetch)))
                consumer.data_received(frames.method(CHANNEL, BasicConsume(name, "consumer")))
        await self._turn()

    def _connect(self) -> AmqpProtocol:
        broker = self._scene.node.broker
        client = AmqpProtocol(self._scene.node.amqp)
        client.connection_made(cast(asyncio.Transport, Socket()))
        # Without the handshake: passwords are checked in a thread.
        client.connection.opened(broker.vhost("/"), "guest", broker.users.access("guest", "/"))
        client.data_received(frames.method(CHANNEL, ChannelOpen()))
        self._clients.append(client)
        return client

    def _acknowledge(self, consumers: list[AmqpProtocol], acks: list[bytes], done: list[int]) -> bool:
        """Let consumers acknowledge what they have got; whether one did."""
        busy = False
        for number, consumer in enumerate(consumers):
            last = consumer.connection.channels[CHANNEL].ledger.last
            if last > done[number]:
                consumer.data_received(b"".join(acks[done[number] : last]))
                done[number] = last
                busy = True
        return busy

    async def _turn(self) -> None:
        await asyncio.sleep(0)
        while self._scene.node.journal.backlog:
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # what became durable is written to clients
        for client in self._clients:
            for part in cast(Socket, client.transport).written:
                self._digest = zlib.crc32(part, self._digest)
            cast(Socket, client.transport).written.clear()
