"""A small AMQP client for the judge: one connection, one channel, one reader.

Owns: converting frames to methods and contents, and back. Must not touch: what is published and why.
Written here so that the check needs no client library and sees every confirm as soon as it arrives.
"""

import asyncio
from typing import Final, TypeVar

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    FrameReader,
    encode_frame,
)
from holtmq.amqp.methods import (
    BasicDeliver,
    BasicPublish,
    ChannelClose,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from holtmq.verify.workload import Gone
from holtmq.wire.properties import Properties, body_size, encode_header, encode_properties
from holtmq.wire.tables import FieldTable

_CHANNEL: Final = 1
_FRAME_MAX: Final = 131_072
_READ: Final = 1 << 18
_PERSISTENT: Final = encode_properties(Properties(delivery_mode=2))

M = TypeVar("M", bound=Method)


class AmqpClient:
    """A connection with one open channel, made by ``connect``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._arrived: list[tuple[Method, bytes]] = []  # newest first
        self._partial: tuple[Method, int, list[bytes]] | None = None

    @classmethod
    async def connect(cls, port: int) -> "AmqpClient":
        """Log in as guest and open a channel."""
        try:
            client = cls(*await asyncio.open_connection("127.0.0.1", port))
        except OSError as error:
            raise Gone(str(error)) from None
        try:
            await client._open()
        except Gone:
            client.close()
            raise
        return client

    async def _open(self) -> None:
        self._writer.write(PROTOCOL_HEADER)
        await self.expect(ConnectionStart)
        self._send(0, ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
        await self.expect(ConnectionTune)
        self._send(0, ConnectionTuneOk(1, _FRAME_MAX, 0))
        self._send(0, ConnectionOpen("/"))
        await self.expect(ConnectionOpenOk)
        await self.call(ChannelOpen(), ChannelOpenOk)

    async def call(self, method: Method, answer: type[M]) -> M:
        """Send a method and wait for its reply."""
        self._send(_CHANNEL, method)
        return await self.expect(answer)

    def send(self, method: Method) -> None:
        """Send a method that has no reply."""
        self._send(_CHANNEL, method)

    def publish(self, queue: str, body: bytes, exchange: str = "", delay_ms: int = 0) -> None:
        """Publish a persistent message to a queue, through the default exchange or one that delays it."""
        properties = _PERSISTENT
        if delay_ms:
            headers: FieldTable = {"x-delay": delay_ms}
            properties = encode_properties(Properties(delivery_mode=2, headers=headers))
        parts = [
            encode_frame(FRAME_METHOD, _CHANNEL, encode_method(BasicPublish(exchange, queue))),
            encode_frame(FRAME_HEADER, _CHANNEL, encode_header(len(body), properties)),
        ]
        if body:
            parts.append(encode_frame(FRAME_BODY, _CHANNEL, body))
        self._write(b"".join(parts))

    async def expect(self, kind: type[M]) -> M:
        """The next method, which must be of this type."""
        method, _ = await self.next()
        if not isinstance(method, kind):
            raise Gone(f"expected {kind.name}, got {method!r}")
        return method

    async def next(self) -> tuple[Method, bytes]:
        """The next method, with its body if it carries one."""
        while not self._arrived:
            try:
                data = await self._reader.read(_READ)
            except OSError as error:
                raise Gone(str(error)) from None
            if not data:
                raise Gone("the broker closed the connection")
            for kind, _, payload in self._frames.feed(data):
                self._take(kind, payload)
            self._arrived.reverse()
        method, body = self._arrived.pop()
        if isinstance(method, ConnectionClose | ChannelClose):
            raise Gone(f"the broker closed: {method.reply_text}")
        return method, body

    def close(self) -> None:
        """Close the socket without a connection.close: unsettled messages are requeued."""
        self._writer.transport.abort()

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == FRAME_METHOD:
            method = decode_method(payload)
            if isinstance(method, BasicDeliver):
                self._partial = method, -1, []
            else:
                self._arrived.append((method, b""))
            return
        if self._partial is None:
            return
        method, missing, parts = self._partial
        if kind == FRAME_HEADER:
            missing = body_size(payload)
        elif kind == FRAME_BODY:
            parts.append(payload)
            missing -= len(payload)
        self._partial = method, missing, parts
        if missing == 0:
            self._arrived.append((method, b"".join(parts)))
            self._partial = None

    def _send(self, channel: int, method: Method) -> None:
        self._write(encode_frame(FRAME_METHOD, channel, encode_method(method)))

    def _write(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise Gone("the connection is lost")
        self._writer.write(data)
