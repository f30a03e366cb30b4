"""The HTTP listener in the node's event loop.

Owns: the two APIs on one engine, start and graceful stop. Must not touch: signals (the node's), rules.
"""

import asyncio
import logging
import resource
import ssl
from collections.abc import Sequence
from typing import Final

from holtmq.http.engine.app import Application
from holtmq.http.engine.context import Context
from holtmq.http.engine.cross_site import CrossSite
from holtmq.http.engine.endpoints import Conventions
from holtmq.http.engine.engine import Engine
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.listening import HttpPorts
from holtmq.http.hot_routes import HotApis, HotRoutes
from holtmq.http.management import api as management
from holtmq.http.management.conventions import conventions
from holtmq.http.operator.system import resident_bytes
from holtmq.http.routes import ENDPOINTS

log = logging.getLogger(__name__)

_SAMPLE_SECONDS: Final = 5.0


class HttpServer:
    """The HTTP side of a node. ``listen`` once for each port, ``stop`` once."""

    def __init__(self, context: Context, max_connections: int, apis: HotApis) -> None:
        self._context = context
        self._watcher: asyncio.Task[None] | None = None
        self._hot = HotRoutes(context, apis)
        http = context.config.http
        own = Application(context, ENDPOINTS, Conventions())
        brief = context.broker.dialect.brief_http_refusals
        rabbitmq = Application(context, management.ENDPOINTS, conventions(brief_refusals=brief))
        find = self._hot.find_before(own.find, rabbitmq.find)
        self.engine = Engine(
            find,
            context.authenticator,
            CrossSite(http.cors_origins, (*http.names, *http.host)),
            max_body=http.max_body_bytes,
            max_long_body=http.max_long_body_bytes,
            most_connections=max_connections,
            memory_bytes=http.body_memory_bytes,
        )
        self._ports = HttpPorts(self.engine)

    @property
    def addresses(self) -> list[tuple[str, int, bool]]:
        """Host, port, and whether with TLS, of each listener."""
        return self._ports.addresses

    async def listen(self, hosts: Sequence[str], port: int, tls: ssl.SSLContext | None = None) -> int:
        """Open the listeners, all on one port; return the port."""
        port = await self._ports.open(hosts, port, tls)
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="http-history")
        return port

    async def _watch(self) -> None:
        """Record the counters and the process's resource usage, for the dashboards' time series."""
        history, clock = self._context.history, self._context.clock
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _SAMPLE_SECONDS
            await asyncio.sleep(_SAMPLE_SECONDS)
            now_us = int(clock() * 1_000_000)
            used = resource.getrusage(resource.RUSAGE_SELF)
            late = max(0.0, loop.time() - due)
            await history.read(now_us)
            history.note_machine(now_us, resident_bytes(), used.ru_utime, used.ru_stime, late)

    def drop_connections(self) -> int:
        """Abort every connection, without an answer; return how many."""
        connections = list(self.engine.connections)
        for connection in connections:
            connection.transport.abort()
        return len(connections)

    def refuse(self, reason: str) -> None:
        """Answer running and new requests with 503, except public ones; empty: serve them again."""
        if not reason:
            self.engine.refusal = None
            return
        self.engine.refusal = Refusal(503, reason, "cut_off")
        unknown = Refusal(503, f"{reason}. Whether this request took effect is unknown: repeat it", "cut_off")
        for connection in list(self.engine.connections):
            connection.break_off(unknown)

    async def stop(self, grace: float) -> None:
        """Stop listening, answer waiting pops, and give running requests ``grace`` seconds to finish."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self._ports.close()
        self._hot.pops.stop()
        for connection in list(self.engine.connections):
            connection.shutdown()
        deadline = asyncio.get_running_loop().time() + grace
        while self.engine.connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self.drop_connections()
        running = list(self.engine.tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
