"""HTTP/1.1 for the hot routes, on uvicorn's connection: no task, no scope, no router per request.

Owns: one exchange from request line to written answer, pipelining order, body limits. Every request that is
not hot goes on to uvicorn's own cycle and the ASGI application. Must not touch: what routes mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from holtmq.http.engine.codings import ACCEPTED, coding_of, plain_body
from holtmq.http.engine.errors import Refusal, answer_for, error_body
from holtmq.journal.interface import Journal, JournalFailed

log = logging.getLogger(__name__)

CORS: Final = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
    (b"access-control-allow-headers", b"Content-Type, Authorization"),
)
_CORS_LINES: Final = b"".join(b"%s: %s\r\n" % header for header in CORS)


def _head(status: int) -> bytes:
    line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    # A full queue empties in seconds, not in the minutes that clients back off by themselves.
    more = b"retry-after: 1\r\n" if status == 429 else b""
    if status == 415:
        more = f"accept-encoding: {ACCEPTED}\r\n".encode()
    return line + _CORS_LINES + more + b"content-type: application/json\r\ncontent-length: "


_HEADS: Final = {
    status: _head(status) for status in (200, 201, 400, 401, 403, 404, 409, 413, 415, 429, 431, 500, 503)
}
# Request line and headers, give or take one read. The parser joins them piece by piece: without a bound one
# client could keep the loop busy for minutes, before any token is looked at.
_HEAD_MAX: Final = 65536
# How long a head may take, and a new connection to begin one; give or take the same again.
HEAD_SECONDS: Final = 60.0
# How JSON begins, or nothing: neither gzip nor deflate does, so that no other request needs its headers read.
_JSON_STARTS: Final = b"{[ \t\r\n"
# No content: no content type and no length either.
_NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\n" + _CORS_LINES


class _Unheard:
    """Stands where uvicorn's cycle has an event that somebody waits for."""

    def set(self) -> None:
        return None


_UNHEARD: Final = _Unheard()


class Exchange:
    """One hot request and its answer."""

    __slots__ = (
        "_protocol",
        "chunks",
        "complete",
        "disconnected",
        "headers",
        "keep_alive",
        "may_run",
        "message_event",
        "on_dropped",
        "on_lost",
        "path",
        "query",
        "response_complete",
        "route",
        "size",
        "subject",
    )

    def __init__(self, protocol: FastProtocol, route: Route, path: bytes, query: bytes) -> None:
        self._protocol = protocol
        self.route = route
        self.path = path
        self.query = query
        self.headers = protocol.headers
        self.chunks: list[bytes] = []
        self.size = 0
        self.keep_alive = True
        self.complete = False
        self.may_run = False
        self.subject: str | None = None
        self.on_lost: Callable[[], None] | None = None
        self.on_dropped: Callable[[], None] | None = None  # there was an answer, and nobody to send it to
        # What uvicorn's connection asks of a cycle:
        self.response_complete = False
        self.disconnected = False
        self.message_event = _UNHEARD

    @property
    def body(self) -> bytes:
        body = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        if body[:1] in _JSON_STARTS:
            return body
        body = plain_body(body, self.header(b"content-encoding"), self._protocol.max_body)
        self.chunks = [body]
        return body

    def header(self, name: bytes) -> str | None:
        for key, value in self.headers:
            if key == name:
                return value.decode("latin-1")
        return None

    def answer(self, status: int, body: bytes = b"") -> None:
        """Answer, once; nothing when the client is gone."""
        if not self.response_complete:
            self.response_complete = True
            self._protocol.write_answer(self, status, body)

    def answer_when_durable(self, journal: Journal, status: int, body: bytes) -> None:
        """Answer once everything appended so far is on disk, or say that it never will be."""

        def durable(failed: JournalFailed | None) -> None:
            if failed is None:
                self.answer(status, body)
            else:
                self.fail(failed)

        journal.on_durable(durable)

    def fail(self, error: Exception) -> None:
        status, body = answer_for(error)
        if status == 400:
            # Not JSON, perhaps because of a coding that looked like it from its first byte.
            try:
                coding_of(self.header(b"content-encoding"))
            except Refusal as refusal:
                status, body = answer_for(refusal)
        self.answer(status, body)


class Route:
    """What runs when a hot request is complete."""

    __slots__ = ("handle",)

    def __init__(self, handle: Callable[[Exchange], None]) -> None:
        self.handle = handle


FindRoute = Callable[[bytes, bytes], Route | None]  # (method, path) -> route


