"""A server that answers as it is told, for faults a real broker does not have on command.

Owns: a listening socket, a script of behaviours, and a record of what was asked.
"""

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

PUSHED = [{"index": 0, "status": "queued", "transaction_id": "t", "message_id": "m", "partition_id": "1"}]


@dataclass(slots=True)
class Asked:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass(slots=True)
class Say:
    """What to do about one request."""

    status: int = 200
    body: object = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    after: asyncio.Event | None = None  # answer when it is set
    drop: bool = False  # hang up without an answer
    cut: int | None = None  # send so many bytes of the answer, then hang up
    close: bool = False  # answer, and close afterwards as an idle timeout would
    raw: bytes | None = None

    def bytes(self) -> bytes:
        if self.raw is not None:
            return self.raw
        body = b"" if self.status == 204 else json.dumps(self.body).encode()
        lines = [f"HTTP/1.1 {self.status} X", *(f"{name}: {value}" for name, value in self.headers.items())]
        if self.status != 204:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class StubBroker:
    """``async with StubBroker(Say(503), Say(200)) as stub``; the last behaviour repeats."""

    def __init__(self, *script: Say, tls: ssl.SSLContext | None = None) -> None:
        self.script = list(script) or [Say()]
        self.asked: list[Asked] = []
        self.connections = 0
        self.on_request: Callable[[Asked], None] | None = None
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"

    async def __aenter__(self) -> "StubBroker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.die()

    async def die(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()
        await asyncio.sleep(0)

    def close_idle(self) -> None:
        """Close every connection, as a server does with those that idle."""
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.add(writer)
        try:
            while (asked := await _read(reader, number)) is not None:
                self.asked.append(asked)
                if self.on_request is not None:
                    self.on_request(asked)
                say = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                await asyncio.sleep(say.delay)
                if say.after is not None:
                    await say.after.wait()
                if say.drop:
                    return
                writer.write(say.bytes()[: say.cut])
                await writer.drain()
                if say.cut is not None or say.close:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


async def _read(reader: asyncio.StreamReader, connection: int) -> Asked | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    request, *lines = head.decode().split("\r\n")
    method, path, _ = request.split(" ")
    headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines if line}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, body, connection)
