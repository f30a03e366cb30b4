"""What publishing needs from a message's properties, parsed once and cached by their bytes.

Owns: the meaning of delivery mode, priority, expiration, CC, BCC, x-delay, reply-to and user id.
Must not touch: all other properties; they pass through raw.
"""

from typing import Final

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.equivalence import type_name
from holtmq.broker.topology.routing import delay_of
from holtmq.wire.properties import (
    PROPERTIES_AT,
    body_size,
    decode_properties,
    raw_headers,
    read_content_header,
    with_headers,
)
from holtmq.wire.tables import FieldTable

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
_PERSISTENT: Final = 2
_MAX_TTL_MS: Final = 2**32 - 1
_CACHE_BYTES: Final = 2 << 20
_CACHED_BYTES_MAX: Final = 2_048  # a header may fill a frame; large ones are not worth the memory
_ENTRY_BYTES: Final = 800  # approximate size of an entry with a decoded table
_SLOTS: Final = 4_096
_BASIC_HEADER: Final = b"\x00\x3c\x00\x00"  # class 60 and weight 0


class PublishProperties:
    """The properties that the publish rules use, for one sequence of property bytes."""

    __slots__ = (
        "_headers",
        "direct_reply",
        "extra_keys",
        "persistent",
        "plain",
        "priority",
        "property_bytes",
        "ttl_ms",
        "user_id",
        "visible_bytes",
    )

    def __init__(self, header: bytes) -> None:
        found = read_content_header(header)
        self.property_bytes = header[PROPERTIES_AT:]
        self.persistent = found.delivery_mode == _PERSISTENT
        self.priority = found.priority or 0
        self.ttl_ms = None if found.expiration is None else _ttl_ms(found.expiration)
        self.user_id = found.user_id
        self.direct_reply = found.reply_to == DIRECT_REPLY_TO
        self._headers: FieldTable | None = None if found.headers_at else {}
        self.extra_keys: list[str] = []
        self.visible_bytes: bytes | None = None  # property bytes without BCC, if there was one
        # Decode the table only if its bytes may contain CC or BCC.
        if found.headers_at and b"CC" in self.property_bytes:
            self.extra_keys = _keys(self.headers, "CC") + _keys(self.headers, "BCC")
            if "BCC" in self.headers:
                visible = {key: value for key, value in self.headers.items() if key != "BCC"}
                self.visible_bytes = with_headers(self.property_bytes, visible, drop_expiration=False)
        # Nothing here changes the route by key, or the bytes delivered.
        self.plain = not self.extra_keys and self.user_id is None and not self.direct_reply

    @property
    def headers(self) -> FieldTable:
        """The headers table, decoded on first use."""
        if self._headers is None:
            self._headers = raw_headers(self.property_bytes)
        return self._headers

    @property
    def delay_ms(self) -> int:
        """The delay requested from a delayed exchange."""
        return delay_of(self.headers)

    def visible_header(self, header: bytes) -> bytes:
        """The content header without what consumers must not see (BCC)."""
        return header if self.visible_bytes is None else header[:PROPERTIES_AT] + self.visible_bytes

    def hash_properties(self) -> dict[str, object]:
        """The properties that a consistent-hash exchange can use."""
        properties = decode_properties(self.property_bytes)
        return {
            "message_id": properties.message_id,
            "correlation_id": properties.correlation_id,
            "timestamp": properties.timestamp,
        }


class PublishPropertiesCache:
    """By property bytes, for publishes that repeat their properties and cannot take the fast path.

    Nothing is cached on first use, since most properties contain an id that never repeats.
    """

    __slots__ = ("_bytes", "_seen", "by_bytes")

    def __init__(self) -> None:
        self.by_bytes: dict[bytes, PublishProperties] = {}
        self._bytes = 0
        self._seen = [0] * _SLOTS  # the last hash of each slot

    def of(self, header: bytes) -> PublishProperties:
        """The properties of a content header. Raises CodecError or Conflict if it is invalid."""
        property_bytes = header[PROPERTIES_AT:]
        found = self.by_bytes.get(property_bytes)
        if found is not None and header.startswith(_BASIC_HEADER):
            return found
        body_size(header)  # raises if it is not a basic content header
        properties = PublishProperties(header)
        hashed = hash(property_bytes)
        slot = hashed % _SLOTS
        if self._seen[slot] != hashed:
            self._seen[slot] = hashed
        elif len(property_bytes) <= _CACHED_BYTES_MAX:
            self._bytes += 2 * len(property_bytes) + _ENTRY_BYTES
            if self._bytes > _CACHE_BYTES:
                self.by_bytes.clear()
                self._bytes = 0
            self.by_bytes[property_bytes] = properties
        return properties


def _ttl_ms(expiration: bytes) -> int:
    if not expiration.isdigit() or int(expiration) > _MAX_TTL_MS:
        shown = expiration.decode("utf-8", "backslashreplace")
        raise Conflict(f"invalid expiration '{shown}': expected milliseconds from 0 to {_MAX_TTL_MS} as text")
    return int(expiration)


def _keys(headers: FieldTable, name: str) -> list[str]:
    value = headers.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        kind = type_name(value)
        raise Conflict(f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}; an array is right')
    return [key for key in value if isinstance(key, str)]
