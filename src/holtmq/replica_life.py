"""A node with a replica: standby first, then owner of the log.

Owns: the standby's listeners, the thread that replays the log, the log texts about ownership. Must not touch:
the rules; the node builds the broker that the log is replayed into.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from holtmq.broker.errors import Conflict, NotFound
from holtmq.broker.records.recovery import Fold
from holtmq.config import Config
from holtmq.journal import Journal, JournalError, JournalOptions
from holtmq.journal.disk import Disk
from holtmq.journal.interface import Defer
from holtmq.journal.replica.errors import StartAgain
from holtmq.journal.replica.view import ReplicaView, Role
from holtmq.standby import StandbyListeners, TlsContexts

if TYPE_CHECKING:
    from holtmq.journal.replica.opening import ReplicatedOpening

log = logging.getLogger(__name__)

_NO_STANDBYS: Final = (
    "journal.replica_min_standbys is 0: what is confirmed survives this node and its disk; whether it "
    "survives the loss of PostgreSQL's disk is decided by PostgreSQL's own settings"
)
_ALIVE_SECONDS: Final = 10.0  # since a node was seen: then it is asked to take over
_AGAIN_SECONDS: Final = 0.5
_EXTRA: Final = "pip install 'holtmq[postgres]'"


def advertised(host: str, ports: Mapping[str, int]) -> str:
    """Where a node is reached, for operators: the plain ports if it has them, else those with TLS."""
    amqp = f"amqp://{host}:{ports['amqp']}" if "amqp" in ports else f"amqps://{host}:{ports['amqp/ssl']}"
    http = f"http://{host}:{ports['http']}" if "http" in ports else f"https://{host}:{ports['https']}"
    return f"{amqp} {http}"


class ReplicaLife:
    """Created by a node that has ``journal.replica``; call ``own`` first."""

    def __init__(
        self,
        config: Config,
        options: JournalOptions,
        disk: Disk | None,
        defer: Defer,
        flush: Callable[[], None],
    ) -> None:
        self.view = ReplicaView()
        self.name = config.journal.replica_node  # of this node, among the nodes of its log
        self.ports: dict[str, int] = {}
        self._config = config
        self._options = options
        self._disk = disk
        self._defer = defer
        self._flush = flush  # sends what is in the clients' outboxes
        self._opening: ReplicatedOpening | None = None
        self._waits = True

    async def own(self, build: Callable[[Journal], Fold], tls: TlsContexts) -> Fold:
        """Stand by and replay what the owner writes; return when this node owns the log.

        ``build`` creates an empty broker on a journal. It is called again when the copy has to start over.
        """
        config = self._config
        listeners = StandbyListeners(self.view, self.name, time.monotonic(), tls)
        await listeners.open(config.amqp, config.http)
        self.ports = listeners.ports
        host, ports = socket.gethostname(), self.ports
        amqp = ports.get("amqp") or ports.get("amqp/ssl", 0)
        http = ports.get("http") or ports.get("https", 0)
        self.name = listeners.node = self.name or f"{host}:{amqp}"
        log.info("standby listening", extra={"node": self.name, "standby_amqp": amqp, "standby_http": http})
        try:
            while True:
                opening = self._open(advertised(host, ports))
                fold = build(opening.journal)
                try:
                    await asyncio.to_thread(fold.read, opening.recovery)
                    if not config.journal.replica_min_standbys:
                        log.info(_NO_STANDBYS, extra={})
                    return fold
                except StartAgain as reason:
                    log.warning("the copy begins again from a checkpoint", extra={"reason": str(reason)})
                    await asyncio.sleep(_AGAIN_SECONDS)  # it may happen again at once
        finally:
            await listeners.close()

    def _open(self, address: str) -> ReplicatedOpening:
        try:
            from holtmq.journal.replica.opening import ReplicaOptions, ReplicatedOpening
        except ImportError as missing:
            raise JournalError(f"journal.replica needs psycopg ({missing}): {_EXTRA}") from None
        journal, loop = self._config.journal, asyncio.get_running_loop()
        options = ReplicaOptions(
            journal.replica,
            journal.replica_name,
            self.name,
            address,
            journal.takeover_after,
            journal.replica_min_standbys,
            journal.replica_standby,
            journal.replica_busy_poll,
        )
        self._opening = ReplicatedOpening(
            self._config.data.dir,
            self._options,
            options,
            disk=self._disk,
            defer=self._defer,
            notify=loop.call_soon_threadsafe,
            later=loop.call_later,
            view=self.view,
            flush=self._flush,
        )
        if not self._waits:
            self._opening.stop()
        return self._opening

    def stop_waiting(self) -> None:
        """Make ``own`` raise StoppedWaiting."""
        self._waits = False
        if self._opening is not None:
            self._opening.stop()

    @property
    def is_asked_for(self) -> str:
        """The node that was asked to take over the log, if it is not this one; else empty."""
        successor = self.view.successor
        return successor if successor != self.name else ""

    @property
    def has_ready_successor(self) -> bool:
        """Whether the node that was asked to take over has a complete copy: until then this node serves."""
        return any(
            peer.name == self.is_asked_for
            and peer.role == Role.STANDBY
            and peer.seen_seconds_ago <= _ALIVE_SECONDS
            for peer in self.view.peers
        )

    def hand_over(self, name: str) -> None:
        """Ask for another node as the owner of the log. Raises NotFound, Conflict."""
        peers = {peer.name: peer for peer in self.view.peers}
        peer = peers.get(name)
        if peer is None:
            raise NotFound(f"no other node is named '{name}'; there are: {', '.join(peers) or 'none'}")
        if peer.seen_seconds_ago > _ALIVE_SECONDS:
            raise Conflict(f"{name} was last seen {peer.seen_seconds_ago:.0f} s ago: it cannot take over")
        if self.is_asked_for or self.view.hand_over_to:
            raise Conflict(f"{self.is_asked_for or self.view.hand_over_to} is about to take over")
        self.view.hand_over_to = name

    def trouble(self) -> str:
        """Why nothing can be confirmed now; empty when it can."""
        silent = time.monotonic() - self.view.answered_at
        if silent <= self._config.journal.takeover_after:
            return ""
        if self.view.short_of_standbys:
            return f"PostgreSQL has too few synchronous standbys for {silent:.0f} s: nothing is confirmed"
        text = f"PostgreSQL has not answered for {silent:.0f} s: nothing is confirmed"
        reason = self.view.trouble.partition("\n")[0]  # the driver adds advice on further lines
        return f"{text} ({reason})" if reason else text
