"""Opens the HTTP ports of a node, and closes connections that are too slow.

Owns: the listening sockets and the sweep. Must not touch: what is served.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import Final

from holtmq.http.engine.engine import Engine
from holtmq.http.engine.protocol import HttpConnection

log = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 1.0
_HANDSHAKE_SECONDS: Final = 10.0  # for TLS


class Listeners:
    """The listening sockets of one engine. ``open`` once for each port, ``close`` once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self.addresses: list[tuple[str, int, bool]] = []  # host, port, whether with TLS

    async def open(self, hosts: Sequence[str], port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen on these addresses, all on one port; return the port."""
        loop = asyncio.get_running_loop()
        patience = None if tls is None else _HANDSHAKE_SECONDS
        for host in hosts:
            try:
                server = await loop.create_server(
                    lambda: HttpConnection(self._engine),
                    host,
                    port,
                    ssl=tls,
                    backlog=2048,
                    ssl_handshake_timeout=patience,
                )
            except OSError:
                if ":" in host and self._servers:  # no IPv6 on this machine
                    log.warning("not listening", extra={"host": host, "port": port})
                    continue
                raise
            self._servers.append(server)
            port = port or server.sockets[0].getsockname()[1]
            self.addresses.append((host, port, tls is not None))
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="http-sweeper")
        return port

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
