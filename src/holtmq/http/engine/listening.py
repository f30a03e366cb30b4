"""Opens the HTTP ports of a node, and closes connections that are too slow.

Owns: the listening sockets and the sweep. Must not touch: what is served.
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
        self._sweeper: asyncio.Task[None] | None = None
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
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="http-sweeper")
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
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
