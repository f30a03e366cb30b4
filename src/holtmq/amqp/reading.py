"""The frames of one connection's reads, sans-IO: what happens once a message.

Owns: framing, resolved routes, contents that come in pieces. Must not touch: sockets, and methods other
than publish and ack, which are the connection's and its channels'.
"""

import struct
from typing import TYPE_CHECKING, Final

from holtmq.amqp.channel import Channel
from holtmq.amqp.codec import decode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ChannelFault, ConnectionFault, channel_error
from holtmq.amqp.methods import BasicPublish
from holtmq.auth.permissions import Action
from holtmq.broker.errors import BrokerError
from holtmq.broker.routes import Route
from holtmq.wire.properties import body_size

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection

_FRAME: Final = struct.Struct(">BHI").unpack_from
_ACK: Final = struct.Struct(">IQB").unpack_from
_BASIC_ACK: Final = 0x003C0050
_BASIC_PUBLISH: Final = b"\x00\x3c\x00\x28"
_PUBLISH_ID: Final = 0x003C0028
_HEADER_FRAME: Final = struct.Struct(">BHIHHQ").unpack_from  # and the start of its payload
_HEADER_MIN: Final = 7 + 14 + 1
_ROUTES_MAX: Final = 4_096
_OVERHEAD: Final = 8


class Reading:
    """Works off what a connection has read."""

    __slots__ = ("_channels", "_connection", "_routes", "_routes_version")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._channels = connection.channels
        self._routes: dict[bytes, tuple[Route, bool]] = {}
        self._routes_version = 0

    def frames(self, data: bytes, at: int) -> None:
        """Every whole frame in ``data`` from ``at``; leaves the rest for the next read.

        The loop over a read is the hot path: acks and publishes are recognised here, everything
        else is a method call away.
        """
        end = len(data)
        channels = self._channels
        routes = self._fresh_routes()
        connection = self._connection
        max_payload = connection.max_payload
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
                break
            if data[stop] != 0xCE:
                raise ConnectionFault(
                    ReplyCode.FRAME_ERROR, f"type {kind}: {{invalid_frame_end_marker,{data[stop]}}}"
                )
            channel = channels.get(number)
            if kind == 1 and channel is not None and not channel.closing and channel.partial_route is None:
                if size == 13:
                    method, tag, multiple = _ACK(data, payload_at)
                    if method == _BASIC_ACK:
                        at = stop + 1
                        try:
                            channel.ack(tag, multiple & 1 == 1)
                        except ChannelFault as error:
                            connection.fail_channel(channel, error, _BASIC_ACK)
                        continue
                raw = data[payload_at:stop]
                found = routes.get(raw)
                if found is not None or raw[:4] == _BASIC_PUBLISH:
                    at = stop + 1
                    if found is None:
                        found = self._resolve(channel, raw)
                        if found is None:
                            continue
                    at = self._content(channel, found, data, at, end)
                    continue
            at = stop + 1
            connection.unread = data[at:]  # what remains if this frame stalls the connection
            if kind == 1 and channel is not None and not channel.closing and channel.partial_route is None:
                connection.run_method(channel, number, raw)
            else:
                connection.other_frame(kind, number, channel, data[payload_at:stop])
            if connection.has_stopped:
                return
            max_payload = connection.max_payload
            routes = self._fresh_routes()
        connection.unread = data[at:] if at else data

    # -- publishing ------------------------------------------------------------------------------

    def _fresh_routes(self) -> dict[bytes, tuple[Route, bool]]:
        """Publish methods seen before, with where they lead; forgotten when the topology changes."""
        connection = self._connection
        if connection.is_running and (
            self._routes_version != connection.vhost.version or len(self._routes) > _ROUTES_MAX
        ):
            self._routes.clear()
            self._routes_version = connection.vhost.version
        return self._routes

    def _content(self, channel: Channel, found: tuple[Route, bool], data: bytes, at: int, end: int) -> int:
        """The content of a publish, if all of it is in this read. Returns where to go on."""
        if end - at < _HEADER_MIN:
            return self._begin_content(channel, found, at)
        kind, number, size, _, _, length = _HEADER_FRAME(data, at)
        stop = at + 7 + size
        if kind != 2 or number != channel.number or stop >= end or data[stop] != 0xCE or size < 14:
            return self._begin_content(channel, found, at)
        header = data[at + 7 : stop]
        after: int = stop + 1
        body = b""
        if length:
            if end - after < _OVERHEAD or length > self._connection.settings.max_message_bytes:
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
            self._connection.fail_channel(channel, error, _PUBLISH_ID)
        except BrokerError as error:
            self._connection.fail_channel(channel, channel_error(error), _PUBLISH_ID)
        return after

    def _begin_content(self, channel: Channel, found: tuple[Route, bool], at: int) -> int:
        """The content comes in pieces: remember the method, take frame after frame."""
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
            connection.check(Action.WRITE, method.exchange)
            route = connection.broker.resolve(
                connection.vhost, method.exchange, method.routing_key, raw[6:-1]
            )
        except BrokerError as error:
            connection.fail_channel(channel, channel_error(error), _PUBLISH_ID)
            return None
        connection.has_published = True
        found = route, method.mandatory
        self._routes[raw] = found
        return found

    def content_frame(self, channel: Channel, kind: int, payload: bytes) -> None:
        found = channel.partial_route
        assert found is not None
        if channel.partial_header is None:
            if kind != 2:
                raise ConnectionFault(
                    ReplyCode.UNEXPECTED_FRAME,
                    "expected content header for class 60, got non content header frame instead",
                    _PUBLISH_ID,
                )
            length = body_size(payload)
            most = self._connection.settings.max_message_bytes
            if length > most:
                channel.partial_route = None
                fault = ChannelFault(
                    ReplyCode.PRECONDITION_FAILED,
                    f"message size {length} is larger than configured max size {most}",
                )
                self._connection.fail_channel(channel, fault, _PUBLISH_ID)
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
                self._connection.fail_channel(channel, channel_error(error), _PUBLISH_ID)
            except ChannelFault as error:
                self._connection.fail_channel(channel, error, _PUBLISH_ID)
