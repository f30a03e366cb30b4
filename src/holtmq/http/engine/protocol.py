"""HTTP/1.1 on one socket. A hot request costs no task, no scope and no router lookup.

Owns: each request from request line to written answer, pipelining, and admission: site, sender, right
(``sender.py``), size, and only then the body. Must not touch: what routes do, credentials, how heads are
parsed (``request_parser.py``).

Over 400 lines: reading, admission, answering and time-outs share the state of one socket, and a hot request
must not pay for passing it between objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final, cast

from holtmq.auth.rights import RightMissing
from holtmq.auth.roles import TokenRefused
from holtmq.http.engine.authentication import Peer, peer_of
from holtmq.http.engine.engine import Engine
from holtmq.http.engine.errors import Refusal, error_body
from holtmq.http.engine.intake import Intake
from holtmq.http.engine.known_heads import KnownHead, KnownHeads
from holtmq.http.engine.large_bodies import SMALL, LargeBodies
from holtmq.http.engine.pieces import Pieces
from holtmq.http.engine.request import JSON, HttpRequest, json_head
from holtmq.http.engine.request_parser import RequestParser
from holtmq.http.engine.sender import Sender

log = logging.getLogger(__name__)

_UNPACKED_AT_ONCE: Final = 4_096  # bytes, which may become 4 MB
# How long the rest of a refused body is read and discarded, so that the client can read the answer.
LINGER_SECONDS: Final = 2.0


class HttpConnection(asyncio.Protocol):
    """One client connection."""

    transport: asyncio.Transport
    peer: Peer
    intake: Intake

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._parser = RequestParser(self._begin, self._take_piece, self._complete)
        self._known_heads = KnownHeads()
        self._sender = Sender(engine)
        self._active: HttpRequest | None = None  # is admitted, run or answered now
        self._queue: deque[HttpRequest] = deque()  # pipelined behind the active one
        self._is_taking = False  # _take_next is running: it loops, as recursion over thousands would overflow
        self._is_discarding = False  # the last answer is written: ignore all input
        self._is_stopping = False
        self._writable: asyncio.Event | None = None
        self._is_unread = False  # the client does not read its answers: take no more requests until it does
        self._bodies = LargeBodies(self)
        self._held: Pieces | None = None  # the answer that is being sent in portions
        self.is_tls = False
        self.write_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        self.intake = Intake(self.transport, self._parser, self._refuse_bytes)
        address = transport.get_extra_info("peername")
        self.peer = peer_of(str(address[0]) if isinstance(address, tuple) else "")
        self.is_tls = transport.get_extra_info("sslcontext") is not None
        self.engine.connections.add(self)
        if len(self.engine.connections) > self.engine.most_connections:
            self._end(503, "too many connections", "too_many_connections")

    def data_received(self, data: bytes) -> None:
        """Feed bytes from the client to the parser."""
        if self._is_discarding:
            return
        self.intake.moved_at = self._loop.time()
        parser = self._parser
        requests = parser.requests
        is_idle = not parser.head_began and self._active is None and self.intake.reading is None
        if is_idle and (again := self._known_heads.find(data)) is not None:
            self._take_again(data, *again)
            return
        self.intake.take(data)
        if (
            is_idle
            and parser.requests == requests + 1
            and self.intake.reading is None
            and not parser.is_unusual
        ):
            self._known_heads.learn(data, *parser.target(), parser.headers)

    def _take_again(self, data: bytes, head: KnownHead, length: bytes, body_at: int) -> None:
        """Take a complete request whose head was parsed before, with another body."""
        route = self.engine.find_route(b"POST", head.path)
        request = HttpRequest(self, route, head.path, head.query, head.with_length(length))
        request.chunks.append(data[body_at:])
        request.size = len(data) - body_at
        request.complete = True
        self._active = request
        identity, engine = head.admitted, self.engine
        if (
            identity is not None
            and request.size <= head.admitted_bytes
            and engine.authenticator.still_holds(identity)
            and not engine.is_congested
            and engine.refusal is None
        ):
            # Site, sender and right depend on the head alone, and were checked for it.
            request.identity = identity
            request.is_admitted = True
            self._run(request)
            return
        self._admit(request)
        if request.is_admitted and getattr(request, "identity", None) is self._sender.remembered:
            head.admitted = self._sender.remembered
            head.admitted_bytes = max(request.size, head.admitted_bytes)

    def eof_received(self) -> None:
        """The client has closed its side."""
        # The transport closes now and calls connection_lost one loop iteration later. Withdraw a waiting pop
        # at once: messages claimed for it in between would stay leased to a client that is gone.
        active = self._active
        if active is not None and active.on_lost is not None:
            active.on_lost()
            active.on_lost = None
        self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        engine = self.engine
        engine.connections.discard(self)
        engine.note_fast(self)
        engine.room.withdraw(self)
        self._is_discarding = True
        self.intake.released()
        self._queue.clear()
        active, self._active = self._active, None
        if active is not None:
            self.free_body(active)
            active.disconnected = True
            if active.on_lost is not None:
                active.on_lost()
        if self._writable is not None:
            self._writable.set()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.write_paused = True
        self.engine.note_slow(self)

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.write_paused = False
        if not self.transport.is_closing():
            self.engine.note_fast(self)
        if self._writable is not None:
            self._writable.set()
        if self._is_unread:
            self._is_unread = False
            self._take_next()

    def _begin(
        self, method: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes], keep_alive: bool
    ) -> None:
        """The head of a request is complete."""
        if self._is_discarding:  # the connection ends with an earlier request of the same read
            return
        request = HttpRequest(self, self.engine.find_route(method, path), path, query, headers)
        request.keep_alive = keep_alive
        request.is_unusual = self._parser.is_unusual
        if method == b"HEAD":
            request.is_head = True
        self.intake.reading = request
        self._bodies.begin(self.intake.moved_at)
        if self._active is None:
            self._active = request
            self._admit(request)
        else:
            self._queue.append(request)
            self.intake.pause()

    def _take_piece(self, body: bytes) -> None:
        """A piece of the body."""
        request = self.intake.reading
        if request is None:
            return
        request.size += len(body)
        if request.response_complete or request.route.max_body == 0:
            return
        request.chunks.append(body)
        if request.is_admitted and request.size > request.expected:
            self._bodies.grow(request, self.intake.moved_at)

    def _complete(self) -> None:
        """The request is complete."""
        request, self.intake.reading = self.intake.reading, None
        if request is not None:
            request.complete = True
            if request.size > SMALL:
                self._bodies.complete(request)
            if request.is_admitted and not request.is_running and not request.response_complete:
                self._run(request)

    def _admit(self, request: HttpRequest) -> None:
        """Check site, sender and right before the body is accepted."""
        try:
            if request.is_unusual:
                self._sender.look_closer(request)
            if not request.route.right.is_public:
                identity = self._sender.at_once(request, self.peer)
                if identity is None:
                    self.intake.pause()
                    self.engine.run(self._identify(request), "http-login")
                    return
                self._sender.let_in(request, identity)
            self._take_body(request)
        except Exception as error:
            self.refuse(request, error)

    async def _identify(self, request: HttpRequest) -> None:
        """Authenticate a sender that is not known from memory. Reading is paused meanwhile."""
        try:
            identity = await self._sender.identify(request, self.peer)
            if not request.disconnected:
                self._sender.let_in(request, identity)
                self._take_body(request)
        except Exception as error:
            self.refuse(request, error)

    def refuse(self, request: HttpRequest, error: Exception) -> None:
        """Answer a request that is not admitted, and forget its body."""
        if isinstance(error, TokenRefused | RightMissing) and self.engine.authenticator.is_open(request.path):
            request.identity = self.engine.authenticator.open_path_identity()
            self._take_body(request)
            return
        if not request.complete:
            length = request.headers.get(b"content-length", b"")
            request.keep_alive = request.keep_alive and length.isdigit() and int(length) <= SMALL
        request.fail(error)

    def _take_body(self, request: HttpRequest) -> None:
        limit = self.engine.limit(request.route)
        if limit == 0:  # the body is discarded: the answer does not need it
            self.start(request)
            return
        length = request.headers.get(b"content-length")
        request.expected = min(limit, SMALL)
        if length is not None:
            request.expected = size = int(length)
            if size > limit:
                self._bodies.refuse_size(request, limit)
                return
            is_large = size > SMALL and not request.complete
            if is_large and not self._bodies.take(request, size, self.intake.moved_at):
                return
        elif request.size > limit:
            self._bodies.refuse_size(request, limit)
            return
        self.start(request)

    def start(self, request: HttpRequest, reserved: int = 0) -> None:
        """Accept the body; ``reserved``: what it waited for."""
        request.reserved = reserved or request.reserved
        request.is_admitted = True
        if not self._queue:
            self.intake.resume()
        self._bodies.go_on(self.intake.moved_at)
        if request.complete or request.route.max_body == 0:
            self._run(request)
            return
        if request.expects_continue:
            request.expects_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def free_body(self, request: HttpRequest) -> None:
        """Forget a body that nobody needs any more; others may have its room."""
        self._bodies.free(request)

    def _run(self, request: HttpRequest) -> None:
        request.is_running = True
        if not request.is_packed:
            self._handle(request)
        elif request.size > _UNPACKED_AT_ONCE:
            self.engine.run(self._unpack(request), "http-unpack")
        else:
            try:
                request.unpack()
            except Exception as error:
                request.fail(error)
                return
            self._handle_unpacked(request)

    async def _unpack(self, request: HttpRequest) -> None:
        """Decompress a body in a thread: a gzip body of 64 KB may hold 64 MB, which take 120 ms."""
        try:
            await asyncio.to_thread(request.unpack)
        except Exception as error:
            request.fail(error)
            return
        if not (request.disconnected or request.response_complete):
            self._handle_unpacked(request)

    def _handle_unpacked(self, request: HttpRequest) -> None:
        """Reserve memory for what a body has become: a handler may keep it while it waits."""
        more = request.kept_bytes - request.reserved
        if request.kept_bytes > SMALL and more > 0:
            if not self.engine.room.try_take(more):
                request.fail(Refusal(503, "too many large requests at a time"))
                return
            request.reserved += more
        self._handle(request)

    def _handle(self, request: HttpRequest) -> None:
        try:
            request.route.handle(request)
        except Exception as error:
            request.fail(error)

    def write_answer(self, request: HttpRequest, data: bytes) -> None:
        """Write a whole answer, head and body."""
        if request.reserved:
            self.free_body(request)
        request.chunks = []
        transport = self.transport
        if request.disconnected or transport.is_closing():
            if request.on_dropped is not None:
                request.on_dropped()
            return
        request.on_dropped = None  # it refers to the popped messages, and would keep them in memory
        transport.write(data)
        self._answered(request)

    @property
    def unsent_bytes(self) -> int:
        """How much memory the answers take that the client has not read."""
        held = self._held
        return self.transport.get_write_buffer_size() + (held.size if held is not None else 0)

    async def write_in_portions(self, request: HttpRequest, body: Pieces) -> None:
        """Answer 200 with a long JSON body, as fast as the client reads."""
        self._held = body
        try:
            await self.stream(request, JSON, {}, body.portions(), body.size)
        finally:
            self._held = None

    async def stream(
        self,
        request: HttpRequest,
        content_type: str,
        headers: Mapping[str, str],
        chunks: AsyncGenerator[bytes, None],
        length: int | None = None,
    ) -> None:
        """Answer piece by piece, as fast as the client reads; chunked unless the length is known."""
        self.free_body(request)
        request.is_streaming = True
        transport = self.transport
        is_chunked = length is None and not request.is_head
        transport.write(request.head_of(200, content_type, headers, length))
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if request.disconnected or transport.is_closing():
                        return
                    if chunk and not request.is_head:
                        if is_chunked:
                            transport.writelines((b"%x\r\n" % len(chunk), chunk, b"\r\n"))
                        else:
                            transport.write(chunk)
                        del chunk  # only the transport keeps it: a slow client holds one copy, not two
                        await self._drain()
        except Exception as error:
            # The head is already sent: an abort is the only way to tell that the answer is incomplete.
            log.error("answer broken off", exc_info=error)
            request.response_complete = True
            transport.abort()
            return
        request.response_complete = True
        if not transport.is_closing():
            if is_chunked:
                transport.write(b"0\r\n\r\n")
            self._answered(request)

    async def _drain(self) -> None:
        while self.write_paused and not self.transport.is_closing():
            self._writable = asyncio.Event()
            await self._writable.wait()

    def _answered(self, request: HttpRequest) -> None:
        if not request.keep_alive or self._is_stopping:
            self._part(request)
        elif self.write_paused:
            self._is_unread = True
            self.intake.pause()
        elif self._queue or self._is_taking or self.intake.is_paused:
            self._take_next()
        else:
            self._active = None

    def _take_next(self) -> None:
        self._active = None
        if self._is_taking:
            return
        self._is_taking = True
        while self._active is None and self._queue:
            self._active = self._queue.popleft()
            self._admit(self._active)
        self._is_taking = False
        if self._active is None:
            self.intake.resume()

    def _part(self, request: HttpRequest) -> None:
        """Close after the last answer."""
        self._active = None
        self.intake.end()
        self._queue.clear()
        if request.complete:
            self._is_discarding = True
            self._close()
            return
        # Closing a socket with unread input sends a reset, which can overtake the answer.
        self.intake.resume()
        self._is_discarding = True
        self._loop.call_later(LINGER_SECONDS, self._close)

    def _close(self) -> None:
        """Close as soon as the client has read its answers; not for ever, if it does not."""
        if not self.transport.is_closing():
            self.transport.close()
            if self.transport.get_write_buffer_size():
                self.engine.note_slow(self)

    def _refuse_bytes(self, error: Refusal) -> None:
        self._end(error.status, str(error), error.code)

    def _end(self, status: int, text: str, code: str) -> None:
        """Write an error and close, when there is no request to answer."""
        self._is_discarding = True
        self.intake.end()
        if not self.transport.is_closing():
            body = error_body(text, code)
            self.transport.write(json_head(status) + b"%d\r\nconnection: close\r\n\r\n" % len(body) + body)
            self._close()

    def shutdown(self) -> None:
        """Close now, or after the running request is answered."""
        self._is_stopping = True
        if self._active is None:
            self._close()
        else:
            self._active.keep_alive = False

    def break_off(self, error: Refusal) -> None:
        """Answer the running request with this error, and close."""
        request = self._active
        if request is None or not request.is_running or request.response_complete:
            return
        if request.route.right.is_public:
            return
        if request.is_streaming:
            self.transport.abort()
            return
        if request.on_lost is not None:
            request.on_lost()
            request.on_lost = None
        give_back, request.on_dropped = request.on_dropped, None
        request.keep_alive = False
        request.fail(error)
        if give_back is not None:
            give_back()

    def check_time(self, now: float) -> None:
        """Close if the client sends its request too slowly: it costs a socket, and perhaps memory."""
        patience = self.engine.patience
        reading = self.intake.reading
        if self._parser.head_began:
            if now - self._parser.head_began > patience.head and not self.intake.is_paused:
                self.transport.abort()
        elif reading is not None:
            self._bodies.check_time(reading, now)
        elif self._active is None and not self.intake.is_paused:
            most = patience.idle if self._parser.requests else patience.head
            if now - self.intake.moved_at > most:
                self._close()
