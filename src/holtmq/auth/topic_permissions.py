"""Which topics a user may write to and read from, per exchange.

Owns: these patterns and their matching, as in RabbitMQ: without a permission every topic is allowed, an empty
pattern matches only the empty topic; ``{username}`` and ``{vhost}`` in a pattern are replaced.
Must not touch: which exchanges have topics; the caller knows.
"""

import re
from typing import Final

import msgspec

from holtmq.auth.permissions import matches
from holtmq.name_patterns import BadPattern, compile_pattern
from holtmq.ordered_table import OrderedTable

_MOST_ANSWERS: Final = 4096


class TopicPermission(msgspec.Struct, frozen=True):
    """One user's patterns for one exchange."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str

    def check(self) -> None:
        """Raise BadPattern if one of the patterns is invalid."""
        for name, pattern in (("write", self.write), ("read", self.read)):
            try:
                compile_pattern(self.expanded(pattern))
            except BadPattern as error:
                raise BadPattern(f"topic permission, {name}: {error}") from None

    def expanded(self, pattern: str) -> str:
        """Replace the variables in a pattern; the values are escaped."""
        for variable, value in (("{username}", self.user), ("{vhost}", self.vhost)):
            pattern = pattern.replace(variable, re.escape(value))
        return pattern


class TopicPermissions:
    """All topic permissions. Results are cached, because publishers repeat their topics."""

    def __init__(self) -> None:
        self._grants: OrderedTable[tuple[str, str, str], TopicPermission] = OrderedTable(_key_of)
        self._answers: dict[tuple[str, str, str, str, bool], bool] = {}

    def put(self, permission: TopicPermission) -> None:
        """Add or replace a permission; the caller has checked patterns, user and vhost."""
        self._grants.put(permission)
        self._answers.clear()

    def remove(self, user: str, vhost: str, exchange: str | None = None) -> list[TopicPermission]:
        """Remove a user's permissions in a vhost, on one exchange or all; return those that there were."""
        self._answers.clear()
        names = (user, vhost) if exchange is None else (user, vhost, exchange)
        return self._grants.remove_under(*names)

    def forget(self, *, user: str | None = None, vhost: str | None = None) -> list[TopicPermission]:
        """Remove all permissions of a deleted user or vhost; return them."""
        self._answers.clear()
        if user is not None:
            return self._grants.remove_under(user)
        return [] if vhost is None else self._grants.remove_at(1, vhost)

    def all(self, *, user: str | None = None, vhost: str | None = None) -> list[TopicPermission]:
        """All permissions in a fixed order, optionally of one user or one vhost."""
        if user is not None:
            return self._grants.under(user) if vhost is None else self._grants.under(user, vhost)
        found = self._grants.under()
        return found if vhost is None else [one for one in found if one.vhost == vhost]

    def restricts(self, user: str, vhost: str, exchange: str) -> bool:
        """Whether each topic that the user uses on this exchange has to be checked."""
        return (user, vhost, exchange) in self._grants

    def may(self, user: str, vhost: str, exchange: str, topic: str, *, write: bool) -> bool:
        """Whether the user may use this topic on the exchange."""
        permission = self._grants.get((user, vhost, exchange))
        if permission is None:
            return True
        question = (user, vhost, exchange, topic, write)
        known = self._answers.get(question)
        if known is None:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            pattern = permission.expanded(permission.write if write else permission.read)
            known = self._answers[question] = matches(pattern, topic)
        return known


def _key_of(permission: TopicPermission) -> tuple[str, str, str]:
    return permission.user, permission.vhost, permission.exchange
