"""One AMQP connection, sans-IO: bytes in, broker calls and frames out.

Owns: the channels, connection methods, closing. Must not touch: sockets, clocks, argon2; the server passes
bytes in, writes the outbox and implements ``Hooks``. The frame loop with the per-message code is in
``frame_loop.py``.

Over 400 lines: reading, methods and closing change the same phase and the same channels.
"""

from enum import Enum, auto
from typing import Final

from holtmq.amqp.channel import Channel
from holtmq.amqp.client_rights import ClientRights
from holtmq.amqp.codec import UnknownMethod, decode_method, encode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.consuming import remove_consumers
from holtmq.amqp.errors import AmqpError, ChannelFault, ConnectionFault, channel_error
from holtmq.amqp.frame_loop import FrameLoop
from holtmq.amqp.frames import FRAME_METHOD, HEARTBEAT, encode_frame
from holtmq.amqp.handshake import OLD_PROTOCOL_HEADER, PROTOCOL_HEADER, Handshake, Hooks, Settings
from holtmq.amqp.long_settlements import return_together
from holtmq.amqp.methods import (
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    Method,
)
from holtmq.amqp.outbox import Outbox
from holtmq.amqp.publish_caches import PublishCaches
from holtmq.amqp.publish_run import PublishRun
from holtmq.amqp.token_life import TokenLife
from holtmq.auth.permissions import Access
from holtmq.auth.rights import Identity
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError
from holtmq.broker.figures.client_counts import ConnectionMessages
from holtmq.broker.topology.vhost import VHost
from holtmq.journal.interface import JournalFailed
from holtmq.wire.primitives import CodecError

_OVERHEAD: Final = 8
_COPIED: Final = 16_384  # a read smaller than this is appended to the unread rest of the last one


class Phase(Enum):
    """The state of a connection."""

    PROTOCOL = auto()  # waiting for the protocol header
    HANDSHAKE = auto()
    RUNNING = auto()
    CLOSING = auto()  # we sent connection.close
    CLOSED = auto()


