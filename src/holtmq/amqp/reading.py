"""The frames of one connection's reads, sans-IO: what happens once a message.

Owns: framing, what is known about publishes that repeat, contents that come in pieces. Must not touch:
sockets, and methods other than publish and ack, which are the connection's and its channels'.
"""

import struct
from typing import TYPE_CHECKING, Final

from holtmq.amqp.channel import Channel
from holtmq.amqp.codec import decode_method
from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import AmqpError, ChannelFault, ConnectionFault, channel_error
from holtmq.amqp.methods import BasicPublish
from holtmq.auth.permissions import Action
from holtmq.broker.errors import BrokerError
from holtmq.broker.publish.routes import Imprint, Route
from holtmq.broker.topology.vhost import VHost
from holtmq.wire.properties import body_size

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection

_FRAME: Final = struct.Struct(">BHI").unpack_from
_ACK: Final = struct.Struct(">QH").unpack_from  # tag; flags and frame end
_ACK_FRAMES: Final = struct.Struct(">11sQH").iter_unpack  # frame head and method before those
_ACK_TAG_AT: Final = 11
_ACK_BYTES: Final = 21
_ACK_SIZE: Final = 13  # of its payload
_ACKS_MIN: Final = 4 * _ACK_BYTES  # with fewer in a read it is quicker to take each for itself
_ONE: Final = 0x00CE
_MULTIPLE: Final = 0x0100
_ACK_ID: Final = 0x003C0050
_BASIC_ACK: Final = b"\x00\x3c\x00\x50"
_BASIC_PUBLISH: Final = b"\x00\x3c\x00\x28"
_PUBLISH_ID: Final = 0x003C0028
_HEADER_FRAME: Final = struct.Struct(">BHIHHQ").unpack_from  # and the start of its payload
_HEADER_MIN: Final = 7 + 14 + 1
_ROUTES_MAX: Final = 4_096
_KNOWN_MAX: Final = 1_024
_PREFIX_MAX: Final = 512
_OVERHEAD: Final = 8


class _Publish:
    """What the bytes before a body say."""

    __slots__ = ("body_bytes", "channel", "imprint", "mandatory")

    def __init__(self, channel: Channel, imprint: Imprint, mandatory: bool, body_bytes: int) -> None:
        self.channel = channel
        self.imprint = imprint
        self.mandatory = mandatory
        self.body_bytes = body_bytes


