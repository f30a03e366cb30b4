"""The types of exchanges, and the exchanges of every vhost.

Owns: their names. Must not touch: bindings.
"""

from enum import Enum
from typing import Final

from holtmq.broker.errors import Conflict
from holtmq.broker.topology.destinations import Table
from holtmq.broker.topology.equivalence import shown


class ExchangeKind(Enum):
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
    ("", ExchangeKind.DIRECT, False),
    ("amq.direct", ExchangeKind.DIRECT, False),
    ("amq.fanout", ExchangeKind.FANOUT, False),
    ("amq.topic", ExchangeKind.TOPIC, False),
    ("amq.headers", ExchangeKind.HEADERS, False),
    ("amq.match", ExchangeKind.HEADERS, False),
    ("amq.rabbitmq.trace", ExchangeKind.TOPIC, True),
)


def delayed_kind(arguments: Table) -> ExchangeKind:
    """How a delayed exchange routes; raises Conflict when its arguments do not say."""
    wanted = arguments.get("x-delayed-type")
    kind = next(
        (kind for kind in ExchangeKind if kind.value == wanted and kind is not ExchangeKind.DELAYED), None
    )
    if kind is None:
        raise Conflict(
            "Invalid argument, 'x-delayed-type' must be an existing exchange type, "
            + (f"not '{shown(wanted)}'" if "x-delayed-type" in arguments else "and it is missing")
        )
    return kind
