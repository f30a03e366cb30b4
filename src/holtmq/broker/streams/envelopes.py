"""Converts messages between AMQP (body and properties) and JSON (payload and transaction id).

Owns: the conversion both ways, without loss. Must not touch: queues, the meaning of offsets, clocks.
"""

import base64
import binascii
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from holtmq.broker.message import Message, make_address
from holtmq.broker.partitioned.commands.pushing import DEFAULT_PARTITION
from holtmq.broker.partitioned.log.bodies import AmqpMetadata, Body
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.wire.properties import (
    PROPERTIES_AT,
    Properties,
    encode_header,
    encode_properties,
    headers_end,
    raw_headers,
    with_added_headers,
)
from holtmq.wire.tables import FieldTable, encode_entry

_BASE64: Final = b'{"$base64":'
_JSON_STARTS: Final = frozenset(b' \t\n\r{["-0123456789tfn')
_PARTITION: Final = "x-partition"
PARTITION_HEADER: Final = _PARTITION.encode()
_OFFSET: Final = "x-stream-offset"
_INT: Final = Struct(">cI")  # a header's value: its type, and a 31-bit number
_json = msgspec.json
# Checks the syntax and creates no objects: 0.5 instead of 2.4 µs for 570 bytes. It does not look for UTF-8.
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def to_payload(body: bytes, *, is_json: bool = False) -> bytes:
    """An AMQP body as JSON: unchanged if it is JSON, else as a string, else in base64.

    A body that is a bare JSON string, or looks like our base64 form, is encoded as text, so that ``to_body``
    needs no marker. With ``is_json`` the publisher declared JSON, and the result cannot be converted back.
    """
    # The first byte excludes most bodies that are not JSON, cheaper than a failed decode.
    if body and body[0] in _JSON_STARTS and (is_json or (body[:1] != b'"' and not body.startswith(_BASE64))):
        try:
            _check_json(body)
            if not body.isascii():
                body.decode()
            return body
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # nested too deeply to decode
            pass
    if body.isascii():
        return _json.encode(body.decode())
    # An exception would cost twice as much as this comparison, and binary bodies are common.
    text = body.decode("utf-8", "ignore")
    if len(text.encode()) == len(body):
        return _json.encode(text)
    return _BASE64 + b'"' + binascii.b2a_base64(body, newline=False) + b'"}'


def to_body(payload: bytes) -> bytes:
    """Undo ``to_payload``. A payload that never was an AMQP body is returned unchanged."""
    if payload[:1] == b'"':
        return _json.decode(payload, type=str).encode()
    if payload.startswith(_BASE64):
        try:
            return base64.b64decode(payload[len(_BASE64) + 1 : -2], validate=True)
        except binascii.Error:
            return payload
    return payload


class Envelope(NamedTuple):
    """What equal publishes to partitioned queues have in common."""

    partition: str
    metadata: AmqpMetadata


def envelope_of(exchange: str, routing_key: str, properties: PublishProperties) -> Envelope:
    """The envelope of a message whose properties are kept unchanged."""
    # Decode the table only if its bytes may name a partition.
    wanted = properties.headers.get(_PARTITION) if PARTITION_HEADER in properties.property_bytes else None
    metadata = AmqpMetadata(exchange, routing_key, properties.property_bytes, properties.priority)
    return Envelope(partition_named(wanted, routing_key), metadata)


def partition_of(message: Message) -> str:
    """The partition for a published message."""
    return partition_named(raw_headers(message.header[PROPERTIES_AT:]).get(_PARTITION), message.routing_key)


def partition_named(wanted: object, routing_key: str) -> str:
    """The partition for a routing key and a wanted partition, if that is a name."""
    return readable(wanted if isinstance(wanted, str) and wanted else routing_key) or DEFAULT_PARTITION


def readable(name: str) -> str:
    """AMQP lets a key, an id or a header's name be any bytes: escape those that are not valid UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return name


def body_of(message: Message, transaction_id: str) -> Body:
    """A published message as a partitioned queue stores it."""
    metadata = AmqpMetadata(
        message.exchange, message.routing_key, message.header[PROPERTIES_AT:], message.priority
    )
    return Body(transaction_id, to_payload(message.body), metadata=metadata)


def message_of(queue: str, partition: str, offset: int, created_us: int, stored: Body) -> Message:
    """A stored message as an AMQP consumer gets it, with its offset in the header ``x-stream-offset``."""
    extra: FieldTable = {_OFFSET: offset, _PARTITION: partition}
    if stored.metadata is None:
        body = stored.payload
        address = make_address("", queue)
        properties = encode_properties(
            Properties(
                content_type="application/json",
                delivery_mode=2,
                message_id=stored.transaction_id if len(stored.transaction_id.encode()) < 256 else None,
                headers=extra,
            )
        )
        priority = 0
    else:
        body = to_body(stored.payload)
        address = make_address(stored.metadata.exchange, stored.metadata.routing_key)
        properties = with_added_headers(stored.metadata.header, extra)
        priority = stored.metadata.priority
    return Message(
        offset, address, encode_header(len(body), properties), body, created_us // 1000, 0, priority, True
    )


class Showing:
    """Converts consecutive messages of one queue as ``message_of`` does.

    Neighbouring messages mostly have the same properties and differ only in body and offset. Rewriting only
    those takes a tenth of the time.
    """

    __slots__ = ("_address", "_after", "_before", "_metadata", "_partition", "_queue")

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._metadata: AmqpMetadata | None = None
        self._partition = ""
        self._before: bytes | None = None  # property bytes up to the offset; None: not known
        self._after = b""
        self._address = b""

    def message(self, partition: str, offset: int, created_us: int, stored: Body) -> Message:
        metadata = stored.metadata
        alike = metadata is not None and metadata is self._metadata and partition == self._partition
        if metadata is None or not alike or self._before is None or offset > 0x7FFF_FFFF:
            message = message_of(self._queue, partition, offset, created_us, stored)
            self._before = self._up_to_offset(message) if alike else None
            self._metadata, self._partition = metadata, partition
            return message
        body = to_body(stored.payload)
        properties = self._before + _INT.pack(b"I", offset) + self._after
        header = encode_header(len(body), properties)
        return Message(offset, self._address, header, body, created_us // 1000, 0, metadata.priority, True)

    def _up_to_offset(self, message: Message) -> bytes | None:
        """Remember what the next message will have in common; None if the offset is encoded differently."""
        properties = message.header[PROPERTIES_AT:]
        end = headers_end(properties) - len(encode_entry(_PARTITION, self._partition))
        start = end - _INT.size
        if message.seq > 0x7FFF_FFFF or properties[start:end] != _INT.pack(b"I", message.seq):
            return None
        self._after, self._address = properties[end:], message.address
        return properties[:start]
