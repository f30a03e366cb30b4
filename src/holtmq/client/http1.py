"""One keep-alive HTTP/1.1 connection to a broker.

Owns: writing a request, reading its response, cancelling while waiting for it. ``AnswerReader`` parses the
response and needs no socket. Must not touch: retries, JSON, what a request means.
"""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httptools

from holtmq.client.errors import BadAnswer, ConnectionFailed, HungUp, TimedOut

_READ_SIZE: Final = 1 << 18
_ANSWER_MAX: Final = 1 << 30  # bytes; far above any response, far below a machine's memory
_HANG_UP_SECONDS: Final = 2.0  # a broker closes at once; a proxy in between may not


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body, and the one header the client needs."""

    status: int
    body: bytes
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int
    secure: bool
    prefix: str  # path before ``/api``, without a trailing slash

    @staticmethod
    def parse(url: str) -> "Address":
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not the URL of a broker: {url!r}; it looks like http://127.0.0.1:6632")
        if parts.query or parts.fragment or parts.username:
            raise ValueError(f"a broker's URL has no query, fragment or user: {url!r}")
        secure = parts.scheme == "https"
        return Address(parts.hostname, parts.port or (443 if secure else 80), secure, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class AnswerReader:
    """Parses one response from bytes in chunks of any size."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._size = 0
        self._retry_after: str | None = None
        self.answer: Answer | None = None
        self.keep_alive = False
        self.started = False

    def feed(self, data: bytes) -> None:
        self.started = True
        if self.answer is not None:
            self.keep_alive = False  # unexpected bytes: the next response would be misread
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BadAnswer(f"not an HTTP answer: {error}") from error

    def end(self) -> None:
        """Handle a connection that ended before the response was complete."""
        raise ConnectionFailed(
            "the broker hung up in the middle of its answer" if self.started else "the broker hung up"
        )

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1").strip()

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _ANSWER_MAX:
            raise BadAnswer(f"an answer of more than {_ANSWER_MAX} bytes")
        self._chunks.append(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # "100 Continue" and other 1xx precede the response, they are not it
            return
        if self.answer is not None:
            self.keep_alive = False
            return
        self.keep_alive = self._parser.should_keep_alive()
        self.answer = Answer(status, b"".join(self._chunks), self._retry_after)


class HangUp:
    """Cancels a waiting request without losing a response that is already on its way.

    Closing the whole socket would lose it: the broker may just have leased messages to us and sent them.
    Closing only our write side makes the broker drop a request that still waits, while a response already
    sent still arrives, and its messages can be released.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._connections: set[Connection] = set()

    def ask(self) -> None:
        self.asked.set()
        for connection in self._connections:
            connection.hang_up()

    def attach(self, connection: "Connection") -> None:
        self._connections.add(connection)

    def detach(self, connection: "Connection") -> None:
        self._connections.discard(connection)


class Connection:
    """A connection for one request at a time, with exclusive use."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._usable = True
        self._hung_up = False
        self.answering = False  # whether the broker had started to answer the last request
        self.idle_since = 0.0

    @staticmethod
    async def open(address: Address, tls: ssl.SSLContext | None, seconds: float) -> "Connection":
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=tls if address.secure else None
                )
        except TimeoutError:
            raise TimedOut(f"no connection to {address.authority} within {seconds:g} s") from None
        except OSError as error:
            raise ConnectionFailed(f"no connection to {address.authority}: {error}") from error
        return Connection(reader, writer)

    @property
    def usable(self) -> bool:
        """Whether it can carry another request; false also when the broker has closed it."""
        return self._usable and not self._writer.is_closing() and not self._reader.at_eof()

    async def exchange(self, request: bytes, seconds: float, hang_up: HangUp | None = None) -> Answer:
        """Send, and read the response. Any interruption makes the connection unusable."""
        self._usable = self.answering = False
        if hang_up is not None:
            if hang_up.asked.is_set():
                self._usable = True
                raise HungUp("the request was taken back")
            hang_up.attach(self)
        answer = AnswerReader()
        try:
            async with asyncio.timeout(seconds):
                # No drain first: a broker may refuse a large request before it has read all of it.
                self._writer.write(request)
                while answer.answer is None:
                    data = await self._reader.read(_READ_SIZE)
                    if data:
                        answer.feed(data)
                    else:
                        answer.end()
        except TimeoutError:
            raise TimedOut(f"no answer within {seconds:g} s") from None
        except (OSError, ConnectionFailed) as error:
            if self._hung_up:
                raise HungUp("the request was taken back") from error
            raise ConnectionFailed(str(error)) from error
        finally:
            self.answering = answer.started
            if hang_up is not None:
                hang_up.detach(self)
        self._usable = answer.keep_alive and not self._hung_up
        assert answer.answer is not None
        return answer.answer

    def hang_up(self) -> None:
        """Close only our write side; see ``HangUp``."""
        self._hung_up = True
        transport = self._writer.transport
        asyncio.get_running_loop().call_later(_HANG_UP_SECONDS, transport.abort)
        if not self._writer.can_write_eof():  # TLS has no half-close
            transport.abort()
            return
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def close(self) -> None:
        self._usable = False
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._writer.close()

    async def wait_closed(self) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            async with asyncio.timeout(1.0):  # a peer may never finish the TLS shutdown
                await self._writer.wait_closed()
