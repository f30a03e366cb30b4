"""Large request bodies of one connection: room for them, and how fast they must come.

Owns: since when a body waits for room, and since when it has made no progress. Must not touch: parsing, what
is done with a body.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from weakref import ref

from holtmq.http.engine.errors import Refusal

if TYPE_CHECKING:
    from holtmq.http.engine.protocol import HttpConnection
    from holtmq.http.engine.request import HttpRequest

log = logging.getLogger(__name__)

# A body up to this size needs no reservation: the limit on connections bounds how many there are.
SMALL: Final = 65536


class LargeBodies:
    """The body that is arriving on a connection, if any."""

    __slots__ = ("_mark_at", "_mark_size", "_owner", "_waits_since")

    def __init__(self, connection: HttpConnection) -> None:
        self._owner = ref(connection)  # which refers to this
        self._mark_at, self._mark_size = 0.0, 0  # at this time the body had this many bytes
        self._waits_since = 0.0  # since when it waits for room; 0: it does not wait

    @property
    def _connection(self) -> HttpConnection:
        connection = self._owner()
        assert connection is not None
        return connection

    def begin(self, now: float) -> None:
        """A new body may begin to arrive."""
        self._mark_at, self._mark_size = now, 0

    def go_on(self, now: float) -> None:
        """The body may arrive: it need not wait for room any more."""
        self._waits_since, self._mark_at = 0.0, now

    def take(self, request: HttpRequest, size: int, now: float) -> bool:
        """Reserve room, or let the request start as soon as there is some.

        A body without a content-length has room for all that it may become: it must not wait while it holds a
        part (see ``BodyRoom``).
        """
        connection = self._connection
        if connection.engine.room.take(connection, size, lambda: connection.start(request, size)):
            request.reserved = size
            return True
        self._waits_since = now
        connection.intake.pause()
        return False

    def grow(self, request: HttpRequest, now: float) -> None:
        """A body without a content-length is larger than expected."""
        limit = self._connection.engine.limit(request.route)
        if request.size > limit:
            self.refuse_size(request, limit)
            return
        request.expected = limit
        request.is_admitted = self.take(request, limit, now)

    def complete(self, request: HttpRequest) -> None:
        """All of the body is there: give back what it does not need."""
        connection = self._connection
        if self._waits_since:  # its last bytes came with those that made it large
            connection.engine.room.withdraw(connection)
            connection.start(request)
        elif request.reserved > request.size:
            rest, request.reserved = request.reserved - request.size, request.size
            connection.engine.room.give(rest)

    @staticmethod
    def refuse_size(request: HttpRequest, limit: int) -> None:
        request.keep_alive = False  # the rest of the body may still be on its way
        request.fail(Refusal(413, f"The request body is larger than {limit} bytes"))

    def free(self, request: HttpRequest) -> None:
        """Forget a body that nobody needs any more."""
        request.chunks = []
        if request.reserved:
            size, request.reserved = request.reserved, 0
            self._connection.engine.room.give(size)

    def check_time(self, request: HttpRequest, now: float) -> None:
        """Refuse a body that has waited for too long, or that comes too slowly."""
        connection = self._connection
        engine = connection.engine
        patience = engine.patience
        if connection.intake.is_paused:
            if self._waits_since and now - self._waits_since > patience.room:
                self._waits_since = 0.0
                engine.room.withdraw(connection)
                connection.refuse(
                    request, Refusal(503, "there is no memory for a body of this size at the moment")
                )
            return
        if now - self._mark_at <= patience.body:
            return
        if request.size - self._mark_size >= patience.body_bytes:
            self._mark_at, self._mark_size = now, request.size
            return
        log.info("body stalled", extra={"peer": connection.peer.address, "bytes": request.size})
        request.keep_alive = False
        if request.response_complete or request.is_running:
            connection.transport.abort()
        else:
            request.fail(Refusal(408, f"the body did not come within {patience.body:g} seconds"))
