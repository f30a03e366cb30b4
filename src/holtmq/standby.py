"""A node before it owns the log: its listeners refuse clients with a reason and answer health checks.

Owns: those listeners and the reasons. Must not touch: the broker's state, and the decision to take over,
which the journal makes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Protocol

from holtmq import __version__
from holtmq.amqp.refusing import RefusingProtocol
from holtmq.config import Amqp, Http, Tls
from holtmq.http.engine.context import ServedCertificate
from holtmq.http.standby import StandbyServer
from holtmq.journal.replica.view import ReplicaView, Role
from holtmq.ports import open_port


class TlsContexts(Protocol):
    """The TLS contexts of the node's listeners, which keep them after a takeover."""

    def context(self, config: Tls) -> ssl.SSLContext:
        """The context of a section; OSError for files that cannot be used."""
        ...

    def certificates(self) -> list[ServedCertificate]:
        """What new connections get."""
        ...


class StandbyListeners:
    """Listens on the ports of the real listeners, so that they stay the same after a takeover."""

    def __init__(self, view: ReplicaView, node: str, started: float, tls: TlsContexts) -> None:
        self.view = view
        self.node = node
        self._started = started
        self._tls = tls
        self._http = StandbyServer(self._health, self.reason, tls.certificates)
        self._amqp: list[asyncio.Server] = []
        self.ports: dict[str, int] = {}

    async def open(self, amqp: Amqp, http: Http) -> None:
        """Listen on every address on which the node will listen as owner."""
        if amqp.plain:
            self.ports["amqp"] = await self._refuse(amqp.host, amqp.port, None)
        if amqp.tls_cert is not None:
            self.ports["amqp/ssl"] = await self._refuse(amqp.host, amqp.tls_port, self._tls.context(amqp))
        if http.plain:
            self.ports["http"] = await self._http.listen(http.host, http.port)
        if http.tls_cert is not None:
            self.ports["https"] = await self._http.listen(http.host, http.tls_port, self._tls.context(http))

    async def _refuse(self, hosts: tuple[str, ...], port: int, tls: ssl.SSLContext | None) -> int:
        opened = await open_port(lambda: RefusingProtocol(self.reason), hosts, port, tls, backlog=256)
        self._amqp += opened.servers
        return opened.port

    async def close(self) -> None:
        """Free the ports for the real listeners."""
        for server in self._amqp:
            server.close()
        await self._http.close()

    def reason(self) -> str:
        """Why a client cannot be served here."""
        view = self.view
        if view.trouble:
            return f"this node waits for PostgreSQL: {view.trouble}"
        if view.role is Role.STARTING:
            return "this node is starting"
        owner = f"the owner is {view.owner}" if view.owner else "no node owns the log"
        return f"this node ({self.node}) is a standby; {owner}"

    def _health(self) -> dict[str, object]:
        view = self.view
        return {
            "status": str(view.role),
            "ready": False,
            "node": self.node,
            "owner": view.owner,
            "epoch": view.epoch,
            "behind_bytes": view.behind_bytes,
            "behind_seconds": round(view.behind_seconds, 3),
            "reason": self.reason(),
            "version": __version__,
            "uptime": round(time.monotonic() - self._started, 3),
        }
