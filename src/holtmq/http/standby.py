"""The HTTP side of a node that does not own the log: health for people and load balancers, no service.

Owns: those answers. Must not touch: the broker; a standby's is not complete.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final

import msgspec
from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

_KEEP_ALIVE_SECONDS: Final = 5
_encode: Final = msgspec.json.Encoder().encode

Message = MutableMapping[str, Any]


class StandbyServer:
    """``health`` tells the state of the replica, ``reason`` why a request is refused."""

    def __init__(self, health: Callable[[], dict[str, object]], reason: Callable[[], str]) -> None:
        self._health = health
        self._reason = reason
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._uvicorn = UvicornConfig(
            self._answer,
            interface="asgi3",
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._uvicorn.load()

    async def listen(self, hosts: Sequence[str], port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the listeners, all on one port; which one."""
        loop = asyncio.get_running_loop()
        for host in hosts:
            try:
                server = await loop.create_server(
                    lambda: HttpToolsProtocol(self._uvicorn, self._state, {}), host, port, ssl=tls
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
        for connection in list(self._state.connections):
            connection.transport.abort()
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)

    async def _answer(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["path"] == "/health":
            status, body = 200, self._health()
        elif scope["path"] == "/ready":
            status, body = 503, {"ready": False, "reason": self._reason()}
        else:
            status, body = 503, {"error": self._reason(), "code": "standby"}
        content = _encode(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        if status == 503:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
