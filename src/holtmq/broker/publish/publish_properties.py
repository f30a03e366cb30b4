"""What publishing asks of a message's properties, read once and cached by their bytes.

Owns: the meaning of delivery mode, priority, expiration, CC, BCC, x-delay, reply-to and user id.
Must not touch: the properties nobody asks about; they pass through raw.
"""

from typing import Final

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.equivalence import type_name
from holtmq.broker.topology.routing import delay_of
from holtmq.wire.properties import (
    PROPERTIES_AT,
    body_size,
    decode_properties,
    facts,
    raw_headers,
    with_headers,
)
from holtmq.wire.tables import FieldTable

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
_PERSISTENT: Final = 2
_MAX_TTL_MS: Final = 2**32 - 1
_CACHE_MAX: Final = 4_096
_CACHE_HEADER_MAX: Final = 2_048  # a header may fill a frame; thousands of those are not worth the memory


class Traits:
    """The rules' view of one set of property bytes."""

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
        found = facts(header)
        self.property_bytes = header[PROPERTIES_AT:]
        self.persistent = found.delivery_mode == _PERSISTENT
        self.priority = found.priority or 0
        self.ttl_ms = None if found.expiration is None else _ttl_ms(found.expiration)
        self.user_id = found.user_id
        self.direct_reply = found.reply_to == DIRECT_REPLY_TO
        self._headers: FieldTable | None = None if found.headers_at else {}
        self.extra_keys: list[str] = []
        self.visible_bytes: bytes | None = None  # property bytes without BCC, when there was one
        # The table is decoded only when these bytes say that it may hold something of ours.
        if found.headers_at and b"CC" in self.property_bytes:
            self.extra_keys = _keys(self.headers, "CC") + _keys(self.headers, "BCC")
            if "BCC" in self.headers:
                visible = {key: value for key, value in self.headers.items() if key != "BCC"}
                self.visible_bytes = with_headers(self.property_bytes, visible, drop_expiration=False)
        # Nothing here can change where a message goes by its key or what is delivered.
        self.plain = not self.extra_keys and self.user_id is None and not self.direct_reply

    @property
    def headers(self) -> FieldTable:
        """The headers table, decoded when first asked for."""
        if self._headers is None:
            self._headers = raw_headers(self.property_bytes)
        return self._headers

    @property
    def delay_ms(self) -> int:
        """What a delayed exchange is asked to wait."""
        return delay_of(self.headers)

    def hash_properties(self) -> dict[str, object]:
        """The properties a consistent-hash exchange may look at."""
        properties = decode_properties(self.property_bytes)
        return {
            "message_id": properties.message_id,
            "correlation_id": properties.correlation_id,
            "timestamp": properties.timestamp,
        }


class TraitsCache:
    """Publishers repeat themselves: traits by content header, and by property bytes for other sizes."""

    __slots__ = ("_by_bytes", "by_header")

    def __init__(self) -> None:
        # Also the one copy of a header that its messages share: a deep queue keeps it once.
        self.by_header: dict[bytes, tuple[Traits, bytes]] = {}
        self._by_bytes: dict[bytes, Traits] = {}

    def of(self, header: bytes) -> Traits:
        """Traits of a content header; CodecError or Conflict when it makes no sense."""
        return self.shared(header)[0]

    def shared(self, header: bytes) -> tuple[Traits, bytes]:
        """Traits, and the copy of the header to keep."""
        found = self.by_header.get(header)
        if found is not None:
            return found
        body_size(header)  # refuses what is not a basic content header
        if len(header) > _CACHE_HEADER_MAX:
            return Traits(header), header
        property_bytes = header[PROPERTIES_AT:]
        traits = self._by_bytes.get(property_bytes)
        if traits is None:
            traits = Traits(header)
            if len(self._by_bytes) >= _CACHE_MAX:
                self._by_bytes.clear()
            self._by_bytes[property_bytes] = traits
        if len(self.by_header) >= _CACHE_MAX:
            self.by_header.clear()
        found = self.by_header[header] = (traits, header)
        return found


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
