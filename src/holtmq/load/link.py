"""One raw AMQP connection with one channel: opened and set up by blocking calls, then handed over.

Owns: the address, the handshake with PLAIN, and the calls that prepare a workload.
Must not touch: the measured traffic. Publishers and consumers take over the socket, non-blocking.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from holtmq.load import frames
from holtmq.wire.tables import FieldValue, decode_table

CHANNEL: Final = 1
_CALL_SECONDS: Final = 30.0
_FRAME_MAX: Final = 131_072  # what RabbitMQ offers; a body of 64 KiB then fits in one frame
_DURABLE: Final = 1 << 1
_NO_ACK: Final = 1 << 1


class LoadError(Exception):
    """The broker refused, closed or sent an unexpected reply; or the round cannot be measured."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's address and our credentials there."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse ``amqp://user:password@host:port/vhost``; missing parts get RabbitMQ's defaults."""
        parts = urlsplit(url)
        if parts.scheme != "amqp" or not parts.hostname:
            raise LoadError(f"{url!r} is not an address like amqp://user:password@host:port/vhost")
        return cls(
            parts.hostname,
            parts.port or 5672,
            unquote(parts.username) if parts.username is not None else "guest",
            unquote(parts.password) if parts.password is not None else "guest",
            unquote(parts.path[1:]) if len(parts.path) > 1 else "/",
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Link:
    """A connection with its one channel open."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.frame_max = _FRAME_MAX
        self.product = ""
        try:
            self.sock = socket.create_connection((address.host, address.port), timeout=_CALL_SECONDS)
        except OSError as error:
            raise LoadError(f"cannot connect to {address}: {error}") from None
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = bytearray()
        try:
            self._open()
        except BaseException:
            self.sock.close()
            raise

    def _open(self) -> None:
        address = self.address
        self.sock.sendall(frames.PROTOCOL_HEADER)
        start = self._expect(frames.CONNECTION_START)
        self.product = _product(start)
        login = f"\0{address.user}\0{address.password}".encode()
        client_properties: dict[str, FieldValue] = {
            "product": "holt bench",
            "capabilities": {"consumer_cancel_notify": True},
        }
        self._send(
            0,
            frames.CONNECTION_START_OK,
            frames.table(client_properties),
            frames.short("PLAIN"),
            frames.long(login),
            frames.short("en_US"),
        )
        channel_max, frame_max = frames.read_tune(self._expect(frames.CONNECTION_TUNE))
        self.frame_max = min(frame_max or _FRAME_MAX, _FRAME_MAX)
        self.sock.sendall(frames.tune_ok(channel_max, self.frame_max))
        self._call(0, frames.CONNECTION_OPEN, frames.short(address.vhost), b"\0", b"\0")
        self._call(CHANNEL, frames.CHANNEL_OPEN, b"\0")

    def declare_exchange(self, name: str, kind: str) -> None:
        self._call(
            CHANNEL,
            frames.EXCHANGE_DECLARE,
            b"\0\0",
            frames.short(name),
            frames.short(kind),
            b"\0",
            frames.table({}),
        )

    def delete_exchange(self, name: str) -> None:
        self._call(CHANNEL, frames.EXCHANGE_DELETE, b"\0\0", frames.short(name), b"\0")

    def declare_queue(self, name: str, *, durable: bool, arguments: Mapping[str, FieldValue]) -> None:
        bits = _DURABLE if durable else 0
        self._call(
            CHANNEL,
            frames.QUEUE_DECLARE,
            b"\0\0",
            frames.short(name),
            bytes((bits,)),
            frames.table(arguments),
        )

    def delete_queue(self, name: str) -> None:
        self._call(CHANNEL, frames.QUEUE_DELETE, b"\0\0", frames.short(name), b"\0")

    def bind(self, queue: str, exchange: str, key: str) -> None:
        self._call(
            CHANNEL,
            frames.QUEUE_BIND,
            b"\0\0",
            frames.short(queue),
            frames.short(exchange),
            frames.short(key),
            b"\0",
            frames.table({}),
        )

    def qos(self, prefetch: int) -> None:
        self._call(CHANNEL, frames.BASIC_QOS, frames.u32(0), frames.u16(prefetch), b"\0")

    def confirm(self) -> None:
        self._call(CHANNEL, frames.CONFIRM_SELECT, b"\0")

    def consume(self, queue: str, tag: str, *, no_ack: bool) -> bytes:
        """Start a consumer; return the bytes that arrived after the reply."""
        self._send(
            CHANNEL,
            frames.BASIC_CONSUME,
            b"\0\0",
            frames.short(queue),
            frames.short(tag),
            bytes((_NO_ACK if no_ack else 0,)),
            frames.table({}),
        )
        self._expect(frames.BASIC_CONSUME_OK)
        early, self._left = bytes(self._left), bytearray()
        return early

    def close(self) -> None:
        """Send a close and disconnect. The reply is not awaited: deliveries may come before it."""
        with suppress(LoadError, OSError):  # the broker is already gone
            self.sock.settimeout(1.0)
            self._send(0, frames.CONNECTION_CLOSE, frames.u16(200), frames.short("done"), b"\0\0\0\0")
        self.sock.close()

    def _send(self, channel: int, key: int, *fields: bytes) -> None:
        try:
            self.sock.sendall(frames.method(channel, key, *fields))
        except OSError as error:
            raise LoadError(f"{self.address} closed the connection: {error}") from None

    def _call(self, channel: int, key: int, *fields: bytes) -> bytes:
        self._send(channel, key, *fields)
        return self._expect(key + 1)  # a reply's number is its request's plus one, for all methods used here

    def _expect(self, key: int) -> bytes:
        while True:
            kind, payload = self._read_frame()
            got = int.from_bytes(payload[:4], "big") if kind == frames.METHOD_FRAME else -1
            if got == key:
                return payload
            if got in (frames.CONNECTION_CLOSE, frames.CHANNEL_CLOSE):
                raise LoadError(f"{self.address} refused: {frames.close_reason(payload)}")
            if kind != frames.HEARTBEAT_FRAME and got != frames.CONNECTION_BLOCKED:
                raise LoadError(f"{self.address} sent method {got:#x} where {key:#x} was due")

    def _read_frame(self) -> tuple[int, bytes]:
        kind, _, size = frames.FRAME_HEAD.unpack(self._read(frames.FRAME_HEAD.size))
        payload = self._read(size + 1)
        if payload[-1] != frames.FRAME_END:
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


def _product(start: bytes) -> str:
    client_properties, _ = decode_table(start, 6)
    return " ".join(_text(client_properties.get(name)) for name in ("product", "version")).strip()


def _text(value: FieldValue) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")
