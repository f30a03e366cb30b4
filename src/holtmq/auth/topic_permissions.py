"""Which topics a user may write to and read from, exchange by exchange.

Owns: these patterns and their matching, as RabbitMQ does it: an exchange without them is open; in a pattern
``{username}`` and ``{vhost}`` stand for the user's own. Must not touch: what a topic is; the caller asks.
"""

import re
from typing import Final

import msgspec

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
        """Raise BadPattern when one of the patterns cannot be used."""
        for name, pattern in (("write", self.write), ("read", self.read)):
            try:
                compile_pattern(self.expanded(pattern))
            except BadPattern as error:
                raise BadPattern(f"topic permission, {name}: {error}") from None

    def expanded(self, pattern: str) -> str:
        """A pattern with the names in it, which are no patterns themselves."""
        for variable, value in (("{username}", self.user), ("{vhost}", self.vhost)):
            pattern = pattern.replace(variable, re.escape(value))
        return pattern


class TopicPermissions:
    """All of them. Answers are remembered: publishers repeat their topics."""

    def __init__(self) -> None:
        self._grants: dict[tuple[str, str], dict[str, TopicPermission]] = {}
        self._answers: dict[tuple[str, str, str, str, bool], bool] = {}

    def put(self, permission: TopicPermission) -> None:
        """Give or replace; the caller has checked patterns, user and vhost."""
        self._grants.setdefault((permission.user, permission.vhost), {})[permission.exchange] = permission
        self._answers.clear()

    def remove(self, user: str, vhost: str, exchange: str | None = None) -> bool:
        """Take those of a user in a vhost away, of one exchange or of all; False when there were none."""
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
        """The user or the vhost is gone."""
        for of, where in list(self._grants):
            if user in (None, of) and vhost in (None, where):
                del self._grants[of, where]
        self._answers.clear()

    def all(self, *, user: str | None = None, vhost: str | None = None) -> list[TopicPermission]:
        """In a fixed order, of one user or in one vhost if so asked."""
        return [
            granted[exchange]
            for (of, where), granted in sorted(self._grants.items())
            if user in (None, of) and vhost in (None, where)
            for exchange in sorted(granted)
        ]

    def restricts(self, user: str, vhost: str, exchange: str) -> bool:
        """Whether the user's topics of the exchange have to be looked at one by one."""
        granted = self._grants.get((user, vhost))
        return granted is not None and exchange in granted

    def may(self, user: str, vhost: str, exchange: str, topic: str, *, write: bool) -> bool:
        """Whether the user may use this topic of the exchange."""
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
            known = self._answers[question] = compile_pattern(pattern).found_in(topic)
        return known
