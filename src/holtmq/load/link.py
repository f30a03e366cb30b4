"""One raw AMQP connection with one channel: opened and set up by blocking calls, then handed over.

Owns: the address, the handshake with PLAIN, and the calls that prepare a workload.
Must not touch: the measured traffic. Publishers and consumers take over the socket, non-blocking.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

from holtmq.amqp.codec import decode_method
from holtmq.amqp.frames import FRAME_END, FRAME_HEARTBEAT, FRAME_METHOD, PROTOCOL_HEADER
from holtmq.amqp.methods import (
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from holtmq.load import frames, sockets
from holtmq.load.errors import LoadError
from holtmq.wire.primitives import CodecError
from holtmq.wire.tables import FieldValue

M = TypeVar("M", bound=Method)

CHANNEL: Final = 1
_CALL_SECONDS: Final = 30.0
_DEFAULT_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_FRAME_MAX: Final = 131_072  # what RabbitMQ offers; a body of 64 KiB then fits in one frame


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's address and our credentials there."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, url: str, tls_ca: str = "") -> Address:
        """Parse ``amqp[s]://user:password@host:port/vhost``; missing parts get RabbitMQ's defaults."""
        parts = urlsplit(url)
        if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise LoadError(f"{shown(url)!r} is not an address like amqp://user:password@host:port/vhost")
        return cls(
            parts.hostname,
            parts.port or _DEFAULT_PORTS[parts.scheme],
            unquote(parts.username) if parts.username is not None else "guest",
            unquote(parts.password) if parts.password is not None else "guest",
            unquote(parts.path[1:]) if len(parts.path) > 1 else "/",
            sockets.trusting(tls_ca) if parts.scheme == "amqps" else None,
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Link:
    """A connection with its one channel open."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.frame_max = _FRAME_MAX
        self.product = ""
        self.sock = sockets.connect(address.host, address.port, address.tls, _CALL_SECONDS)
        self._left = bytearray()
        try:
            self._open()
        except BaseException:
            self.sock.close()
            raise

    def _open(self) -> None:
        address = self.address
        self.sock.sendall(PROTOCOL_HEADER)
        start = self._expect(ConnectionStart)
        known = start.server_properties
        self.product = " ".join(_text(known.get(name)) for name in ("product", "version")).strip()
        login = f"\0{address.user}\0{address.password}".encode()
        client_properties: dict[str, FieldValue] = {
            "product": "holt bench",
            "capabilities": {"consumer_cancel_notify": True},
        }
        self._send(0, ConnectionStartOk(client_properties, "PLAIN", login))
        tune = self._expect(ConnectionTune)
        self.frame_max = min(tune.frame_max or _FRAME_MAX, _FRAME_MAX)
        # Without heartbeats: a busy connection shows that it is alive, and the byte stream stays regular.
        self._send(0, ConnectionTuneOk(tune.channel_max, self.frame_max, 0))
        self._call(0, ConnectionOpen(address.vhost), ConnectionOpenOk)
        self._call(CHANNEL, ChannelOpen(), ChannelOpenOk)

    def declare_exchange(self, name: str, kind: str) -> None:
        self._call(CHANNEL, ExchangeDeclare(name, kind), ExchangeDeclareOk)

    def delete_exchange(self, name: str) -> None:
        self._call(CHANNEL, ExchangeDelete(name), ExchangeDeleteOk)

    def declare_queue(self, name: str, *, durable: bool, arguments: Mapping[str, FieldValue]) -> None:
        self._call(CHANNEL, QueueDeclare(name, durable=durable, arguments=dict(arguments)), QueueDeclareOk)

    def delete_queue(self, name: str) -> None:
        self._call(CHANNEL, QueueDelete(name), QueueDeleteOk)

    def bind(self, queue: str, exchange: str, key: str) -> None:
        self._call(CHANNEL, QueueBind(queue, exchange, key), QueueBindOk)

    def qos(self, prefetch: int) -> None:
        self._call(CHANNEL, BasicQos(prefetch_count=prefetch), BasicQosOk)

    def confirm(self) -> None:
        self._call(CHANNEL, ConfirmSelect(), ConfirmSelectOk)

    def consume(self, queue: str, tag: str, *, no_ack: bool) -> bytes:
        """Start a consumer; return the bytes that arrived after the reply."""
        self._call(CHANNEL, BasicConsume(queue, tag, no_ack=no_ack), BasicConsumeOk)
        early, self._left = bytes(self._left), bytearray()
        return early

    def close(self) -> None:
        """Send a close and disconnect. The reply is not awaited: deliveries may come before it."""
        with suppress(LoadError, OSError):  # the broker is already gone
            self.sock.settimeout(1.0)
            self._send(0, ConnectionClose(200, "done", 0, 0))
        self.sock.close()

    def _send(self, channel: int, method: Method) -> None:
        try:
            self.sock.sendall(frames.method(channel, method))
        except OSError as error:
            raise LoadError(f"{self.address} closed the connection: {error}") from None

    def _call(self, channel: int, method: Method, reply: type[Method]) -> None:
        self._send(channel, method)
        self._expect(reply)

    def _expect(self, wanted: type[M]) -> M:
        while True:
            kind, payload = self._read_frame()
            try:
                got = decode_method(payload) if kind == FRAME_METHOD else None
            except CodecError as error:
                raise LoadError(f"{self.address} sent what {wanted.name} is not: {error}") from None
            if isinstance(got, wanted):
                return got
            if isinstance(got, ConnectionClose | ChannelClose):
                raise LoadError(f"{self.address} refused: {frames.close_reason(payload)}")
            if kind != FRAME_HEARTBEAT and not isinstance(got, ConnectionBlocked):
                sent = f"a frame of type {kind}" if got is None else got.name
                raise LoadError(f"{self.address} sent {sent} where {wanted.name} was due")

    def _read_frame(self) -> tuple[int, bytes]:
        kind, _, size = frames.FRAME_HEAD.unpack(self._read(frames.FRAME_HEAD.size))
        payload = self._read(size + 1)
        if payload[-1] != FRAME_END:
            raise LoadError(f"{self.address} does not speak AMQP 0-9-1")
        return kind, payload[:-1]

    def _read(self, size: int) -> bytes:
        while len(self._left) < size:
            try:
                data = self.sock.recv(65536)
            except OSError as error:
                raise LoadError(f"{self.address} does not answer: {error}") from None
            if not data:
                raise LoadError(f"{self.address} closed the connection")
            self._left += data
        out = bytes(self._left[:size])
        del self._left[:size]
        return out


def shown(url: str) -> str:
    """An address without its password."""
    login, at, rest = url.rpartition("@")
    return f"{login.rpartition(':')[0]}:***@{rest}" if at and login.count(":") > 1 else url


def _text(value: FieldValue) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
