"""The judge's clients against a broker that sends only some of them away."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

from holtmq.verify.http_workload import HttpWorkload
from holtmq.verify.workload import Ports

NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Refuse pushes, as a node that is cut off for a moment; let consumers wait."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            await reader.readexactly(size)
            writer.write(REFUSED if head.startswith(b"POST") else NOTHING)
            await writer.drain()
    writer.close()


async def test_consumers_do_not_go_on_alone_when_every_producer_was_sent_away() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        await HttpWorkload().work(Ports(0, server.sockets[0].getsockname()[1]), Random(1))
