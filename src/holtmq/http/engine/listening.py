"""Opens the HTTP ports of a node, closes connections that are too slow, ends requests that may not go on.

Owns: the listening sockets and these two duties. Must not touch: what is served.
"""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final

from holtmq.http.engine.engine import Engine
from holtmq.http.engine.protocol import HttpConnection
from holtmq.ports import open_port

_SWEEP_SECONDS: Final = 1.0
_HANDSHAKE_SECONDS: Final = 10.0  # for TLS


class HttpPorts:
    """The listening sockets of one engine. ``open`` once for each port, ``close`` once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.addresses: list[tuple[str, int, bool]] = []  # host, port, whether with TLS

    async def open(self, hosts: Sequence[str], port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on these addresses, all on one port; return the port."""
        opened = await open_port(
            lambda: HttpConnection(self._engine),
            hosts,
            port,
            tls,
            backlog=2048,
            handshake_seconds=_HANDSHAKE_SECONDS,
        )
        self._servers += opened.servers
        self.addresses += [(host, opened.port, tls is not None) for host in opened.hosts]
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._sweep(), name="http-sweeper"),
                asyncio.create_task(self._engine.lasting.watch(), name="http-rights"),
            ]
        return opened.port

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._engine.sweep(loop.time())

    async def close(self) -> None:
        """Accept no more connections; those that are open stay."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
