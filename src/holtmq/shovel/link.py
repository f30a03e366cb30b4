"""A shovel's AMQP connection to a broker: one socket, one channel.

Owns: the handshake as a client, frames and contents, heartbeats. Must not touch: what is moved and why.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from holtmq import __version__
from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD,
    HEARTBEAT,
    PROTOCOL_HEADER,
    FrameReader,
    encode_frame,
)
from holtmq.amqp.methods import (
    BasicDeliver,
    BasicPublish,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from holtmq.broker.topology.shovels import Address
from holtmq.wire.primitives import CodecError
from holtmq.wire.properties import PROPERTIES_AT, body_size, encode_header
from holtmq.wire.tables import FieldTable

CHANNEL: Final = 1
_FRAME_MAX: Final = 131_072
_READ: Final = 1 << 16  # one read is handled without a pause: this keeps it to a few milliseconds
_CLOSE_SECONDS: Final = 2.0
_NOT_FOUND: Final = 404
_CAPABILITIES: Final[FieldTable] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}

M = TypeVar("M", bound=Method)


class LinkLost(Exception):
    """The connection is unusable; the text says why, in the words of the peer if it gave any."""


class ChannelRefused(LinkLost):
    """The peer has closed the channel."""

    def __init__(self, where: str, close: ChannelClose) -> None:
        super().__init__(f"{where} refused: {close.reply_code} {close.reply_text}")
        self.code = close.reply_code


class Content(NamedTuple):
    """A message as it arrived, with the method that carried it."""

    method: BasicDeliver | BasicReturn
    properties: bytes  # flags and values, as received
    body: bytes


Event = Method | Content


class Link:
    """An open connection with one open channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str) -> None:
        self._reader = reader
        self._writer = writer
        self._where = where
        self._frames = FrameReader(_FRAME_MAX)
        self._arrived: list[Event] = []
        self._partial: tuple[BasicDeliver | BasicReturn, bytes, int, list[bytes]] | None = None
        self._most = _FRAME_MAX - FRAME_OVERHEAD
        self._heartbeat: asyncio.Task[None] | None = None
        self._heard_at = 0.0

    @classmethod
    async def open(cls, address: Address, name: str, inside: Callable[[], socket.socket]) -> "Link":
        """Connect, log in and open a channel. ``inside`` connects to this broker."""
        try:
            async with asyncio.timeout(address.connect_seconds):
                if address.is_local:
                    reader, writer = await asyncio.open_connection(sock=inside())
                else:
                    tls = await asyncio.to_thread(_tls, address) if address.tls else None
                    server_name = (address.server_name or address.host) if tls is not None else None
                    reader, writer = await asyncio.open_connection(
                        address.host, address.port, ssl=tls, server_hostname=server_name
                    )
                link = cls(reader, writer, str(address))
                try:
                    await link._log_in(address, name)
                except BaseException:
                    link.abort()
                    raise
                return link
        except TimeoutError:
            seconds = f"{address.connect_seconds:g} seconds"
            raise LinkLost(f"{address} did not answer the login within {seconds}") from None
        except (OSError, ssl.SSLError) as error:
            raise LinkLost(f"cannot connect to {address}: {error.strerror or error}") from None

    async def _log_in(self, address: Address, name: str) -> None:
        self._writer.write(PROTOCOL_HEADER)
        await self._expect(ConnectionStart)
        client_properties: FieldTable = {
            "product": "HoltMQ shovel",
            "version": __version__,
            "connection_name": name,
            "capabilities": _CAPABILITIES,
        }
        if address.is_local:
            login = ConnectionStartOk(client_properties, "EXTERNAL", b"")
        else:
            secret = f"\0{address.user}\0{address.password}".encode()
            login = ConnectionStartOk(client_properties, "PLAIN", secret)
        self._send(0, login)
        tune = await self._expect(ConnectionTune)
        frame_max = min(tune.frame_max or _FRAME_MAX, _FRAME_MAX)
        offered = tune.heartbeat
        wanted = offered if address.heartbeat is None else address.heartbeat
        interval = min(offered, wanted) if offered and wanted else max(offered, wanted)
        self._most = frame_max - FRAME_OVERHEAD
        self._send(0, ConnectionTuneOk(tune.channel_max, frame_max, interval))
        self._send(0, ConnectionOpen(address.vhost))
        await self._expect(ConnectionOpenOk)
        if interval:
            self._heard_at = asyncio.get_running_loop().time()
            self._heartbeat = asyncio.create_task(self._keep_alive(interval), name="shovel heartbeat")
        await self.call(ChannelOpen(), ChannelOpenOk)

    async def call(self, method: Method, answer: type[M]) -> M:
        """Send a method and wait for its reply."""
        self.send(method)
        return await self._expect(answer)

    async def ask(self, method: Method, answer: type[M]) -> M | None:
        """``call``, or None if the peer says that there is no such queue or exchange."""
        try:
            return await self.call(method, answer)
        except ChannelRefused as refusal:
            if refusal.code != _NOT_FOUND:
                raise
        self.send(ChannelCloseOk())
        await self.call(ChannelOpen(), ChannelOpenOk)
        return None

    def send(self, method: Method) -> None:
        """Send a method on the channel."""
        self._send(CHANNEL, method)

    def publish(self, exchange: str, key: str, properties: bytes, body: bytes) -> None:
        """Publish; the broker returns the message if it cannot route it."""
        publish = BasicPublish(exchange, key, mandatory=True)
        parts = [
            encode_frame(FRAME_METHOD, CHANNEL, encode_method(publish)),
            encode_frame(FRAME_HEADER, CHANNEL, encode_header(len(body), properties)),
        ]
        for at in range(0, len(body), self._most):
            parts.append(encode_frame(FRAME_BODY, CHANNEL, body[at : at + self._most]))
        self._write(b"".join(parts))

    async def drain(self) -> None:
        """Wait until the peer has taken what was written."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise LinkLost(f"{self._where}: {error}") from None

    async def read(self) -> list[Event]:
        """What arrived next: at least one method or message."""
        while not self._arrived:
            try:
                data = await self._reader.read(_READ)
            except OSError as error:
                raise LinkLost(f"{self._where}: {error}") from None
            if not data:
                raise LinkLost(f"{self._where} closed the connection")
            self._heard_at = asyncio.get_running_loop().time()
            try:
                for kind, _, payload in self._frames.feed(data):
                    self._take(kind, payload)
            except CodecError as error:
                raise LinkLost(f"{self._where} sent what cannot be read: {error}") from None
        arrived, self._arrived = self._arrived, []
        for event in arrived:
            if isinstance(event, ConnectionClose):
                raise LinkLost(f"{self._where} closed: {event.reply_code} {event.reply_text}")
            if isinstance(event, ChannelClose):
                raise ChannelRefused(self._where, event)
        return arrived

    async def close(self) -> None:
        """Close the connection in order, which makes the peer process what was sent before."""
        with suppress(LinkLost, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                self._send(0, ConnectionClose(200, "shovel stopped"))
                while not any(isinstance(event, ConnectionCloseOk) for event in await self.read()):
                    pass
        self.abort()

    def abort(self) -> None:
        """Close the socket at once."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._writer.transport.abort()

    async def _expect(self, kind: type[M]) -> M:
        kept: list[Event] = []
        while True:
            arrived = await self.read()
            for at, event in enumerate(arrived):
                if isinstance(event, kind):
                    self._arrived = kept + arrived[:at] + arrived[at + 1 :]
                    return event
            kept += arrived

    async def _keep_alive(self, interval: int) -> None:
        loop = asyncio.get_running_loop()
        woke_at = loop.time()
        while True:
            await asyncio.sleep(interval / 2)
            now = loop.time()
            # A late wake-up means that this process was stopped: that is not the peer's silence.
            self._heard_at += max(0.0, now - woke_at - interval / 2)
            woke_at = now
            if now - self._heard_at > 2 * interval:
                self._reader.set_exception(OSError(f"no heartbeat for {2 * interval} seconds"))
                return
            if not self._writer.is_closing():
                self._writer.write(HEARTBEAT)

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == FRAME_METHOD:
            method = decode_method(payload)
            if isinstance(method, BasicDeliver | BasicReturn):
                self._partial = method, b"", -1, []
            else:
                self._arrived.append(method)
            return
        if self._partial is None:
            return  # a heartbeat
        method, properties, missing, parts = self._partial
        if kind == FRAME_HEADER:
            properties, missing = payload[PROPERTIES_AT:], body_size(payload)
        elif kind == FRAME_BODY:
            parts.append(payload)
            missing -= len(payload)
        if missing == 0:
            self._arrived.append(Content(method, properties, b"".join(parts)))
            self._partial = None
        else:
            self._partial = method, properties, missing, parts

    def _send(self, channel: int, method: Method) -> None:
        self._write(encode_frame(FRAME_METHOD, channel, encode_method(method)))

    def _write(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise LinkLost(f"{self._where} closed the connection")
        self._writer.write(data)


def _tls(address: Address) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=address.ca_file or None)
    if not address.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if address.cert_file:
        context.load_cert_chain(address.cert_file, address.key_file or None)
    return context
