"""One request and its answer, as handlers see them.

Owns: the received request, and how an answer looks on the wire. Must not touch: sockets (the connection's),
what routes do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from holtmq.auth.rights import Identity, Right
from holtmq.http.engine.codings import ACCEPTED, coding_of, plain_body
from holtmq.http.engine.cross_site import cors_lines
from holtmq.http.engine.errors import Refusal, answer_for
from holtmq.journal.interface import Journal, JournalFailed

if TYPE_CHECKING:
    from holtmq.http.engine.protocol import HttpConnection

JSON: Final = "application/json"
# First bytes of JSON; an empty body matches too. No gzip or deflate body starts like that, so the headers of
# these requests need not be read.
_JSON_STARTS: Final = b"{[ \t\r\n"
_NO_BODY: Final = (204, 304)


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


def _more(status: int) -> bytes:
    if status == 429:
        # A full queue drains in seconds; by default clients back off for minutes.
        return b"retry-after: 1\r\n"
    return f"accept-encoding: {ACCEPTED}\r\n".encode() if status == 415 else b""


def json_head(status: int) -> bytes:
    """An answer's head, up to the value of content-length."""
    return _status_line(status) + _more(status) + b"content-type: application/json\r\ncontent-length: "


_HEADS: Final = {status: json_head(status) for status in (200, 201, 400, 401, 403, 404, 409, 429, 503)}
_NO_CONTENT: Final = _status_line(204) + b"\r\n"

ErrorForm = Callable[[Exception], tuple[int, bytes, Mapping[str, str]]]


def plain_error(error: Exception) -> tuple[int, bytes, Mapping[str, str]]:
    """Status, body and headers of an error, in the form of the partitioned queues' API."""
    status, body = answer_for(error)
    return status, body, {"www-authenticate": 'Bearer realm="HoltMQ"'} if status == 401 else {}


class HttpRoute:
    """What a request needs, and what runs when it is complete."""

    __slots__ = ("error_form", "handle", "in_steps", "max_body", "right")

    def __init__(
        self,
        handle: Callable[[HttpRequest], None],
        right: Right,
        max_body: int | None = None,
        error_form: ErrorForm = plain_error,
        *,
        in_steps: bool = False,
    ) -> None:
        self.handle = handle
        self.right = right
        self.max_body = max_body  # bytes; None: the node's limit; 0: the body is discarded
        self.error_form = error_form
        self.in_steps = in_steps  # a long body does not hold up other clients


Found = tuple[HttpRoute, dict[str, str]]  # with the names in the path
FindRoute = Callable[[bytes, bytes], Found]  # (method, path)


