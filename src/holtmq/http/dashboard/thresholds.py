"""From when on something needs attention: the values, and how they are stored.

Owns: the defaults and the stored form. Must not touch: the rules, which are ``attention``'s.
"""

from contextlib import suppress

import msgspec

from holtmq.broker.broker import Broker
from holtmq.broker.topology.parameters import THRESHOLDS


class Thresholds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From when on something needs attention; seconds, messages, days."""

    unread_seconds: float = 60.0
    oldest_seconds: float = 300.0
    unacked_seconds: float = 300.0
    group_lag_seconds: float = 300.0
    growing_messages: int = 1_000
    dead_letters: int = 1
    standby_seconds: float = 30.0
    paused_seconds: float = 86_400.0
    silent_seconds: float = 120.0
    certificate_days: float = 30.0
    certificate_urgent_days: float = 7.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")


def stored_thresholds(broker: Broker) -> Thresholds:
    """The current thresholds; what cannot be read (an import may have written it) is the default."""
    stored = broker.parameters.global_value(THRESHOLDS)
    if stored is not None:
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(stored, type=Thresholds)
    return Thresholds()


def store_thresholds(broker: Broker, thresholds: Thresholds) -> None:
    """Set the thresholds, also for later starts."""
    broker.parameter_changes.put_global(THRESHOLDS, msgspec.json.encode(thresholds))