class FastProtocol(HttpToolsProtocol):
    """uvicorn's connection with a short cut. The server sets what has no value here."""

    find_route: FindRoute
    max_body: int
    most: int  # connections
    head_seconds = HEAD_SECONDS

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._active: Exchange | None = None
        self._unread = False  # the client does not read its answers: take no more requests meanwhile
        self._requests = 0
        self._head = 0  # the number of the request whose head is being read; 0: of none
        self._head_size = 0
        self._head_watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            self._end(503, "too many connections", "too_many_connections")
            return
        self._head_watch = self.loop.call_later(self.head_seconds, self._watch_head, 0)

    def _watch_head(self, before: int) -> None:
        """Hang up on whoever is still sending the same head, or has not begun: it costs a socket each."""
        if not self._requests or (self._head and self._head == before):
            self.transport.abort()
            return
        self._head_watch = self.loop.call_later(self.head_seconds, self._watch_head, self._head)

    def data_received(self, data: bytes) -> None:
        head = self._head
        super().data_received(data)
        if head and head == self._head:  # all of it was more of the same head
            self._head_size += len(data)
            if self._head_size > _HEAD_MAX:
                self._end(431, "The request line and headers are too long", "head_too_large")

    # -- parser callbacks ------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._requests += 1
        self._head, self._head_size = self._requests, 0
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        self._head = 0
        path, _, query = self.url.partition(b"?")
        route = self.find_route(self.parser.get_method(), path)
        if route is None:
            self._hand_over()
            return
        exchange = Exchange(self, route, path, query)
        exchange.keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        before: Any = self.cycle
        self.cycle = exchange  # type: ignore[assignment]
        if before is None or before.response_complete:
            exchange.may_run = True
            self._active = exchange
            if self.expect_100_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]
        length = exchange.header(b"content-length")
        if length is not None and length.isdigit() and int(length) > self.max_body:
            exchange.size = self.max_body + 1
            if exchange.may_run:
                self._refuse_size(exchange)

    def _hand_over(self) -> None:
        """Give the request to uvicorn as if it had seen it from the start."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        self._active = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        exchange: Any = self.cycle
        if not isinstance(exchange, Exchange):
            super().on_body(body)
            return
        exchange.size += len(body)
        if exchange.size <= self.max_body:
            exchange.chunks.append(body)
        elif not exchange.response_complete and exchange.may_run:
            self._refuse_size(exchange)

    def on_message_complete(self) -> None:
        exchange: Any = self.cycle
        if not isinstance(exchange, Exchange):
            super().on_message_complete()
            return
        exchange.complete = True
        if exchange.may_run and not exchange.response_complete:
            self._run(exchange)

    # -- running ---------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, Exchange):
            cycle.may_run = True
            self._active = cycle
            if cycle.complete:
                self._run(cycle)
            return
        super()._start_asgi_task(cycle, app)

    def _run(self, exchange: Exchange) -> None:
        if exchange.size > self.max_body:
            self._refuse_size(exchange)
            return
        try:
            exchange.route.handle(exchange)
        except Exception as error:
            exchange.fail(error)

    def _refuse_size(self, exchange: Exchange) -> None:
        exchange.keep_alive = False  # the rest of the body may still be on its way
        text = f"The request body is larger than {self.max_body} bytes"
        exchange.answer(413, error_body(text, "payload_too_large"))

    def send_400_response(self, msg: str) -> None:
        """What uvicorn answers to bytes that are not HTTP, in the shape of every other refusal."""
        self._end(400, msg, "bad_request")

    def _end(self, status: int, text: str, code: str) -> None:
        body = error_body(text, code)
        self.transport.write(_HEADS[status] + b"%d\r\nconnection: close\r\n\r\n" % len(body) + body)
        self.transport.close()

    def write_answer(self, exchange: Exchange, status: int, body: bytes) -> None:
        transport = self.transport
        if exchange is self._active:
            self._active = None
        if exchange.disconnected or transport.is_closing():
            if exchange.on_dropped is not None:
                exchange.on_dropped()
            return
        exchange.on_dropped = None  # lets go of what was handed out
        end = b"\r\n\r\n" if exchange.keep_alive else b"\r\nconnection: close\r\n\r\n"
        if status == 204:
            transport.write(_NO_CONTENT + (b"\r\n" if exchange.keep_alive else b"connection: close\r\n\r\n"))
        else:
            transport.write(b"".join((_HEADS[status], b"%d" % len(body), end, body)))
        if not exchange.keep_alive:
            transport.close()
        if self.flow.write_paused:
            self._unread = True
            self.flow.pause_reading()
        else:
            self.on_response_complete()

    # -- the connection --------------------------------------------------------------------------

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread:
            self._unread = False
            self.on_response_complete()

    def eof_received(self) -> None:
        # The transport closes now and tells connection_lost a turn later. Who waits is withdrawn at once:
        # what is claimed for it in between would stay in a lease that nobody has.
        active = self._active
        if active is not None and active.on_lost is not None:
            active.on_lost()
            active.on_lost = None
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_watch is not None:
            self._head_watch.cancel()
        self.pipeline.clear()
        active, self._active = self._active, None
        if active is not None:
            active.disconnected = True
            if active.on_lost is not None:
                active.on_lost()
        super().connection_lost(exc)
