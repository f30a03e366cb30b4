"""What one user may do in one vhost: three regular expressions, and a cache of their results.

Owns: matching as RabbitMQ does it. Must not touch: users and vhosts; the store passes the patterns in.
"""

from enum import Enum
from typing import Final

import msgspec

from holtmq.name_patterns import BadPattern, compile_pattern

# RabbitMQ checks permissions on the default exchange, whose name is empty, under this name.
DEFAULT_EXCHANGE: Final = "amq.default"

_TOTAL: Final = frozenset({".*", "^.*", ".*$", "^.*$", "^"})
_MOST_ANSWERS: Final = 4096  # names cached per user, vhost and action


class Action(Enum):
    """The three actions that permissions cover."""

    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


class Permissions(msgspec.Struct, frozen=True):
    """One pattern per action; the action is allowed on names that contain a match."""

    configure: str
    write: str
    read: str

    def check(self) -> None:
        """Raise BadPattern if one of the patterns is invalid."""
        for action in Action:
            try:
                compile_pattern(self.pattern(action))
            except BadPattern as error:
                raise BadPattern(f"{action.value} permission: {error}") from None

    def pattern(self, action: Action) -> str:
        """The pattern for one action."""
        match action:
            case Action.CONFIGURE:
                return self.configure
            case Action.WRITE:
                return self.write
            case Action.READ:
                return self.read


FULL_ACCESS: Final = Permissions(".*", ".*", ".*")


class Access:
    """The permissions of one user in one vhost. Sessions keep this object; the store updates it."""

    __slots__ = ("_answers", "_permissions")

    def __init__(self, permissions: Permissions | None) -> None:
        self._permissions = permissions
        self._answers: dict[Action, dict[str, bool]] = {action: {} for action in Action}

    @property
    def is_granted(self) -> bool:
        """Whether the user has access to the vhost at all."""
        return self._permissions is not None

    def replace(self, permissions: Permissions | None) -> None:
        """Use these permissions from now on; None refuses everything."""
        self._permissions = permissions
        for answers in self._answers.values():
            answers.clear()

    def could(self, action: Action) -> bool:
        """Whether the action may be allowed on some name."""
        return self._permissions is not None and self._permissions.pattern(action) not in ("", "^$")

    def is_total(self, action: Action) -> bool:
        """Whether the action is allowed on every name, by one of the usual patterns for that."""
        return self._permissions is not None and self._permissions.pattern(action) in _TOTAL

    def may(self, action: Action, name: str) -> bool:
        """Whether the action is allowed on the queue or exchange with this name."""
        answers = self._answers[action]
        known = answers.get(name)
        if known is not None:
            return known
        if len(answers) >= _MOST_ANSWERS:
            answers.clear()
        allowed = self._permissions is not None and matches(self._permissions.pattern(action), name)
        answers[name] = allowed
        return allowed


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches anywhere in the name; it is not anchored.

    An invalid pattern (stored by an older version) matches nothing, as in RabbitMQ.
    """
    try:
        # An empty pattern would match every name; in RabbitMQ it matches none.
        return compile_pattern(pattern or "^$").found_in(name)
    except BadPattern:
        return False
