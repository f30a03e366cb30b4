"""How many connections, channels and queues vhosts and users may have.

Owns: these limits, and the counts of what is open. Must not touch: connections; the caller reports each.
"""

from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from holtmq.broker.errors import Conflict

VHOST_LIMITS: Final = ("max-connections", "max-queues")
USER_LIMITS: Final = ("max-connections", "max-channels")

_MOST: Final = 1 << 63


def read_limit(name: str, value: object, known: tuple[str, ...], thing: str) -> int:
    """Parse a limit; a negative value means no limit. Raises Conflict for an unknown name or a bad value."""
    if name not in known:
        nearest = get_close_matches(name, known, n=1, cutoff=0)[0]
        raise Conflict(f"unknown limit '{name}' for {thing}: the nearest right one is '{nearest}'")
    if isinstance(value, bool) or not isinstance(value, int):
        raise Conflict(f"{name} for {thing} should be a number, actually was {value!r}")
    if not -_MOST <= value < _MOST:  # the journal could not store it
        raise Conflict(f"{name} for {thing} should be a number of 64 bits at most")
    return value


class Limits:
    """The limits of all vhosts and users."""

    def __init__(self) -> None:
        self.of_vhosts: dict[str, dict[str, int]] = {}
        self.of_users: dict[str, dict[str, int]] = {}
        self._vhost_connections: Counter[str] = Counter()
        self._user_connections: Counter[str] = Counter()
        self._user_channels: Counter[str] = Counter()

    def replace(self, of: dict[str, dict[str, int]], name: str, limits: Mapping[str, int]) -> None:
        """Replace the limits of one vhost or user; an empty mapping removes the entry."""
        if limits:
            of[name] = dict(limits)
        else:
            of.pop(name, None)

    def check_connection(self, vhost: str, user: str) -> str | None:
        """Why one more connection is refused, or None."""
        most = _limit(self.of_vhosts, vhost, "max-connections")
        if most is not None and self._vhost_connections[vhost] >= most:
            return (
                f"access to vhost '{vhost}' refused for user '{user}': connection limit ({most}) is reached"
            )
        most = _limit(self.of_users, user, "max-connections")
        if most is not None and self._user_connections[user] >= most:
            return f"connection refused for user '{user}': user connection limit ({most}) is reached"
        return None

    def connected(self, vhost: str, user: str) -> None:
        """Count an opened connection."""
        self._vhost_connections[vhost] += 1
        self._user_connections[user] += 1

    def disconnected(self, vhost: str, user: str) -> None:
        """Count a closed connection."""
        _less(self._vhost_connections, vhost)
        _less(self._user_connections, user)

    def check_channel(self, user: str) -> str | None:
        """Why one more channel is refused, or None."""
        most = _limit(self.of_users, user, "max-channels")
        if most is not None and self._user_channels[user] >= most:
            return (
                f"number of channels opened for user '{user}' has reached the maximum allowed user limit of "
                f"({most})"
            )
        return None

    def channel_opened(self, user: str) -> None:
        self._user_channels[user] += 1

    def channel_closed(self, user: str) -> None:
        _less(self._user_channels, user)

    def check_queue(self, vhost: str, name: str, queues: int) -> None:
        """Raise Conflict if the vhost may not have one more queue."""
        most = _limit(self.of_vhosts, vhost, "max-queues")
        if most is not None and queues >= most:
            raise Conflict(
                f"cannot declare queue '{name}': queue limit in vhost '{vhost}' ({most}) is reached"
            )


def _limit(of: dict[str, dict[str, int]], name: str, limit: str) -> int | None:
    limits = of.get(name)
    most = limits.get(limit) if limits is not None else None
    return None if most is None or most < 0 else most


def _less(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] <= 0:
        del counter[name]
