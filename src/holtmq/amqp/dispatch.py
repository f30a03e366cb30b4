"""What a client asks for besides publishing and acknowledging: to whom each frame goes.

Owns: which frames are allowed in which state of the connection and of their channel. Must not touch: sockets,
what a channel does with its methods (``channel.py``), contents (``frame_loop.py``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from holtmq.amqp.channel import Channel
from holtmq.amqp.codec import UnknownMethod, decode_method, encode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ChannelFault, ConnectionFault, channel_error
from holtmq.amqp.frames import FRAME_METHOD, encode_frame
from holtmq.amqp.methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUpdateSecret,
    Method,
)
from holtmq.amqp.phase import Phase
from holtmq.broker.errors import BrokerError

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection

ContentFrame = Callable[[Channel, int, bytes], None]


class Dispatch:
    """The frames of one connection that its loop does not handle itself."""

    __slots__ = ("_connection",)

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    def other_frame(
        self, kind: int, number: int, channel: Channel | None, payload: bytes, content_frame: ContentFrame
    ) -> None:
        """A frame that is no method of an open channel; ``content_frame`` takes what belongs to a message."""
        connection = self._connection
        if kind == 8:
            if number:
                raise ConnectionFault(ReplyCode.COMMAND_INVALID, "heartbeat on a channel")
            return
        if kind not in (1, 2, 3):
            raise ConnectionFault(ReplyCode.FRAME_ERROR, f"unknown frame type {kind}")
        if channel is not None:
            if channel.closing:
                self._while_closing(channel, kind, payload)
            elif channel.partial_route is not None:
                content_frame(channel, kind, payload)
            else:
                raise ConnectionFault(
                    ReplyCode.UNEXPECTED_FRAME, "expected method frame, got non method frame instead"
                )
            return
        if number and connection.phase is Phase.CLOSING:
            return  # sent before the client read our close
        if kind != 1:
            raise ConnectionFault(
                ReplyCode.UNEXPECTED_FRAME if number == 0 else ReplyCode.CHANNEL_ERROR,
                "content frame on channel 0" if number == 0 else "expected 'channel.open'",
            )
        try:
            method = decode_method(payload)
        except UnknownMethod as error:
            raise ConnectionFault(ReplyCode.COMMAND_INVALID, str(error)) from None
        if number == 0:
            self._connection_method(method)
        elif connection.phase is Phase.RUNNING:
            self._open_channel(number, method)
        else:
            raise ConnectionFault(ReplyCode.CHANNEL_ERROR, "the connection is not open yet")

    def _connection_method(self, method: Method) -> None:
        connection = self._connection
        match connection.phase, method:
            case ((Phase.RUNNING | Phase.HANDSHAKE), ConnectionClose()):
                # Those that need not wait for the disk, as before channel.close-ok.
                connection.tell_confirms()
                connection.close_channels()
                if connection.is_stalled:  # by messages that return to their queues
                    connection.broker.long_changes.then(self._left_by_client)
                else:
                    self._left_by_client()
            case Phase.CLOSING, ConnectionClose():
                connection.send(ConnectionCloseOk())
            case Phase.CLOSING, ConnectionCloseOk():
                connection.end("closed by us")
            case Phase.CLOSING, _:
                pass  # sent before the client read our close
            case Phase.HANDSHAKE, _:
                connection.handshake.receive(method)
            case Phase.RUNNING, ConnectionUpdateSecret(secret):
                connection.token.update(secret.decode("utf-8", "replace"))
            case _:
                which = method.class_id << 16 | method.method_id
                raise ConnectionFault(
                    ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running", which
                )

    def _left_by_client(self) -> None:
        connection = self._connection
        if connection.phase is not Phase.CLOSED:
            connection.send(ConnectionCloseOk())
            connection.client_left = True
            connection.end("closed by the client")

    def _open_channel(self, number: int, method: Method) -> None:
        connection = self._connection
        if not isinstance(method, ChannelOpen):
            which = method.class_id << 16 | method.method_id
            raise ConnectionFault(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'", which)
        count, most = len(connection.channels), connection.channel_max
        if count >= most:  # as in RabbitMQ, the count, not the highest number
            raise ConnectionFault(
                ReplyCode.NOT_ALLOWED,
                f"number of channels opened ({count}) has reached the negotiated channel_max ({most})",
            )
        full = connection.broker.limits.check_channel(connection.user_name)
        if full is not None:
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, full)
        channel = connection.channels[number] = connection.make_channel(number)
        connection.broker.limits.channel_opened(connection.user_name)
        connection.broker.counts.channels_opened += 1
        channel.send(ChannelOpenOk())

    def _while_closing(self, channel: Channel, kind: int, payload: bytes) -> None:
        """A frame on a channel that we closed, sent before the client knew: ignored, but for close(-ok)."""
        if kind != 1 or payload[:4] not in (b"\x00\x14\x00\x28", b"\x00\x14\x00\x29"):
            return
        if isinstance(decode_method(payload), ChannelClose):
            channel.send(ChannelCloseOk())
        else:
            del self._connection.channels[channel.number]

    def method(self, channel: Channel, number: int, raw: bytes) -> None:
        """A method of an open channel; an error closes the channel or the connection."""
        connection = self._connection
        try:
            method = decode_method(raw)
        except UnknownMethod as error:
            raise ConnectionFault(ReplyCode.COMMAND_INVALID, str(error)) from None
        which = method.class_id << 16 | method.method_id
        try:
            match method:
                case ChannelClose():
                    if channel.owes_confirms:
                        channel.tell_confirms()
                    channel.close(lambda: self._channel_closed(number))
                case ChannelOpen():
                    raise ConnectionFault(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")
                case _:
                    channel.handle(method)
        except ChannelFault as error:
            connection.fail_channel(channel, error, which)
        except ConnectionFault as error:
            connection.fail(error, which)
        except BrokerError as error:
            connection.fail_channel(channel, channel_error(error), which)

    def _channel_closed(self, number: int) -> None:
        connection = self._connection
        if connection.channels.pop(number, None) is not None:
            connection.outbox.append(encode_frame(FRAME_METHOD, number, encode_method(ChannelCloseOk())))
