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
        self._grants: dict[tuple[str, str], dict[str, TopicPermission]] = {}
        self._answers: dict[tuple[str, str, str, str, bool], bool] = {}

    def put(self, permission: TopicPermission) -> None:
        """Add or replace a permission; the caller has checked patterns, user and vhost."""
        self._grants.setdefault((permission.user, permission.vhost), {})[permission.exchange] = permission
        self._answers.clear()

    def remove(self, user: str, vhost: str, exchange: str | None = None) -> bool:
        """Remove a user's permissions in a vhost, on one exchange or all; return whether there were any."""
        granted = self._grants.get((user, vhost), {})
        gone = [exchange] if exchange in granted else [] if exchange is not None else list(granted)
        for name in gone:
            assert name is not None
            del granted[name]
        if not granted:
            self._grants.pop((user, vhost), None)
        self._answers.clear()
        return bool(gone)

    def forget(self, *, user: str | None = None, vhost: str | None = None) -> None:
        """Remove all permissions of a deleted user or vhost."""
        for of, where in list(self._grants):
            if user in (None, of) and vhost in (None, where):
                del self._grants[of, where]
        self._answers.clear()

    def all(self, *, user: str | None = None, vhost: str | None = None) -> list[TopicPermission]:
        """All permissions in a fixed order, optionally of one user or one vhost."""
        return [
            granted[exchange]
            for (of, where), granted in sorted(self._grants.items())
            if user in (None, of) and vhost in (None, where)
            for exchange in sorted(granted)
        ]

    def restricts(self, user: str, vhost: str, exchange: str) -> bool:
        """Whether each topic that the user uses on this exchange has to be checked."""
        granted = self._grants.get((user, vhost))
        return granted is not None and exchange in granted

    def may(self, user: str, vhost: str, exchange: str, topic: str, *, write: bool) -> bool:
        """Whether the user may use this topic on the exchange."""
        granted = self._grants.get((user, vhost))
        permission = granted.get(exchange) if granted is not None else None
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