class Connection:
    """The protocol state of one client connection."""

    def __init__(
        self,
        broker: Broker,
        settings: Settings,
        hooks: Hooks,
        *,
        from_loopback: bool,
        is_trusted: bool = False,
    ) -> None:
        self.broker = broker
        self.flow = broker.flow
        self.settings = settings
        self.hooks = hooks
        self.outbox = Outbox(hooks.has_output)
        self.phase = Phase.PROTOCOL
        self.channels: dict[int, Channel] = {}
        self.closed_channel_messages = ConnectionMessages()  # of channels that were closed
        self.confirming: list[Channel] = []  # channels that published with confirms in this read
        self.max_payload = settings.frame_max - _OVERHEAD
        self.vhost: VHost
        self.user_name = ""
        self.auth_mechanism = ""
        self.may_impersonate = False
        self.has_published = False
        self.blocked = False
        self.name = ""
        self.client_properties: dict[str, object] = {}
        self.wants_cancel_notify = False
        self.wants_blocked = False
        self.heartbeat = 0
        self.channel_max = settings.channel_max
        self.closed_because = ""
        self.client_left = False  # it sent connection.close, and closes the socket itself
        self.rights: ClientRights
        self.is_trusted = is_trusted  # a part of this process, which may do everything
        self.handshake = Handshake(self, from_loopback)
        self.token = TokenLife(self)
        self.unread = b""  # received but not processed
        self._deaf = False  # ignore further input: it cannot be parsed, or the journal failed
        self._stalled = 0  # logins and replies being waited for; no frame is processed meanwhile
        self._frame_loop = FrameLoop(self)

    def make_channel(self, number: int) -> Channel:
        """A new channel. (A traced connection makes others.)"""
        return Channel(self, number)

    def make_publish_run(self, vhost: VHost, caches: PublishCaches) -> PublishRun:
        """The fast path of publishing. (A traced connection makes another.)"""
        return PublishRun(self, vhost, caches)

    def note_published(self) -> None:
        """This connection publishes: an alarm must stop it."""
        if not self.has_published:
            self.has_published = True
            self.broker.counts.publishers += 1

    @property
    def is_running(self) -> bool:
        """Whether the handshake is done and neither side has closed."""
        return self.phase is Phase.RUNNING

    def receive(self, data: bytes) -> None:
        """Process bytes from the peer. Never raises for anything a peer can do."""
        if self._deaf or self.phase is Phase.CLOSED:
            return
        unread = self.unread
        if unread:
            missing = self._missing(unread, data)
            if 0 < missing < len(data) and self.phase is Phase.RUNNING and not self._stalled:
                # Join only the frame that was split, so that the rest of a large read is not copied.
                self.unread = b""
                self._work_off(unread + data[:missing], 0)
                if self.unread or self._stalled or self.phase is not Phase.RUNNING:
                    self._work_off(self.unread + data[missing:], 0)
                else:
                    self._work_off(data, missing)
            else:
                self._work_off(unread + data, 0)
        else:
            self._work_off(data, 0)
        if self.flow.pending_publishes:
            self._write_pending_publishes()
        if self.confirming:
            self._tell_confirms()

    def _tell_confirms(self) -> None:
        """Confirm what was published in this read."""
        confirming, self.confirming = self.confirming, []
        for channel in confirming:
            if channel.owes_confirms:
                channel.tell_confirms()

    @staticmethod
    def _missing(unread: bytes, data: bytes) -> int:
        """How many bytes of ``data`` complete the frame that ``unread`` begins; 0: just join the two."""
        head = unread[:7] if len(unread) >= 7 else unread + data[: 7 - len(unread)]
        if len(data) < _COPIED or len(head) < 7:
            return 0
        return int.from_bytes(head[3:7], "big") + _OVERHEAD - len(unread)

    def _work_off(self, data: bytes, at: int) -> None:
        while not self._process(data, at):
            # An error closes the connection; what follows may be the client's own close, or its close-ok.
            data, at = self.unread, 0

    def _process(self, data: bytes, at: int) -> bool:
        """Process bytes; False after an error in a frame that others follow, which are kept as unread."""
        if self._deaf or self.phase is Phase.CLOSED:
            return True
        if self._stalled:
            self.unread = data[at:]
            return True
        try:
            if self.phase is Phase.PROTOCOL:
                at = self._protocol_header(data)
            if self.phase is Phase.PROTOCOL:
                self.unread = data
            else:
                if self._frame_loop.is_within_body:
                    at = self._frame_loop.rest_of_body(data)
                    if self.is_stalled:  # by the message that is complete now
                        self.unread = data[at:]
                        return True
                self._frame_loop.frames(data, at)
        except AmqpError as error:
            # After a broken frame the start of the next one is unknown.
            self._deaf = error.code is ReplyCode.FRAME_ERROR
            self.unread = b"" if self._deaf else self.unread
            self.fail(error, error.which)
            return not self.unread
        except CodecError as error:
            self._deaf = True
            self.fail(ConnectionFault(ReplyCode.SYNTAX_ERROR, str(error)))
        except JournalFailed as error:
            self._deaf = True
            self.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, str(error)))
        return True

    def _write_pending_publishes(self) -> None:
        try:
            self.flow.write_pending_publishes()
        except JournalFailed as error:
            if not self.confirming:  # a channel with confirms sends nacks instead
                self._deaf = True
                self.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, str(error)))

    def _protocol_header(self, data: bytes) -> int:
        if len(data) < len(PROTOCOL_HEADER):
            if not PROTOCOL_HEADER.startswith(data[:4]):
                self._refuse_protocol()
            return 0
        if not data.startswith((PROTOCOL_HEADER, OLD_PROTOCOL_HEADER)):
            self._refuse_protocol()
            return 0
        self.handshake.start()
        self.phase = Phase.HANDSHAKE
        return len(PROTOCOL_HEADER)

    def _refuse_protocol(self) -> None:
        self.outbox.append(PROTOCOL_HEADER)
        self.end("not AMQP 0-9-1")

    def other_frame(self, kind: int, number: int, channel: Channel | None, payload: bytes) -> None:
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
                self._frame_loop.content_frame(channel, kind, payload)
            else:
                raise ConnectionFault(
                    ReplyCode.UNEXPECTED_FRAME, "expected method frame, got non method frame instead"
                )
            return
        if number and self.phase is Phase.CLOSING:
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
        elif self.phase is Phase.RUNNING:
            self._open_channel(number, method)
        else:
            raise ConnectionFault(ReplyCode.CHANNEL_ERROR, "the connection is not open yet")

    def _connection_method(self, method: Method) -> None:
        match self.phase, method:
            case ((Phase.RUNNING | Phase.HANDSHAKE), ConnectionClose()):
                self._tell_confirms()  # those that need not wait for the disk, as before channel.close-ok
                self._close_channels()
                if self._stalled:  # by messages that return to their queues
                    self.broker.long_changes.then(self._left_by_client)
                else:
                    self._left_by_client()
            case Phase.CLOSING, ConnectionClose():
                self.send(ConnectionCloseOk())
            case Phase.CLOSING, ConnectionCloseOk():
                self.end("closed by us")
            case Phase.CLOSING, _:
                pass  # sent before the client read our close
            case Phase.HANDSHAKE, _:
                self.handshake.receive(method)
            case Phase.RUNNING, ConnectionUpdateSecret(secret):
                self.token.update(secret.decode("utf-8", "replace"))
            case _:
                which = method.class_id << 16 | method.method_id
                raise ConnectionFault(
                    ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running", which
                )

    def _left_by_client(self) -> None:
        if self.phase is not Phase.CLOSED:
            self.send(ConnectionCloseOk())
            self.client_left = True
            self.end("closed by the client")

    def _open_channel(self, number: int, method: Method) -> None:
        if not isinstance(method, ChannelOpen):
            which = method.class_id << 16 | method.method_id
            raise ConnectionFault(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'", which)
        if len(self.channels) >= self.channel_max:  # as in RabbitMQ, the count, not the highest number
            raise ConnectionFault(
                ReplyCode.NOT_ALLOWED,
                f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max "
                f"({self.channel_max})",
            )
        full = self.broker.limits.check_channel(self.user_name)
        if full is not None:
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, full)
        channel = self.channels[number] = self.make_channel(number)
        self.broker.limits.channel_opened(self.user_name)
        self.broker.counts.channels_opened += 1
        channel.send(ChannelOpenOk())

    def _while_closing(self, channel: Channel, kind: int, payload: bytes) -> None:
        """A frame on a channel that we closed, sent before the client knew: ignored, but for close(-ok)."""
        if kind != 1 or payload[:4] not in (b"\x00\x14\x00\x28", b"\x00\x14\x00\x29"):
            return
        if isinstance(decode_method(payload), ChannelClose):
            channel.send(ChannelCloseOk())
        else:
            del self.channels[channel.number]

    def run_method(self, channel: Channel, number: int, raw: bytes) -> None:
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
            self.fail_channel(channel, error, which)
        except ConnectionFault as error:
            self.fail(error, which)
        except BrokerError as error:
            self.fail_channel(channel, channel_error(error), which)

    def _channel_closed(self, number: int) -> None:
        if self.channels.pop(number, None) is not None:
            self.outbox.append(encode_frame(FRAME_METHOD, number, encode_method(ChannelCloseOk())))

    def fail_channel(self, channel: Channel, error: AmqpError, which: int) -> None:
        if isinstance(error, ConnectionFault):
            self.fail(error, which)
            return
        if channel.owes_confirms:
            channel.tell_confirms()
        channel.partial_route = None
        reason = ChannelClose(error.code, error.reply_text, which >> 16, which & 0xFFFF)
        channel.close(lambda: channel.send(reason))
        self.hooks.channel_failed(channel.number, error)

    def reply_when_durable(self, channel: Channel, method: Method, journalled: bool) -> None:
        """Reply now, or when the change is durable; until then no further frame is processed."""
        if not journalled:
            channel.send(method)
            return
        self._stalled += 1

        def durable(failure: JournalFailed | None) -> None:
            self._stalled -= 1
            if self.phase is Phase.CLOSED:
                return
            if failure is not None:
                self.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, str(failure)))
            elif self.phase is Phase.RUNNING:
                channel.send(method)
            if self.unread and not self.gives_way():  # one commit may end the wait of many clients
                self.resume()

        self.broker.journal.on_durable(durable)

    def stall(self) -> None:
        """Stop processing frames until ``unstall``: what was asked for is not complete."""
        self._stalled += 1

    def unstall(self) -> None:
        """Process frames again."""
        self._stalled -= 1
        self.resume()

    def gives_way(self) -> bool:
        """Whether the frames that are left must wait, so that other clients have their turn."""
        if self._stalled:
            return True
        if not self.hooks.is_time_up():
            return False
        self.stall()
        self.hooks.unstall_soon()
        return True

    def resume(self) -> None:
        """Process what arrived during a stall."""
        if not self._stalled and self.unread:
            rest, self.unread = self.unread, b""
            self.receive(rest)

    @property
    def waiting_bytes(self) -> int:
        """How many received bytes are not processed yet."""
        return len(self.unread)

    @property
    def has_stopped(self) -> bool:
        """Whether frame processing is stalled or has ended."""
        return self._stalled > 0 or self.phase is Phase.CLOSED

    @property
    def is_stalled(self) -> bool:
        """Whether received bytes are only buffered; the server should then stop reading."""
        return self._stalled > 0

    def opened(self, vhost: VHost, user_name: str, access: Access, identity: Identity | None = None) -> None:
        """The handshake is done; ``identity``: the client logged in with a token."""
        self.vhost = vhost
        self.user_name = user_name
        self.rights = ClientRights(self.broker, vhost, user_name, access, self.token)
        self._frame_loop.opened(vhost)
        user = self.broker.users.user(user_name)
        tags = identity.tags if identity is not None else user.tags if user is not None else ()
        self.may_impersonate = self.is_trusted or "impersonator" in tags
        if identity is not None:
            self.token.begin(identity)
        self.phase = Phase.RUNNING
        self.broker.limits.connected(vhost.name, user_name)
        self.broker.counts.connections_opened += 1
        self.hooks.opened()

    def use_access(self, access: Access) -> None:
        """Use these permissions from now on; what was allowed before is checked again."""
        self.rights.use(access)
        self._frame_loop.opened(self.vhost)

    def renewed(self, identity: Identity | None) -> None:
        """A new token was checked; None: it is refused."""
        self.token.renewed(identity)

    def block(self, reason: str) -> None:
        """Publishers must wait: tell the client if it supports connection.blocked."""
        if not self.blocked and self.is_running:
            self.blocked = True
            if self.wants_blocked:
                self.send(ConnectionBlocked(reason))

    def unblock(self) -> None:
        """Publishers may go on."""
        if self.blocked:
            self.blocked = False
            if self.wants_blocked and self.is_running:
                self.send(ConnectionUnblocked())

    def wake_consumers(self) -> None:
        """Try to deliver again: the outbox has room."""
        for channel in self.channels.values():
            channel.wake_consumers()

    def send_heartbeat(self) -> None:
        """Send a heartbeat frame."""
        self.outbox.append(HEARTBEAT)

    def fail(self, error: AmqpError, which: int = 0) -> None:
        """Close from our side with a reason."""
        if self.phase in (Phase.CLOSING, Phase.CLOSED):
            return
        if self.phase is Phase.PROTOCOL or self._fails_silently(error):
            self.end(str(error))
            return
        self._leave()
        self.send(ConnectionClose(error.code, error.reply_text, which >> 16, which & 0xFFFF))
        self.phase = Phase.CLOSING
        self.closed_because = error.reply_text
        self.hooks.failed(error)

    def _fails_silently(self, error: AmqpError) -> bool:
        """Whether the socket closes without a reason, as RabbitMQ's does in the handshake."""
        return (
            self.broker.dialect.silent_handshake_errors
            and self.phase is Phase.HANDSHAKE
            and not self.handshake.is_tuned
            and error.code is not ReplyCode.ACCESS_REFUSED
        )

    def end(self, reason: str) -> None:
        """End the connection; the server flushes the outbox and closes the socket."""
        if self.phase is Phase.CLOSED:
            return
        self._leave()
        self.phase = Phase.CLOSED
        self.closed_because = self.closed_because or reason
        self.hooks.ended()

    def _leave(self) -> None:
        """Close the channels, and release this connection's place in the limits, once."""
        if self.phase is Phase.RUNNING:
            self.broker.limits.disconnected(self.vhost.name, self.user_name)
            self.broker.counts.connections_closed += 1
            self.broker.counts.publishers -= self.has_published
        self.token.end()
        self._close_channels()

    def _close_channels(self) -> None:
        channels = [channel for channel in self.channels.values() if not channel.closing]
        remove_consumers(channels)  # one by one, 100,000 of one queue would be searched in its list each
        return_together([(channel, channel.begin_close()) for channel in channels])
        self.channels.clear()
        self.confirming.clear()
        self.broker.drop_exclusive_queues(self)

    def send(self, method: Method) -> None:
        """Send one method on channel 0."""
        self.outbox.append(encode_frame(FRAME_METHOD, 0, encode_method(method)))
