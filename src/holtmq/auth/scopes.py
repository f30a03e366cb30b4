"""Scopes of OAuth 2 tokens, in RabbitMQ's form: ``rabbitmq.read:vhost/queue``, ``rabbitmq.tag:monitoring``.

Owns: reading scopes and aliases, and what they allow. ``*`` stands for any text; a part may be
percent-encoded (``%2F`` is the default vhost). Must not touch: tokens, connections.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

import re2

from holtmq.auth.permissions import Access, Action, Permissions
from holtmq.name_patterns import BadPattern

OWN_PREFIX: Final = "holt."
_MOST_SCOPES: Final = 1_000
_TAG: Final = "tag"
_ACTIONS: Final = {action.value: action for action in Action}


@dataclass(frozen=True, slots=True)
class Scope:
    """One permission: an action on the names, in the vhosts and with the routing keys that patterns match."""

    action: Action
    vhost: str
    name: str
    topic: str | None = None  # None: any routing key


@dataclass(frozen=True, slots=True)
class Scopes:
    """Everything the scopes of one token allow."""

    permissions: tuple[Scope, ...] = ()
    tags: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.permissions or self.tags)

    def access(self, vhost: str) -> Access:
        """What is allowed in one vhost; refuses everything if no scope covers the vhost."""
        here = [scope for scope in self.permissions if _matches(scope.vhost, vhost)]
        if not here:
            return Access(None)
        patterns = {
            action: _alternatives(scope.name for scope in here if scope.action is action) for action in Action
        }
        permissions = Permissions(patterns[Action.CONFIGURE], patterns[Action.WRITE], patterns[Action.READ])
        try:
            permissions.check()
        except BadPattern:
            return Access(None)  # more scopes than one pattern can hold: never more than was granted
        return Access(permissions)

    @property
    def restricts_topics(self) -> bool:
        """Whether a scope names routing keys."""
        return any(scope.topic is not None for scope in self.permissions)

    def may_topic(self, vhost: str, exchange: str, topic: str, *, write: bool) -> bool:
        """Whether a routing key is allowed on a topic exchange."""
        action = Action.WRITE if write else Action.READ
        return any(
            scope.action is action
            and _matches(scope.vhost, vhost)
            and _matches(scope.name, exchange)
            and (scope.topic is None or _matches(scope.topic, topic))
            for scope in self.permissions
        )


NO_SCOPES: Final = Scopes()


def read_scopes(given: Iterable[str], prefixes: tuple[str, ...], aliases: Mapping[str, str]) -> Scopes:
    """The scopes that mean something here; others belong to other services and are skipped."""
    permissions: list[Scope] = []
    tags: list[str] = []
    words = [word for one in given for word in (aliases.get(one, one)).split()]
    for word in words[:_MOST_SCOPES]:
        prefix = next((prefix for prefix in prefixes if word.startswith(prefix)), None)
        kind, colon, rest = word[len(prefix or "") :].partition(":")
        if prefix is None or not colon:
            continue
        if kind == _TAG:
            tags.append(unquote(rest))
            continue
        parts = [unquote(part) for part in rest.split("/")]
        if kind in _ACTIONS and 2 <= len(parts) <= 3:
            topic = parts[2] if len(parts) == 3 else None
            permissions.append(Scope(_ACTIONS[kind], parts[0], parts[1], topic))
    return Scopes(tuple(dict.fromkeys(permissions)), tuple(dict.fromkeys(tags)))


def read_aliases(lines: Iterable[str]) -> dict[str, str]:
    """``alias=scope scope`` lines as a table; raises ValueError for a line that is not of this form."""
    table: dict[str, str] = {}
    for line in lines:
        alias, equals, scopes = line.partition("=")
        if not equals or not alias.strip() or not scopes.strip():
            raise ValueError(f"{line!r} is not of the form alias=scope scope")
        table[alias.strip()] = scopes.strip()
    return table


def _alternatives(wildcards: Iterable[str]) -> str:
    """A permission pattern for names that match one of the wildcards; empty: no name."""
    patterns = [_expression(wildcard) for wildcard in dict.fromkeys(wildcards)]
    if ".*" in patterns:
        return "^.*$"
    return f"^(?:{'|'.join(patterns)})$" if patterns else ""


def _expression(wildcard: str) -> str:
    return ".*".join(str(re2.escape(part)) for part in wildcard.split("*"))


@lru_cache(maxsize=4096)
def _matches(wildcard: str, text: str) -> bool:
    """Greedy from both ends and leftmost between: linear, since ``*`` is the only wildcard."""
    first, *rest = wildcard.split("*")
    if not rest:
        return text == first
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
