"""What the broker adds to each published message, if the settings ask for it.

Owns: the header names and RabbitMQ's meaning of them. Must not touch: routing; messages that arrive over
HTTP.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from holtmq.wire.properties import PROPERTIES_AT, raw_headers, with_headers, with_timestamp
from holtmq.wire.tables import FieldTable, Long

if TYPE_CHECKING:
    from holtmq.amqp.connection import Connection

_TIMESTAMP_HEADER: Final = "timestamp_in_ms"
_NODE_HEADER: Final = "x-routed-by"
_CLIENT_HEADER: Final = "x-client-id"


class Intercept(Enum):
    """Whether something is added, and what happens to a value that the publisher has set."""

    OFF = "off"
    KEEP = "keep"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class Interceptors:
    """The settings of one node."""

    timestamp: Intercept = Intercept.OFF
    routing_node: Intercept = Intercept.OFF
    client_id: Intercept = Intercept.OFF
    node_name: str = ""

    @property
    def are_off(self) -> bool:
        return {self.timestamp, self.routing_node, self.client_id} == {Intercept.OFF}

    def apply(self, header: bytes, connection: "Connection") -> bytes:
        """A content header with what the settings add. Raises CodecError for malformed properties."""
        properties = header[PROPERTIES_AT:]
        headers = raw_headers(properties)
        added: FieldTable = {}
        now_ms = connection.flow.now_ms
        wanted: tuple[tuple[Intercept, str, Long | str], ...] = (
            (self.timestamp, _TIMESTAMP_HEADER, Long(now_ms)),
            (self.routing_node, _NODE_HEADER, self.node_name),
            (self.client_id, _CLIENT_HEADER, connection.name or connection.user_name),
        )
        for how, name, value in wanted:
            if how is Intercept.OVERWRITE or (how is Intercept.KEEP and name not in headers):
                added[name] = value
        if added:
            properties = with_headers(properties, {**headers, **added}, drop_expiration=False)
        if self.timestamp is not Intercept.OFF:
            overwrite = self.timestamp is Intercept.OVERWRITE
            properties = with_timestamp(properties, now_ms // 1000, overwrite=overwrite)
        return header[:PROPERTIES_AT] + properties


NO_INTERCEPTORS: Final = Interceptors()
