"""The HTTP listener in the node's own loop.

Owns: sockets, the start and the graceful stop. Must not touch: signals (the node's), routes, rules.
"""

import asyncio
import logging
import resource
import ssl
from collections.abc import Sequence

from uvicorn.config import Config as UvicornConfig
from uvicorn.server import ServerState

from holtmq.http.engine.app import make_app
from holtmq.http.engine.context import Context
from holtmq.http.engine.protocol import FastProtocol
from holtmq.http.hot_routes import HotRoutes
from holtmq.http.management.api import with_management
from holtmq.http.operator.system import resident_bytes
from holtmq.http.routes import ENDPOINTS

log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 75  # longer than clients keep idle connections: else a request meets a closing socket


_SAMPLE_SECONDS = 5.0


class HttpServer:
    """See the module. ``listen`` once, ``stop`` once."""

    def __init__(self, context: Context, max_connections: int) -> None:
        self._context = context
        self._watcher: asyncio.Task[None] | None = None
        self._hot = HotRoutes(context)
        self._state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._uvicorn = UvicornConfig(
            with_management(context, make_app(context, ENDPOINTS)),
            http=FastProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        self._uvicorn.load()

        class Protocol(FastProtocol):
            find_route = staticmethod(self._hot.find)
            max_body = context.config.http.max_body_bytes
            most = max_connections

        self._protocol = Protocol

    async def listen(self, hosts: Sequence[str], port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the listeners, all on one port; which one."""
        loop = asyncio.get_running_loop()
        for host in hosts:
            try:
                server = await loop.create_server(self._connect, host, port, ssl=tls, backlog=2048)
            except OSError:
                if ":" in host and self._servers:  # no IPv6 on this machine
                    log.warning("not listening", extra={"host": host, "port": port})
                    continue
                raise
            self._servers.append(server)
            port = port or server.sockets[0].getsockname()[1]
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="http-history")
        return port

    async def _watch(self) -> None:
        """Book the counters and the process's own figures, for the dashboards' time lines."""
        history, clock = self._context.history, self._context.clock
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _SAMPLE_SECONDS
            await asyncio.sleep(_SAMPLE_SECONDS)
            now_us = int(clock() * 1_000_000)
            used = resource.getrusage(resource.RUSAGE_SELF)
            late = max(0.0, loop.time() - due)
            history.read(now_us)
            history.note_machine(now_us, resident_bytes(), used.ru_utime, used.ru_stime, late)

    def _connect(self) -> asyncio.Protocol:
        return self._protocol(self._uvicorn, self._state, {})

    def drop_connections(self) -> int:
        """Cut off every client, without an answer; how many there were."""
        connections = list(self._state.connections)
        for connection in connections:
            connection.transport.abort()
        return len(connections)

    async def stop(self, grace: float) -> None:
        """Take no more, answer whoever waits, let what runs finish for ``grace`` seconds."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        for server in self._servers:
            server.close()
        self._hot.pops.stop()
        for connection in list(self._state.connections):
            connection.shutdown()
        deadline = asyncio.get_running_loop().time() + grace
        while self._state.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self.drop_connections()
        for task in list(self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._state.tasks, return_exceptions=True)
