"""One AMQP connection, sans-IO: bytes in, broker calls and frames out.

Owns: reading, stalls, the channels, closing. Must not touch: sockets, clocks, argon2; the server passes
bytes in, writes the outbox and implements ``Hooks``. The frame loop with the per-message code is in
``frame_loop.py``, other frames in ``dispatch.py``.
"""

from typing import Final

from holtmq.amqp.channel import Channel
from holtmq.amqp.client_rights import ClientRights
from holtmq.amqp.codec import encode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.consuming import remove_consumers
from holtmq.amqp.errors import AmqpError, ConnectionFault
from holtmq.amqp.frame_loop import FrameLoop
from holtmq.amqp.frames import FRAME_METHOD, HEARTBEAT, encode_frame
from holtmq.amqp.handshake import NO_SOCKET, OLD_PROTOCOL_HEADER, PROTOCOL_HEADER, Handshake, Hooks, Settings
from holtmq.amqp.long_settlements import releasing, return_together
from holtmq.amqp.methods import (
    ChannelClose,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionUnblocked,
    Method,
)
from holtmq.amqp.outbox import Outbox
from holtmq.amqp.phase import Phase
from holtmq.amqp.publish_caches import PublishCaches
from holtmq.amqp.publish_run import PublishRun
from holtmq.amqp.token_life import TokenLife
from holtmq.auth.permissions import Access
from holtmq.auth.rights import Identity
from holtmq.broker.broker import Broker
from holtmq.broker.figures.client_counts import ConnectionMessages
from holtmq.broker.topology.vhost import VHost
from holtmq.journal.interface import JournalFailed
from holtmq.wire.primitives import CodecError

_OVERHEAD: Final = 8
_COPIED: Final = 16_384  # a read smaller than this is appended to the unread rest of the last one


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
            self.tell_confirms()

    def tell_confirms(self) -> None:
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

    def fail_channel(self, channel: Channel, error: AmqpError, which: int) -> None:
        if isinstance(error, ConnectionFault):
            self.fail(error, which)
            return
        if channel.closing:  # what it asked for before has failed meanwhile
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

    def released(self) -> None:
        """The socket is closed. Refer to nothing that refers back: then no garbage collection is needed."""
        self.hooks = NO_SOCKET
        self.outbox = Outbox(NO_SOCKET.has_output)
        del self._frame_loop

    def _leave(self) -> None:
        """Close the channels, and release this connection's place in the limits, once."""
        if self.phase is Phase.RUNNING:
            self.broker.limits.disconnected(self.vhost.name, self.user_name)
            self.broker.counts.connections_closed += 1
            self.broker.counts.publishers -= self.has_published
        self.token.end()
        self.close_channels()

    def close_channels(self) -> None:
        """Close all channels; very many deliveries return to their queues in steps."""
        channels = [channel for channel in self.channels.values() if not channel.closing]
        remove_consumers(channels)  # one by one, 100,000 of one queue would be searched in its list each
        gone: list[object] = [one for channel in channels for one in channel.consumers.values()]
        done = releasing(channels, gone)
        return_together([(channel, channel.begin_close(done)) for channel in channels])
        self.channels.clear()
        done()
        self.confirming.clear()
        self.broker.drop_exclusive_queues(self)

    def send(self, method: Method) -> None:
        """Send one method on channel 0."""
        self.outbox.append(encode_frame(FRAME_METHOD, 0, encode_method(method)))
