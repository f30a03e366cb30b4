"""An AMQP listener that refuses every client with a reason.

Owns: a handshake that ends in ``connection.close``. Must not touch: the broker, which is incomplete on a
standby.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from holtmq.amqp.codec import decode_method, encode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.frames import FRAME_METHOD, PROTOCOL_HEADER, FrameReader, encode_frame
from holtmq.amqp.methods import ConnectionClose, ConnectionCloseOk, ConnectionStart, ConnectionStartOk
from holtmq.wire.primitives import CodecError
from holtmq.wire.tables import FieldTable

_ANSWER_SECONDS: Final = 10.0
_TEXT_BYTES: Final = 255  # a short string on the wire
_MECHANISMS: Final = b"PLAIN AMQPLAIN EXTERNAL"


class RefusingProtocol(asyncio.Protocol):
    """Refuses each client at its login, with the text that ``reason`` returns then."""

    def __init__(self, reason: Callable[[], str]) -> None:
        self._reason = reason
        self._frames = FrameReader()
        self._head = b""
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        self._deadline = asyncio.get_running_loop().call_later(_ANSWER_SECONDS, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        """The protocol header, then frames."""
        if len(self._head) < len(PROTOCOL_HEADER):
            missing = len(PROTOCOL_HEADER) - len(self._head)
            self._head, data = self._head + data[:missing], data[missing:]
            if len(self._head) < len(PROTOCOL_HEADER):
                return
            if not self._head.startswith(b"AMQP"):
                self._transport.write(PROTOCOL_HEADER)
                self._transport.close()
                return
            about: FieldTable = {"capabilities": {"authentication_failure_close": True}, "product": "HoltMQ"}
            self._send(ConnectionStart(0, 9, about, _MECHANISMS, b"en_US"))
        try:
            for kind, _, payload in self._frames.feed(data):
                if kind == FRAME_METHOD:
                    self._method(decode_method(payload))
        except CodecError:
            self._transport.abort()

    def _method(self, method: object) -> None:
        if isinstance(method, ConnectionStartOk):
            text = f"CONNECTION_FORCED - {self._reason()}".encode()[:_TEXT_BYTES].decode(errors="ignore")
            self._send(ConnectionClose(ReplyCode.CONNECTION_FORCED, text))
        elif isinstance(method, ConnectionCloseOk):
            self._transport.close()

    def _send(self, method: ConnectionStart | ConnectionClose) -> None:
        self._transport.write(encode_frame(FRAME_METHOD, 0, encode_method(method)))