class HttpRequest:
    """One request and its answer; the answer is sent at most once."""

    __slots__ = (
        "_connection",
        "_is_unpacked",
        "chunks",
        "complete",
        "disconnected",
        "expected",
        "expects_continue",
        "headers",
        "identity",
        "is_admitted",
        "is_head",
        "is_running",
        "is_streaming",
        "is_unusual",
        "keep_alive",
        "names",
        "on_dropped",
        "on_lost",
        "origin",
        "path",
        "query",
        "reserved",
        "response_complete",
        "route",
        "size",
    )

    identity: Identity

    def __init__(
        self, connection: HttpConnection, found: Found, path: bytes, query: bytes, headers: dict[bytes, bytes]
    ) -> None:
        self._connection = connection
        self.route, self.names = found
        self.path = path
        self.query = query
        self.headers = headers
        self.chunks: list[bytes] = []
        self._is_unpacked = False
        self.size = 0
        self.expected = 0  # body bytes that may arrive before limit and reservation are checked again
        self.keep_alive = True
        self.is_head = False
        self.is_running = False
        self.is_streaming = False  # the head of the answer is sent, and its body follows in pieces
        self.is_unusual = False  # it has headers that most requests do not have
        self.expects_continue = False
        self.complete = False
        self.is_admitted = False
        self.reserved = 0  # bytes reserved in the engine's BodyRoom
        self.origin: bytes | None = None  # the web page's origin, if CORS allows it to read the answer
        self.on_lost: Callable[[], None] | None = None
        self.on_dropped: Callable[[], None] | None = None  # called when there is no client to answer
        self.response_complete = False
        self.disconnected = False

    @property
    def subject(self) -> str | None:
        return self.identity.subject

    @property
    def connection(self) -> HttpConnection:
        return self._connection

    @property
    def body(self) -> bytes:
        """The body, decompressed. A body that starts like JSON is taken as is, whatever its header says."""
        body = self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)
        return body if body[:1] in _JSON_STARTS else self._plain(body)

    @property
    def unpacked_body(self) -> bytes:
        """The body, decompressed as its header says."""
        return self._plain(b"".join(self.chunks))

    @property
    def is_packed(self) -> bool:
        """Whether the body is compressed, by its header and its first byte."""
        chunks = self.chunks
        return b"content-encoding" in self.headers and bool(chunks) and chunks[0][:1] not in _JSON_STARTS

    @property
    def kept_bytes(self) -> int:
        """How much memory the body takes."""
        return sum(map(len, self.chunks))

    def unpack(self) -> None:
        """Decompress the body now, in any thread; raises as ``body`` does."""
        self._plain(b"".join(self.chunks))

    def _plain(self, body: bytes) -> bytes:
        if not self._is_unpacked:
            body = plain_body(
                body, self.header(b"content-encoding"), self._connection.engine.limit(self.route)
            )
            self.chunks = [body]
            self._is_unpacked = True
        return body

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def answer(self, status: int, body: bytes = b"") -> None:
        """Answer with JSON, once; the answer is dropped when the client is gone."""
        if not self.response_complete:
            self.response_complete = True
            if self.origin is not None or self.is_head or status not in _HEADS:
                self._connection.write_answer(self, self._render(status, body, JSON, {}))
                return
            end = b"\r\n\r\n" if self.keep_alive else b"\r\nconnection: close\r\n\r\n"
            self._connection.write_answer(self, b"".join((_HEADS[status], b"%d" % len(body), end, body)))

    def answer_empty(self) -> None:
        """Answer 204."""
        if not self.response_complete:
            self.response_complete = True
            plain = self.origin is None and self.keep_alive
            self._connection.write_answer(self, _NO_CONTENT if plain else self._render(204, b"", "", {}))

    def answer_with(
        self, status: int, body: bytes, content_type: str = JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer with any content type and headers, once."""
        if not self.response_complete:
            self.response_complete = True
            self._connection.write_answer(self, self._render(status, body, content_type, headers or {}))

    def answer_when_durable(self, journal: Journal, status: int, body: bytes) -> None:
        """Answer once everything appended so far is durable, or with an error if the journal failed."""

        def durable(failed: JournalFailed | None) -> None:
            if failed is not None:
                self.fail(failed)
            elif status == 204:
                self.answer_empty()
            else:
                self.answer(status, body)

        journal.on_durable(durable)

    def fail(self, error: Exception) -> None:
        status, body, headers = self.route.error_form(error)
        if status == 400:
            # Perhaps not JSON but an unsupported coding whose first byte looked like JSON: then say 415.
            try:
                coding_of(self.header(b"content-encoding"))
            except Refusal as refusal:
                status, body, headers = self.route.error_form(refusal)
        self.answer_with(status, body, JSON, headers)

    def head_of(
        self, status: int, content_type: str, headers: Mapping[str, str], length: int | None
    ) -> bytes:
        """The head of an answer; without a length the body is chunked."""
        parts = [_status_line(status), _more(status)]
        if self.origin is not None:
            parts.append(cors_lines(self.origin))
        parts += [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        if status not in _NO_BODY:
            if content_type:
                parts.append(f"content-type: {content_type}\r\n".encode())
            parts.append(
                b"transfer-encoding: chunked\r\n" if length is None else b"content-length: %d\r\n" % length
            )
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)

    def _render(self, status: int, body: bytes, content_type: str, headers: Mapping[str, str]) -> bytes:
        head = self.head_of(status, content_type, headers, len(body))
        return head if self.is_head or status in _NO_BODY else head + body
