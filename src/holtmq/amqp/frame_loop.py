"""The frame loop of one connection, sans-IO, with the per-message code.

Owns: framing, the general path of publishing, contents that span several reads. Must not touch: sockets,
the fast path of publishing (``publish_run.py``), methods other than publish and ack (``dispatch.py``,
``channel.py``).
"""

import struct
from typing import TYPE_CHECKING, Final

from holtmq.amqp.channel import Channel
from holtmq.amqp.codec import decode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.dispatch import Dispatch
from holtmq.amqp.errors import AmqpError, ChannelFault, ConnectionFault, channel_error
from holtmq.amqp.methods import BasicPublish
from holtmq.amqp.publish_caches import PublishCaches, publish_caches
from holtmq.amqp.publish_run import PublishRun
from holtmq.auth.permissions import Action
from holtmq.broker.errors import BrokerError
from holtmq.broker.publish.routes import Route
from holtmq.broker.topology.vhost import VHost
from holtmq.wire.properties import body_size

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection

_FRAME: Final = struct.Struct(">BHI").unpack_from
_ACK: Final = struct.Struct(">QH").unpack_from  # tag; flags and frame end
_ACK_FRAMES: Final = struct.Struct(">11sQH").iter_unpack  # frame head and method id, then those
_ACK_TAG_AT: Final = 11
_ACK_BYTES: Final = 21
_ACKS_MAX: Final = 2_000 * _ACK_BYTES  # those of a consumer group take up to 15 ms
_ACK_SIZE: Final = 13  # payload size
_ACKS_MIN: Final = 4 * _ACK_BYTES  # with fewer in a read it is faster to handle each one alone
_ONE: Final = 0x00CE
_MULTIPLE: Final = 0x0100
_ACK_ID: Final = 0x003C0050
_BASIC_ACK: Final = b"\x00\x3c\x00\x50"
_BASIC_PUBLISH: Final = b"\x00\x3c\x00\x28"
_PUBLISH_ID: Final = 0x003C0028
_HEADER_FRAME: Final = struct.Struct(">BHIHHQ").unpack_from  # and the start of its payload
_HEADER_MIN: Final = 7 + 14 + 1
_OVERHEAD: Final = 8
_PIECE: Final = 8_192  # a shorter piece of a body frame is joined with the next read


