"""What a shovel changes in a message: its address, and the properties and headers that its definition sets.

Owns: these rules. Must not touch: everything else in a message; its bytes are passed on as they arrived.
"""

from collections.abc import Callable
from typing import Final

from holtmq.broker.topology.shovels import ShovelDefinition
from holtmq.shovel.destination import Moved
from holtmq.shovel.link import Content
from holtmq.wire.properties import overlay, raw_headers, with_headers
from holtmq.wire.tables import FieldTable, FieldValue, Long

FORWARDED: Final = "x-shovelled"
FORWARDED_AT: Final = "x-shovelled-timestamp"


class Stamp:
    """Changes messages as one definition says. ``about`` describes the shovel, for the header."""

    def __init__(self, definition: ShovelDefinition, about: FieldTable, clock: Callable[[], float]) -> None:
        self._definition = definition
        self._about = about
        self._clock = clock

    def __call__(self, message: Content, offset: int | None = None) -> Moved:
        """The message as it is published."""
        definition, method = self._definition, message.method
        exchange, key = method.exchange, method.routing_key
        if definition.dest_queue is not None:
            if not definition.keep_address:
                exchange, key = "", definition.dest_queue
        else:
            if definition.dest_exchange is not None:
                exchange = definition.dest_exchange
            if definition.dest_exchange_key is not None:
                key = definition.dest_exchange_key
        return Moved(exchange, key, self._properties(message.properties), message.body, offset)

    def _properties(self, received: bytes) -> bytes:
        definition, out = self._definition, received
        if definition.properties:
            out = overlay(out, definition.properties)
        if definition.add_forward_headers:
            headers = raw_headers(out)
            before = headers.get(FORWARDED)
            trail: list[FieldValue] = [self._about, *(before if isinstance(before, list) else ())]
            out = with_headers(out, {**headers, FORWARDED: trail}, drop_expiration=False)
        if definition.add_timestamp_header:
            headers = {**raw_headers(out), FORWARDED_AT: Long(int(self._clock()))}
            out = with_headers(out, headers, drop_expiration=False)
        return out
