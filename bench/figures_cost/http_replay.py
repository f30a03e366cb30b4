"""Requests of HTTP workers, through the protocol objects and the broker, without sockets.

Owns: the requests, and feeding them. Must not touch: counting instructions. Many connections share a turn, as
under load: the loop's own cost, which has no figures, is a small part.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from typing import Final, cast

from bench.figures_cost.scene import Scene, Socket

from holtmq.http.engine.protocol import HttpConnection

_CONNECTIONS: Final = 20
_PAYLOAD: Final = '{"order":1234567,"note":"sixteen bytes ok","amount":12.5}'
_SAMPLED_EVERY: Final = 200  # requests: of these streams the slowest has more a second
_LEASE: Final = re.compile(rb'"leaseId":("[^"]+")')
_MESSAGE: Final = re.compile(rb'"transactionId":("[^"]*").*?"partitionId":("[^"]*")')
# Kind of queue, and messages in each request.
STREAMS: Final = {
    "HTTP, push, 1 message": ("push", "stream", 1),
    "HTTP, push, 10 messages": ("push", "stream", 10),
    "HTTP, pop and ack, 1 message": ("pop", "stream", 1),
    "HTTP, pop and ack, 10 messages": ("pop", "stream", 10),
    "HTTP, pop and ack, work queue, 1 message": ("pop", "work", 1),
}


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()


class Replay:
    """A node with the connections of one stream."""

    def __init__(self, name: str, *, sampled: bool) -> None:
        self._kind, self._queue, self._batch = STREAMS[name]
        self._scene = Scene(sampled=sampled)
        self._digest = 0
        self._since = 0

    async def run(self, messages: int) -> int:
        """Start a node, do the work, and return a checksum of the sizes of all answers: ids in them are
        random."""
        await self._scene.start()
        broker = self._scene.node.broker
        if self._queue == "work":
            broker.declare_queue(broker.vhost("/"), "work", durable=True)
        connections = [self._connect() for _ in range(_CONNECTIONS)]
        pushes = [_post("/api/v1/push", self._items(at)) for at in range(0, messages, self._batch)]
        await self._all(connections, pushes)
        if self._kind == "pop":
            pop = _get(f"/api/v1/pop/queue/{self._queue}?batch={self._batch}&partitions=1")
            for _ in range(0, messages, self._batch * _CONNECTIONS):
                answers = await self._all(connections, [pop] * _CONNECTIONS)
                await self._all(connections, [_post("/api/v1/ack/batch", _acks(one)) for one in answers])
        return self._digest

    def counted(self) -> int:
        """How many messages the figures say were pushed, or acked in a work queue."""
        node = self._scene.node
        work = node.broker.vhost("/").queues.get("work")
        counters = node.partitioned.counters.queues.values()
        return sum(one.push_messages for one in counters) + (0 if work is None else work.figures.acked)

    def _connect(self) -> HttpConnection:
        connection = HttpConnection(self._scene.node.http.engine)
        connection.connection_made(cast(asyncio.Transport, Socket()))
        return connection

    def _items(self, first: int) -> bytes:
        items = [
            f'{{"queue":"{self._queue}","partition":"p{first // self._batch % (2 * _CONNECTIONS)}",'
            f'"payload":{_PAYLOAD},"transactionId":"t-{at:09d}"}}'
            for at in range(first, first + self._batch)
        ]
        return f'{{"items":[{",".join(items)}]}}'.encode()

    async def _all(self, connections: list[HttpConnection], requests: list[bytes]) -> list[bytes]:
        """Send the requests, one on each connection at a time; return the answers."""
        found: list[bytes] = []
        sockets = [cast(Socket, connection.transport) for connection in connections]
        for start in range(0, len(requests), len(connections)):
            together = requests[start : start + len(connections)]
            for connection, request in zip(connections, together, strict=False):
                connection.data_received(request)
            for socket in sockets[: len(together)]:
                while not socket.written:
                    await asyncio.sleep(0)
                answer = socket.take()
                if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
                    raise SystemExit(f"a request was refused: {answer[:300]!r}")
                self._digest = zlib.crc32(b"%d" % len(answer), self._digest)
                found.append(answer)
            self._since += len(together)
            if self._since >= _SAMPLED_EVERY:
                self._since = 0
                self._scene.second()
        return found


def _acks(answer: bytes) -> bytes:
    lease = _LEASE.search(answer)
    if lease is None:
        raise SystemExit(f"a pop got no message: {answer[:300]!r}")
    tail = b',"status":"completed","leaseId":' + lease[1] + b"}"
    acks = [
        b'{"transactionId":' + one + b',"partitionId":' + two + tail for one, two in _MESSAGE.findall(answer)
    ]
    return b'{"acknowledgments":[' + b",".join(acks) + b"]}"