class FrameLoop:
    """Processes what a connection has read."""

    __slots__ = (
        "_after",
        "_caches",
        "_channels",
        "_connection",
        "_cut",
        "_cut_bytes",
        "_dispatch",
        "_found",
        "_may_write",
        "_rules_version",
        "_run",
    )

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._channels = connection.channels
        self._dispatch = Dispatch(connection)
        self._run: PublishRun | None = None
        self._found: tuple[Route, bool] | None = None  # of the last publish on the general path
        self._caches: PublishCaches
        self._may_write: set[str] = set()  # exchanges whose write permission was checked and granted
        self._rules_version = 0
        self._after = 0  # offset after the frame being processed
        self._cut: Channel | None = None  # the last read ended within a body frame of this channel
        self._cut_bytes = 0  # of its payload still to come

    def opened(self, vhost: VHost) -> None:
        """The client may publish now: the handshake is done, or its permissions have changed."""
        self._may_write.clear()
        self._found = None
        self._caches = publish_caches(vhost)
        self._run = self._connection.make_publish_run(vhost, self._caches)

    def frames(self, data: bytes, at: int) -> None:
        """Process every complete frame in ``data`` from ``at`` on; keep the rest for the next read."""
        connection = self._connection
        connection.unread = b""
        self._after = at
        try:
            at = self._frames(data, at)
        except AmqpError:
            # The connection is being closed, but the client's close-ok may be among what follows.
            connection.unread = data[self._after :]
            raise
        if at < len(data):
            connection.unread = data[at:] if at else data

    def _frames(self, data: bytes, at: int) -> int:
        """Process complete frames; return the offset of the rest.

        Runs of publishes and of acks have their own loops; other frames cost a method call each.
        """
        end = len(data)
        channels = self._channels
        channel: Channel | None
        connection = self._connection
        max_payload = connection.max_payload
        pending = connection.flow.pending_publishes
        run = self._run
        elsewhere = b""  # a publish frame known to need the general path; reset when the topology may change
        while end - at >= _OVERHEAD:
            kind, number, size = _FRAME(data, at)
            payload_at = at + 7
            stop = payload_at + size
            if size > max_payload:
                raise ConnectionFault(
                    ReplyCode.FRAME_ERROR,
                    f"type {kind}: {{frame_too_large,{size},{max_payload}}}",
                )
            if stop >= end:
                if (
                    kind == 3
                    and end - payload_at >= _PIECE
                    and self._cut_body(number, size, data, payload_at)
                ):
                    return end
                break
            if data[stop] != 0xCE:
                raise ConnectionFault(
                    ReplyCode.FRAME_ERROR, f"type {kind}: {{invalid_frame_end_marker,{data[stop]}}}"
                )
            self._after = stop + 1
            channel = channels.get(number)
            if kind == 1 and channel is not None and not channel.closing and channel.partial_route is None:
                if size == _ACK_SIZE and data.startswith(_BASIC_ACK, payload_at):
                    tags = self._tags(data, at, end) if end - at >= _ACKS_MIN else ()
                    tag, flags_and_end = _ACK(data, payload_at + 4)
                    at += (len(tags) or 1) * _ACK_BYTES
                    if pending:
                        connection.flow.write_pending_publishes()  # earlier publishes are journalled first
                    try:
                        if tags:
                            channel.settling.ack_each(tags)
                        else:
                            channel.settling.ack(tag, flags_and_end & _MULTIPLE != 0)
                    except (ChannelFault, BrokerError) as error:
                        # The acks after the wrong one are ignored, like all input of a closing channel.
                        fault = channel_error(error) if isinstance(error, BrokerError) else error
                        self._fail(channel, fault, _ACK_ID)
                    if connection.has_stopped:  # very many are being settled in steps
                        break
                    if (tags or channel.closing) and at < end and connection.gives_way():
                        break
                    continue
                if run is not None and data.startswith(_BASIC_PUBLISH, payload_at):
                    found = self._found
                    if elsewhere and data.startswith(elsewhere, at):
                        if found is not None and found[0].version == found[0].vhost.version:
                            at = self._content(channel, found, data, stop + 1, end)
                            if at < end and connection.gives_way():
                                break
                            continue
                    else:
                        after = run.take(channel, data, at, end)
                        elsewhere = run.elsewhere
                        if after != at:
                            at = after
                            self._found = None  # an earlier publish's, not that of the one that ended the run
                            if at < end and connection.gives_way():
                                break
                            continue
                    at = self._publish(channel, data, payload_at, stop, end)
                    if at < end and connection.gives_way():
                        break
                    continue
            at = stop + 1
            if pending:
                connection.flow.write_pending_publishes()
            if kind == 1 and channel is not None and not channel.closing and channel.partial_route is None:
                self._dispatch.method(channel, number, data[payload_at:stop])
            else:
                self._dispatch.other_frame(kind, number, channel, data[payload_at:stop], self.content_frame)
            if connection.has_stopped or (at < end and connection.gives_way()):
                break
            max_payload = connection.max_payload
            run, elsewhere = self._run, b""
        return at

    def _cut_body(self, number: int, size: int, data: bytes, at: int) -> bool:
        """Keep the piece of a body frame that ends this read; False if its channel awaits none."""
        channel = self._channels.get(number)
        if channel is None or channel.partial_header is None or not self._is_open(channel):
            return False
        # A view saves a copy. It keeps the whole read, so only one of them: that of the body's last frame.
        piece = memoryview(data)[at:] if size == channel.partial_missing else data[at:]
        channel.partial_body.append(piece)
        channel.partial_missing -= len(piece)
        self._cut = channel
        self._cut_bytes = size - len(piece)
        return True

    @property
    def is_within_body(self) -> bool:
        """Whether the last read ended within a body frame whose beginning was processed."""
        return self._cut is not None

    def rest_of_body(self, data: bytes) -> int:
        """Add to the body frame that the last read has cut; return the offset after it."""
        channel = self._cut
        assert channel is not None
        stop = self._cut_bytes
        is_wanted = self._is_open(channel)
        if stop >= len(data):
            if is_wanted:
                channel.partial_body.append(data)
                channel.partial_missing -= len(data)
            self._cut_bytes -= len(data)
            return len(data)
        self._cut = None
        if data[stop] != 0xCE:
            raise ConnectionFault(ReplyCode.FRAME_ERROR, f"type 3: {{invalid_frame_end_marker,{data[stop]}}}")
        if is_wanted:
            # Joined at once if it completes the body: then a view saves a copy.
            is_last = channel.partial_missing == stop
            self.content_frame(channel, 3, memoryview(data)[:stop] if is_last else data[:stop])
        return stop + 1

    def _is_open(self, channel: Channel) -> bool:
        """Whether the channel, which may have been closed in the middle of a content, still wants it."""
        return channel.partial_route is not None and self._channels.get(channel.number) is channel

    @staticmethod
    def _tags(data: bytes, at: int, end: int) -> list[int]:
        """The tags of a run of acks from ``at`` on, all on one channel and none of them ``multiple``."""
        tags: list[int] = []
        size = min(end - at, _ACKS_MAX)
        whole = memoryview(data)[at : at + size - size % _ACK_BYTES]
        head = data[at : at + _ACK_TAG_AT]
        for found, tag, flags_and_end in _ACK_FRAMES(whole):
            if found != head or flags_and_end != _ONE:
                break
            tags.append(tag)
        return tags

    def _publish(self, channel: Channel, data: bytes, payload_at: int, stop: int, end: int) -> int:
        """Handle one publish on the general path; return the offset after what it consumed."""
        method = data[payload_at:stop]
        found = self._caches.route(method)
        if found is None or not self._is_allowed(found[0]):
            found = self._resolve(channel, method)
        self._found = found
        if found is None:
            return stop + 1
        return self._content(channel, found, data, stop + 1, end)

    def _is_allowed(self, route: Route) -> bool:
        """Whether this user's write permission on the exchange was already checked and granted."""
        version = route.vhost.rules_version
        if self._rules_version != version:
            self._may_write.clear()
            self._rules_version = version
        return route.exchange.name in self._may_write

    def _fail(self, channel: Channel, error: AmqpError, which: int) -> None:
        """Close the channel with an error. Removing its consumers may delete auto-delete queues."""
        self._connection.fail_channel(channel, error, which)

    def _content(self, channel: Channel, found: tuple[Route, bool], data: bytes, at: int, end: int) -> int:
        """Publish if all of the content is in this read; return the offset after what was consumed."""
        if end - at < _HEADER_MIN:
            return self._begin_content(channel, found, at)
        max_payload = self._connection.max_payload
        kind, number, size, _, _, length = _HEADER_FRAME(data, at)
        stop = at + 7 + size
        if (
            kind != 2
            or number != channel.number
            or not 14 <= size <= max_payload
            or stop >= end
            or data[stop] != 0xCE
        ):
            return self._begin_content(channel, found, at)
        header = data[at + 7 : stop]
        after: int = stop + 1
        body = b""
        if length:
            if end - after < _OVERHEAD or length > min(
                max_payload, self._connection.settings.max_message_bytes
            ):
                return self._begin_content(channel, found, at)
            kind, number, size = _FRAME(data, after)
            body_at = after + 7
            stop = body_at + size
            if kind != 3 or number != channel.number or size != length or stop >= end or data[stop] != 0xCE:
                return self._begin_content(channel, found, at)
            body = data[body_at:stop]
            after = stop + 1
        try:
            channel.publish(found[0], found[1], header, body)
        except ChannelFault as error:
            self._fail(channel, error, _PUBLISH_ID)
        except BrokerError as error:
            self._fail(channel, channel_error(error), _PUBLISH_ID)
        return after

    def _begin_content(self, channel: Channel, found: tuple[Route, bool], at: int) -> int:
        """The content is not complete in this read: keep the route and collect frame by frame."""
        channel.partial_route = found
        channel.partial_header = None
        return at

    def _resolve(self, channel: Channel, raw: bytes) -> tuple[Route, bool] | None:
        method = decode_method(raw)
        assert isinstance(method, BasicPublish)
        if method.immediate:
            raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, "immediate=true", _PUBLISH_ID)
        connection = self._connection
        try:
            connection.rights.check(Action.WRITE, method.exchange)
            connection.rights.check_topic(method.exchange, method.routing_key, write=True)
            route = connection.broker.resolve(
                connection.vhost, method.exchange, method.routing_key, raw[6:-1]
            )
        except BrokerError as error:
            self._fail(channel, channel_error(error), _PUBLISH_ID)
            return None
        connection.note_published()
        if not connection.rights.restricts_topics(route.exchange):
            self._may_write.add(method.exchange)
        self._caches.offer_route(raw, route, method.mandatory)
        return route, method.mandatory

    def content_frame(self, channel: Channel, kind: int, payload: bytes | memoryview) -> None:
        """Add a frame to the content that the channel awaits, and publish it when it is complete."""
        found = channel.partial_route
        assert found is not None
        if channel.partial_header is None:
            if kind != 2:
                raise ConnectionFault(
                    ReplyCode.UNEXPECTED_FRAME,
                    "expected content header for class 60, got non content header frame instead",
                    _PUBLISH_ID,
                )
            payload = bytes(payload)
            length = body_size(payload)
            most = self._connection.settings.max_message_bytes
            if length > most:
                channel.partial_route = None
                fault = ChannelFault(
                    ReplyCode.PRECONDITION_FAILED,
                    f"message size {length} is larger than configured max size {most}",
                )
                self._fail(channel, fault, _PUBLISH_ID)
                return
            channel.partial_header = payload
            channel.partial_body = []
            channel.partial_missing = length
        else:
            if kind != 3:
                raise ConnectionFault(
                    ReplyCode.UNEXPECTED_FRAME,
                    "expected content body, got non content body frame instead",
                    _PUBLISH_ID,
                )
            channel.partial_body.append(payload)
            channel.partial_missing -= len(payload)
            if channel.partial_missing < 0:
                raise ConnectionFault(
                    ReplyCode.FRAME_ERROR, "more body bytes than the content header announced"
                )
        if channel.partial_missing == 0:
            header, body = channel.partial_header, b"".join(channel.partial_body)
            channel.partial_route = channel.partial_header = None
            channel.partial_body = []
            try:
                channel.publish(found[0], found[1], header, body)
            except BrokerError as error:
                self._fail(channel, channel_error(error), _PUBLISH_ID)
            except ChannelFault as error:
                self._fail(channel, error, _PUBLISH_ID)
