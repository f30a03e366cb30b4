"""What all HTTP connections of a node share: routes, authentication, memory, time-outs.

Owns: the set of connections and of running requests, and closing those that are too slow. Must not touch:
parsing, what routes do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holtmq.http.engine.authentication import RequestAuthenticator
from holtmq.http.engine.body_room import BodyRoom
from holtmq.http.engine.cross_site import CrossSite
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.lasting_requests import LastingRequests
from holtmq.http.engine.request import FindRoute, HttpRoute

if TYPE_CHECKING:
    from holtmq.http.engine.protocol import HttpConnection

log = logging.getLogger(__name__)

_STALLED_SECONDS: Final = 5.0  # without a byte read by the client, while memory for answers is short


@dataclass(frozen=True, slots=True)
class Patience:
    """How long clients may take, in seconds, to within one sweep."""

    head: float = 60.0  # for a request's head, and for the first byte on a new connection
    body: float = 30.0  # for each further ``body_bytes`` of a body
    body_bytes: int = 16_384
    room: float = 30.0  # waiting for memory for the body
    idle: float = 75.0  # longer than clients keep idle connections: else a request meets a closing socket
    unread: float = 60.0  # without reading a byte of an answer


class Engine:
    """One node's HTTP side."""

    def __init__(
        self,
        find_route: FindRoute,
        authenticator: RequestAuthenticator,
        cross_site: CrossSite,
        *,
        max_body: int,
        max_long_body: int,
        most_connections: int,
        memory_bytes: int,
        patience: Patience | None = None,
    ) -> None:
        self.find_route = find_route
        self.authenticator = authenticator
        self.cross_site = cross_site
        self._max_body = max_body
        self._max_long_body = max(max_body, max_long_body)
        self.most_connections = most_connections
        self.patience = patience or Patience()
        self.room = BodyRoom(max(memory_bytes, self._max_long_body))
        self.connections: set[HttpConnection] = set()
        self.lasting = LastingRequests()
        self.tasks: set[asyncio.Task[None]] = set()
        self.slow: dict[HttpConnection, tuple[float, int]] = {}  # (since when, how many bytes are unsent)
        self.is_congested = False  # too many bytes are unsent: new requests are refused
        self.refusal: Refusal | None = None  # why only public routes are served now
        self._unsent_max = memory_bytes

    def limit(self, route: HttpRoute) -> int:
        """How many bytes a request's body may have."""
        if route.max_body is not None:
            return route.max_body
        return self._max_long_body if route.in_steps else self._max_body

    def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a request as a task of its own."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("request failed", exc_info=error)

    def note_slow(self, connection: HttpConnection) -> None:
        """The client reads its answer more slowly than we produce it."""
        now = asyncio.get_running_loop().time()
        self.slow[connection] = (now, connection.unsent_bytes)
        self._weigh()

    def note_fast(self, connection: HttpConnection) -> None:
        """The client has caught up, or is gone."""
        if self.slow.pop(connection, None) is not None and self.is_congested:
            self._weigh()

    def sweep(self, now: float) -> None:
        """Close connections that exceeded a time-out."""
        for connection in list(self.connections):
            connection.check_time(now)
        for connection, (since, before) in list(self.slow.items()):
            size = connection.unsent_bytes
            if size < before:
                self.slow[connection] = (now, size)
            elif now - since > (_STALLED_SECONDS if self.is_congested else self.patience.unread):
                log.warning(
                    "client does not read", extra={"peer": connection.peer.address, "unsent_bytes": size}
                )
                connection.transport.abort()
        self._weigh()

    def _weigh(self) -> None:
        unsent = sum([connection.unsent_bytes for connection in self.slow])
        self.is_congested = unsent > self._unsent_max
