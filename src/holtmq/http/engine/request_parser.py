"""From bytes to heads of HTTP/1.1 requests, with httptools (llhttp).

Owns: the head that is being read, and its bounds. Must not touch: bodies, sockets, what a request may do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import httptools

from holtmq.http.engine.authentication import TELLING
from holtmq.http.engine.cross_site import MARKS
from holtmq.http.engine.errors import Refusal

# Bounds on request line and headers, to within one part of a read. The parser joins them piece by piece, as
# does ``on_header`` with the values of one name: without bounds one client without a login could keep the
# loop busy for minutes.
HEAD_MAX: Final = 65536
_HEADERS_MAX: Final = 1_000  # in one head
_UNUSUAL: Final = MARKS | TELLING | {b"expect"}
TWICE: Final = b"\0twice"  # key for the _SINGLE header that came twice; cannot be a header's name
_SINGLE: Final = frozenset({b"host", b"authorization", b"content-length", b"origin", b"sec-fetch-site"})


class RequestParser:
    """Parses the requests of one connection; httptools calls the ``on_`` methods.

    ``on_head`` gets the method, path, query, headers, and whether the connection stays open. Then come
    ``on_body`` for each piece of the body, and ``on_complete``.
    """

    __slots__ = (
        "_head_size",
        "_headers_left",
        "_now",
        "_on_complete",
        "_on_head",
        "_parser",
        "_url",
        "head_began",
        "headers",
        "is_unusual",
        "on_body",
        "requests",
    )

    def __init__(
        self,
        on_head: Callable[[bytes, bytes, bytes, dict[bytes, bytes], bool], None],
        on_body: Callable[[bytes], None],
        on_complete: Callable[[], None],
    ) -> None:
        self._on_head = on_head
        self.on_body = on_body
        self._on_complete = on_complete
        self._url = b""
        self.headers: dict[bytes, bytes] = {}
        self.is_unusual = False  # the last head has headers that most requests do not have
        self.requests = 0  # how many have begun
        self.head_began = 0.0  # when; 0: no head is being read
        self._head_size = 0
        self._headers_left = 0  # so many more are too many; 0: the head is complete, what comes are trailers
        self._now = 0.0
        self._parser = self._new_parser()

    def released(self) -> None:
        """The socket is closed. Refer to nothing that refers back: then no garbage collection is needed."""
        del self._on_head, self.on_body, self._on_complete, self._parser

    def feed(self, data: bytes | memoryview, now: float) -> None:
        """Parse bytes from the client; raises Refusal for what is not HTTP, or too long a head."""
        began, self._now = self.head_began, now
        unread = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            unread = upgrade.args[0]
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Refusal):  # raised by one of our methods
                raise error.__context__ from None
            raise Refusal(400, f"Invalid HTTP request received: {error}") from None
        if unread and self._wants_upgrade():
            self.feed(self._head_without_upgrade() + data[unread:], now)
        if began and began == self.head_began:  # all of the data belongs to the same, still incomplete head
            self._head_size += len(data)
            if self._head_size > HEAD_MAX:
                raise _too_large()

    def forgive(self, now: float) -> None:
        """The head that is being read has waited for us, not for its client."""
        if self.head_began:
            self.head_began = now

    def target(self) -> tuple[bytes, bytes]:
        """Path and query of the last head."""
        path, _, query = self._url.partition(b"?")
        return (path, query) if path[:1] == b"/" else _absolute(self._url)

    def on_message_begin(self) -> None:
        """A request starts."""
        self.requests += 1
        self.head_began, self._head_size = self._now, 0
        self._headers_left = _HEADERS_MAX + 1
        self._url = b""
        self.headers = {}
        self.is_unusual = False

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer behind a chunked body; these are not used."""
        if not self._headers_left:
            return
        self._headers_left -= 1
        if not self._headers_left:
            raise _too_large()
        name = name.lower()
        if name in _UNUSUAL:
            self.is_unusual = True
        headers = self.headers
        if name in headers:
            if name in _SINGLE:
                headers[TWICE] = name
                self.is_unusual = True
            value = headers[name] + b", " + value
        headers[name] = value

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self.head_began = 0.0
        self._headers_left = 0
        parser = self._parser
        if self._wants_upgrade():
            return
        version = parser.get_http_version()
        if version != "1.1" or b"transfer-encoding" in self.headers:
            _check_framing(version, self.headers)
        path, query = self.target()
        method = parser.get_method()
        keep_alive = parser.should_keep_alive() and version != "1.0" and method != b"CONNECT"
        self._on_head(method, path, query, self.headers, keep_alive)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if not self._wants_upgrade():
            self._on_complete()

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # A client may send more data after a request with "connection: close".
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _wants_upgrade(self) -> bool:
        """Whether the head asks for another protocol, which a server may ignore (RFC 9110, 7.8)."""
        return bool(self._parser.should_upgrade()) and self._parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        """The head once more, for a new parser: httptools does not read the body of a request that asks for
        another protocol, as Java's HttpClient does with its first on each connection.
        """
        old, headers = self._parser, self.headers
        self._parser = self._new_parser()
        names = [name for name in headers if name not in (b"upgrade", TWICE)]
        names += [headers[TWICE]] if TWICE in headers else []
        start = b"%s %s HTTP/%s" % (old.get_method(), self._url, old.get_http_version().encode())
        return b"\r\n".join([start, *(name + b": " + headers[name] for name in names), b"", b""])


def _too_large() -> Refusal:
    return Refusal(431, "The request line and headers are too long", "head_too_large")


def _check_framing(version: str, headers: dict[bytes, bytes]) -> None:
    """Refuse a request that another server may end elsewhere, and so take its body for further requests."""
    if version not in ("1.0", "1.1"):
        raise Refusal(505, f"HTTP/{version} is not supported; use HTTP/1.1", "http_version_not_supported")
    coding = headers.get(b"transfer-encoding")
    if coding is not None and version == "1.0":
        raise Refusal(400, "HTTP/1.0 has no transfer-encoding")
    if coding is not None and coding.lower() != b"chunked":  # httptools looks at the end alone
        text = f"The transfer-encoding {coding[:64].decode('latin-1')!r} is not supported; only chunked is"
        raise Refusal(501, text, "not_implemented")


def _absolute(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a target in absolute form, as sent to proxies; others (``*``) are returned as is."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        return url, b""
    return parsed.path or b"/", parsed.query or b""