class Reading:
    """Works off what a connection has read."""

    __slots__ = (
        "_channels",
        "_connection",
        "_known",
        "_last_reach",
        "_reach",
        "_routes",
        "_routes_version",
        "_traits",
        "_vhost",
    )

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._channels = connection.channels
        self._routes: dict[bytes, tuple[Route, bool]] = {}
        self._routes_version = 0
        self._vhost: VHost | None = None
        self._traits = connection.flow.traits.by_header
        self._known: dict[bytes, _Publish] = {}  # by method, header and head of the body's frame
        self._reach = 0  # how long the prefixes are that are looked for
        self._last_reach = 0  # of the last publish that was not known

    def opened(self, vhost: VHost) -> None:
        """The client is in: from here on there are routes."""
        self._vhost = vhost

    def frames(self, data: bytes, at: int) -> None:
        """Every whole frame in ``data`` from ``at``; leaves the rest for the next read.

        The loop over a read is the hot path: acks and publishes are recognised here, everything
        else is a method call away.
        """
        end = len(data)
        channels = self._channels
        channel: Channel | None
        routes = self._fresh_routes()
        connection = self._connection
        max_payload = connection.max_payload
        known, reach = self._known, self._reach
        gathered = connection.flow.gathered
        while end - at >= _OVERHEAD:
            if reach and (publish := known.get(data[at : at + reach])) is not None:
                body_at = at + reach
                stop = body_at + publish.body_bytes
                channel = publish.channel
                if (
                    stop < end
                    and data[stop] == 0xCE
                    and channel.partial_route is None
                    and not channel.closing
                ):
                    at = stop + 1
                    try:
                        channel.publish_like(publish.imprint, publish.mandatory, data[body_at:stop])
                    except BrokerError as error:
                        self._fail(channel, channel_error(error), _PUBLISH_ID)
                    continue
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
                if size == _ACK_SIZE and data.startswith(_BASIC_ACK, payload_at):
                    tags = self._tags(data, at, end) if end - at >= _ACKS_MIN else ()
                    tag, flags_and_end = _ACK(data, payload_at + 4)
                    at += (len(tags) or 1) * _ACK_BYTES
                    if gathered:
                        connection.flow.write_gathered()  # what was published first is written first
                    try:
                        if tags:
                            channel.ack_each(tags)
                        else:
                            channel.ack(tag, flags_and_end & _MULTIPLE != 0)
                    except ChannelFault as error:
                        # Those behind the one at fault are passed over, like all that a closing channel gets.
                        self._fail(channel, error, _ACK_ID)
                    continue
                raw = data[payload_at:stop]
                found = routes.get(raw)
                if found is not None or raw[:4] == _BASIC_PUBLISH:
                    at = stop + 1
                    if found is None:
                        found = self._resolve(channel, raw)
                        if found is None:
                            continue
                    at = self._content(channel, found, data, at - size - _OVERHEAD, at, end)
                    reach = self._reach
                    continue
            at = stop + 1
            if gathered:
                connection.flow.write_gathered()
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

    @staticmethod
    def _tags(data: bytes, at: int, end: int) -> list[int]:
        """The tags of all acks in a row from here that are for one delivery of one channel."""
        tags: list[int] = []
        whole = memoryview(data)[at : end - (end - at) % _ACK_BYTES]
        head = data[at : at + _ACK_TAG_AT]
        for found, tag, flags_and_end in _ACK_FRAMES(whole):
            if found != head or flags_and_end != _ONE:
                break
            tags.append(tag)
        return tags

    # -- publishing ------------------------------------------------------------------------------

    def _fresh_routes(self) -> dict[bytes, tuple[Route, bool]]:
        """Publish methods seen before, with where they lead; forgotten when the topology changes."""
        vhost = self._vhost
        if vhost is not None and (self._routes_version != vhost.version or len(self._routes) > _ROUTES_MAX):
            self._routes.clear()
            self._known.clear()
            self._routes_version = vhost.version
        return self._routes

    def _fail(self, channel: Channel, error: AmqpError, which: int) -> None:
        """Close the channel. Its consumers leave, and queues may go with the last of them."""
        self._connection.fail_channel(channel, error, which)
        self._fresh_routes()

    def _content(
        self, channel: Channel, found: tuple[Route, bool], data: bytes, method_at: int, at: int, end: int
    ) -> int:
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
            if body_at - method_at == self._last_reach and header in self._traits:
                self._remember(channel, found, data[method_at:body_at], header, size)
            self._last_reach = body_at - method_at
        try:
            channel.publish(found[0], found[1], header, body)
        except ChannelFault as error:
            self._fail(channel, error, _PUBLISH_ID)
        except BrokerError as error:
            self._fail(channel, channel_error(error), _PUBLISH_ID)
        return after

    def _remember(
        self, channel: Channel, found: tuple[Route, bool], prefix: bytes, header: bytes, body_bytes: int
    ) -> None:
        """Know the next publish like this one by all its bytes before the body.

        Publishers repeat themselves, and one lookup then stands for three frames. Only prefixes of one length
        are looked for: that of two publishes in a row, since where lengths alternate looking is in vain. And
        only headers that were seen before get here: others may never come again.
        """
        shared = self._traits[header]
        if not shared[0].plain or len(prefix) > _PREFIX_MAX:
            return
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[prefix] = _Publish(channel, Imprint(found[0], *shared), found[1], body_bytes)
        self._reach = len(prefix)

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
            connection.check_topic(method.exchange, method.routing_key, write=True)
            route = connection.broker.resolve(
                connection.vhost, method.exchange, method.routing_key, raw[6:-1]
            )
        except BrokerError as error:
            self._fail(channel, channel_error(error), _PUBLISH_ID)
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
