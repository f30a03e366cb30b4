"""The HTTP side of a node that does not own the log: health for people and load balancers, no service.

Owns: those answers, and connections that carry nothing else. Must not touch: the broker; a standby's is not
complete.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import Final, cast

import httptools
import msgspec

_IDLE_SECONDS: Final = 10.0
_BODY_MAX: Final = 1 << 20  # more than a standby is willing to read before it refuses
_REASONS: Final = {200: b"OK", 400: b"Bad Request", 503: b"Service Unavailable"}
_encode: Final = msgspec.json.Encoder().encode

Answer = Callable[[bytes], tuple[int, dict[str, object]]]


class StandbyServer:
    """``health`` tells the state of the replica, ``reason`` why a request is refused."""

    def __init__(self, health: Callable[[], dict[str, object]], reason: Callable[[], str]) -> None:
        self._health = health
        self._reason = reason
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []

    async def listen(self, hosts: Sequence[str], port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the listeners, all on one port; which one."""
        loop = asyncio.get_running_loop()
        for host in hosts:
            try:
                server = await loop.create_server(
                    lambda: _Connection(self.answer, self._connections), host, port, ssl=tls
                )
            except OSError:
                if ":" in host and self._servers:  # no IPv6 on this machine
                    continue
                raise
            self._servers.append(server)
            port = port or server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        """Free the ports."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.abort()

    def answer(self, path: bytes) -> tuple[int, dict[str, object]]:
        """Status and body for a path."""
        if path == b"/health":
            return 200, self._health()
        if path == b"/ready":
            return 503, {"ready": False, "reason": self._reason()}
        return 503, {"error": self._reason(), "code": "standby"}


class _Connection(asyncio.Protocol):
    """Answers each request when it is complete. Bodies are read and thrown away."""

    def __init__(self, answer: Answer, all_of_them: set[_Connection]) -> None:
        self._answer = answer
        self._all = all_of_them
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle
        self._path = b""
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast(asyncio.Transport, transport)
        self._all.add(self)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._all.discard(self)
        self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        """Part of a request."""
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._send(400, {"error": "this is no HTTP/1.1 request", "code": "bad_request"}, keep=False)
        if self._received > _BODY_MAX:
            self.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._path = b""

    def on_url(self, url: bytes) -> None:
        """Its target, perhaps in pieces."""
        self._path += url

    def on_message_complete(self) -> None:
        """A request is complete."""
        self._received = 0
        status, body = self._answer(self._path.partition(b"?")[0])
        self._send(status, body, keep=self._parser.should_keep_alive())
        self._deadline.cancel()
        self._wait()

    def abort(self) -> None:
        """Cut the socket."""
        self._transport.abort()

    def _wait(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self.abort)

    def _send(self, status: int, body: dict[str, object], *, keep: bool) -> None:
        content = b"" if self._parser.get_method() == b"HEAD" else _encode(body)
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n" % (status, _REASONS[status])
        head += b"content-length: %d\r\n" % len(content)
        head += b"retry-after: 1\r\n" if status == 503 else b""
        head += b"" if keep else b"connection: close\r\n"
        self._transport.write(head + b"\r\n" + content)
        if not keep:
            self._transport.close()
