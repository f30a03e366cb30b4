"""The types of exchanges, and the exchanges of every vhost.

Owns: their names. Must not touch: bindings.
"""

from enum import Enum
from typing import Final

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.destinations import Table
from holtmq.broker.topology.equivalence import shown


class Kind(Enum):
    DIRECT = "direct"
    FANOUT = "fanout"
    TOPIC = "topic"
    HEADERS = "headers"
    CONSISTENT_HASH = "x-consistent-hash"
    DELAYED = "x-delayed-message"
    RANDOM = "x-random"
    MODULUS_HASH = "x-modulus-hash"
    RECENT_HISTORY = "x-recent-history"


# Name, kind, internal. They exist in every vhost, are durable and cannot be deleted.
PREDECLARED: Final = (
    ("", Kind.DIRECT, False),
    ("amq.direct", Kind.DIRECT, False),
    ("amq.fanout", Kind.FANOUT, False),
    ("amq.topic", Kind.TOPIC, False),
    ("amq.headers", Kind.HEADERS, False),
    ("amq.match", Kind.HEADERS, False),
    ("amq.rabbitmq.trace", Kind.TOPIC, True),
)


def delayed_kind(arguments: Table) -> Kind:
    """How a delayed exchange routes; raises Conflict when its arguments do not say."""
    wanted = arguments.get("x-delayed-type")
    kind = next((kind for kind in Kind if kind.value == wanted and kind is not Kind.DELAYED), None)
    if kind is None:
        raise Conflict(
            "Invalid argument, 'x-delayed-type' must be an existing exchange type, "
            + (f"not '{shown(wanted)}'" if "x-delayed-type" in arguments else "and it is missing")
        )
    return kind
