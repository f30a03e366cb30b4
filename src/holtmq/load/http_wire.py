"""Raw HTTP/1.1 with keep-alive: requests as prebuilt bytes, responses with as little parsing as possible.

Owns: the address, framing, and the calls that prepare a workload. Must not touch: what is measured.
"""

from __future__ import annotations

import select
import ssl
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import msgspec

from holtmq.load import sockets
from holtmq.load.errors import LoadError
from holtmq.load.link import Address, shown

_CALL_SECONDS: Final = 60.0
_READ_BYTES: Final = 1 << 18
_DEFAULT_PORTS: Final = {"http": 6632, "https": 6633}


class HttpAnswer:
    """Status and body."""

    __slots__ = ("body", "status")

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where a broker listens, and the login it requires."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)  # the header's value
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, url: str, token: str = "", tls_ca: str = "") -> HttpAddress:
        """Parse ``http://user:password@host:port`` or with https; without a user there is no login."""
        parts = urlsplit(url)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path not in ("", "/"):
            raise LoadError(f"{shown(url)!r} is not an address like http://host:port or https://host:port")
        if parts.username and token:
            raise LoadError(f"{shown(url)} has a user: leave the token out")
        authorization = f"Bearer {token}" if token else ""
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = "Basic " + b64encode(login.encode()).decode()
        tls = sockets.trusting(tls_ca) if parts.scheme == "https" else None
        return cls(parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme], authorization, tls)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def socket_address(self) -> Address:
        return Address(self.host, self.port)

    def head(self, method: str, path: str) -> bytes:
        """A request's head without the length and the final blank line."""
        lines = f"{method} {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n"
        if self.authorization:
            lines += f"authorization: {self.authorization}\r\n"
        return lines.encode()

    def get(self, path: str) -> bytes:
        return self.head("GET", path) + b"\r\n"

    def post_head(self, path: str) -> bytes:
        """A head to be followed by the length of the body, ``END`` and the body."""
        return self.head("POST", path) + b"content-type: application/json\r\ncontent-length: "

    def post(self, path: str, body: bytes) -> bytes:
        return b"%s%d%s%s" % (self.post_head(path), len(body), END, body)


END: Final = b"\r\n\r\n"


class HttpWire:
    """One connection. Call ``receive`` when the socket is readable."""

    __slots__ = ("_body_at", "_chunks", "_have", "_need", "_sock", "_status", "address")

    def __init__(self, address: HttpAddress) -> None:
        self.address = address
        self._sock = sockets.connect(address.host, address.port, address.tls, _CALL_SECONDS)
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0  # bytes of the complete response; 0 until its head has arrived
        self._body_at = 0
        self._status = 0

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, request: bytes) -> None:
        try:
            self._sock.sendall(request)
        except OSError as error:
            raise LoadError(f"{self.address}: {error}") from None

    def receive(self) -> HttpAnswer | None:
        try:
            data = self._sock.recv(_READ_BYTES) if self.address.tls is None else self._decrypted()
        except OSError as error:
            raise LoadError(f"{self.address}: {error}") from None
        if data is None:
            return None
        if not data:
            raise LoadError(f"{self.address} closed the connection")
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._need:
                if self._have < self._need:
                    return None
                data = b"".join(self._chunks)
            else:
                data = b"".join(self._chunks)
                self._chunks = [data]
        else:
            self._chunks.append(data)
            self._have = len(data)
        if not self._need and not self._read_head(data):
            return None
        if self._have < self._need:
            return None
        if self._have > self._need:
            raise LoadError(f"{self.address} sent more than the answer")
        answer = HttpAnswer(self._status, data[self._body_at :])
        self._chunks = []
        self._have = self._need = 0
        return answer

    def _decrypted(self) -> bytes | None:
        """What has arrived; None: nothing of an answer, such as a ticket for the next TLS session. All of a
        TLS record is read, since poll reports nothing for a rest that the TLS library keeps."""
        sock = self._sock
        assert isinstance(sock, sockets.TlsSocket)
        sock.settimeout(0)
        try:
            pieces = [sock.recv(_READ_BYTES)]
            while sock.pending():
                pieces.append(sock.recv(_READ_BYTES))
        except BlockingIOError:
            return None
        finally:
            sock.settimeout(_CALL_SECONDS)
        return b"".join(pieces)

    def _read_head(self, data: bytes) -> bool:
        end = data.find(END)
        if end < 0:
            return False
        self._status, length = read_head(data[:end])
        self._body_at = end + 4
        self._need = self._body_at + length
        return True

    def call(self, request: bytes) -> HttpAnswer:
        """Send and wait for the response, for requests that are not measured."""
        self.send(request)
        while (answer := self.receive()) is None:
            select.select([self._sock], [], [], _CALL_SECONDS)
        return answer

    def delete_queue(self, queue: str) -> None:
        path = f"/api/v1/resources/queues/{quote(queue, safe='')}"
        answer = self.call(self.address.head("DELETE", path) + b"\r\n")
        if answer.status not in (200, 204, 404):
            raise LoadError(f"{self.address}: deleting {queue} gave {answer.status} {answer.body[:200]!r}")

    def close(self) -> None:
        self._sock.close()


def read_head(head: bytes) -> tuple[int, int]:
    """Status and body length. Refuses a response with neither a content length nor an empty body."""
    try:
        status = int(head[9:12])
    except ValueError:
        raise LoadError(f"not an HTTP answer: {head[:80]!r}") from None
    at = head.find(b"content-length: ")
    if at < 0:
        head = head.lower()
        at = head.find(b"content-length: ")
        if at < 0:
            if status == 204:
                return status, 0
            raise LoadError(f"an answer without content-length: {head[:80]!r}")
    end = head.find(b"\r\n", at)
    return status, int(head[at + 16 : end if end >= 0 else len(head)])


class _Health(msgspec.Struct):
    server: str = ""
    version: str = ""


def product(address: HttpAddress) -> str:
    """The broker's name for a report; connecting also checks that it is up."""
    wire = HttpWire(address)
    try:
        answer = wire.call(address.get("/health"))
        health = msgspec.json.decode(answer.body, type=_Health)
    except msgspec.MsgspecError:
        return str(address)
    finally:
        wire.close()
    name = health.server.partition(" on ")[0]
    return f"{name} {health.version}".strip() or str(address)
