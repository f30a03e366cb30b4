"""How many logins were tried, by protocol, address and name.

Owns: the counters. Must not touch: credentials. An attacker can make up any number of names, so the number of
counted sources is bounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

_SOURCES_MOST: Final = 1_000
_NAME_MOST: Final = 255


class Protocol(Enum):
    """What a login came over, in RabbitMQ's words."""

    AMQP = "amqp091"
    HTTP = "http"


class Source(NamedTuple):
    """Where a login came from, and the name that it gave; both are empty in the row of further sources."""

    address: str
    name: str
    protocol: Protocol


@dataclass(slots=True)
class Attempts:
    """Logins of one kind."""

    succeeded: int = 0
    failed: int = 0

    def count(self, succeeded: bool) -> None:
        """Count one."""
        if succeeded:
            self.succeeded += 1
        else:
            self.failed += 1


@dataclass(slots=True)
class AuthAttempts:
    """Logins since the node's start, or since ``reset``. HTTP counts connections, not requests."""

    _by_protocol: dict[Protocol, Attempts] = field(default_factory=dict)
    _by_source: dict[Source, Attempts] = field(default_factory=dict)

    def count(self, protocol: Protocol, address: str, name: str, *, succeeded: bool) -> None:
        """Count one login; beyond a thousand sources, new ones share a row per protocol."""
        self.of(protocol).count(succeeded)
        source = Source(address, name[:_NAME_MOST], protocol)
        known = self._by_source.get(source)
        if known is None:
            if len(self._by_source) >= _SOURCES_MOST:
                source = Source("", "", protocol)
            known = self._by_source.setdefault(source, Attempts())
        known.count(succeeded)

    def of(self, protocol: Protocol) -> Attempts:
        """The logins over one protocol."""
        return self._by_protocol.setdefault(protocol, Attempts())

    def sources(self) -> Iterator[tuple[Source, Attempts]]:
        """The logins by source, the first one first."""
        yield from list(self._by_source.items())

    def reset(self) -> None:
        """Begin at zero."""
        self._by_protocol.clear()
        self._by_source.clear()
