"""One AMQP connection that sends what it is told and keeps everything it receives, in order.

Owns: frames, contents, the handshake. Must not touch: what is compared.
"""

import socket
from contextlib import suppress
from typing import Final, NamedTuple

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.frames import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, FrameReader, encode_frame
from holtmq.amqp.methods import (
    BasicDeliver,
    BasicGetOk,
    BasicReturn,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from holtmq.wire.properties import Properties, body_size, decode_properties, encode_header, encode_properties

_PATIENCE: Final = 60.0
_CAPABILITIES: Final = (
    "basic.nack",
    "consumer_cancel_notify",
    "publisher_confirms",
    "authentication_failure_close",
)
_HEARTBEAT: Final = 8


class Received(NamedTuple):
    """A method from the broker, with its content if it has one."""

    channel: int
    method: Method
    properties: Properties | None = None
    body: bytes = b""


class Peer:
    """A connection after its handshake."""

    def __init__(self, port: int, vhost: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader(0)
        self._frames: list[tuple[int, int, bytes]] = []
        self._socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect(ConnectionStart)
        capabilities: dict[str, object] = dict.fromkeys(_CAPABILITIES, True)
        self.send(0, ConnectionStartOk({"capabilities": capabilities}, "PLAIN", b"\0guest\0guest"))  # type: ignore[dict-item]
        self._expect(ConnectionTune)
        self.send(0, ConnectionTuneOk(2047, 131072, 0))
        self.send(0, ConnectionOpen(vhost))
        self._expect(ConnectionOpenOk)

    def _expect(self, kind: type[Method]) -> None:
        got = self.read()
        assert got is not None
        assert isinstance(got.method, kind), got

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, channel: int, method: Method) -> None:
        """One method."""
        self._write(encode_frame(FRAME_METHOD, channel, encode_method(method)))

    def send_content(self, channel: int, method: Method, properties: Properties, body: bytes) -> None:
        """A method and its content."""
        header = encode_header(len(body), encode_properties(properties))
        self._write(
            encode_frame(FRAME_METHOD, channel, encode_method(method))
            + encode_frame(FRAME_HEADER, channel, header)
            + (encode_frame(FRAME_BODY, channel, body) if body else b"")
        )

    def _write(self, data: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the reader finds out why
            self._socket.sendall(data)

    def read(self) -> Received | None:
        """The next method; None when the broker closed the socket."""
        frame = self._frame()
        if frame is None:
            return None
        kind, channel, payload = frame
        assert kind == FRAME_METHOD, frame
        method = decode_method(payload)
        if not isinstance(method, BasicDeliver | BasicGetOk | BasicReturn):
            return Received(channel, method)
        header = self._frame()
        assert header is not None
        body, size = b"", body_size(header[2])
        while len(body) < size:
            part = self._frame()
            assert part is not None
            body += part[2]
        return Received(channel, method, decode_properties(header[2], 12), body)

    def _frame(self) -> tuple[int, int, bytes] | None:
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame[0] != _HEARTBEAT:
                    return frame
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._frames += self._reader.feed(data)
