"""The rights that HTTP routes require, and whether a sender has them.

Owns: the rights that route tables declare and the decision. Must not touch: HTTP, credentials; the sender is
already authenticated. An ``Identity`` is a snapshot: its owner makes a new one when ``UserStore.changes`` has
changed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from holtmq.auth.permissions import FULL_ACCESS, Access, Action, Permissions
from holtmq.auth.roles import Role
from holtmq.auth.scopes import Scopes
from holtmq.auth.topic_permissions import TopicPermissions
from holtmq.auth.users import ADMINISTRATOR, DEFAULT_VHOST, User, UserStore

MONITORING: Final = "monitoring"
POLICYMAKER: Final = "policymaker"
MANAGEMENT: Final = "management"
IMPERSONATOR: Final = "impersonator"
KNOWN_TAGS: Final = (ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT, IMPERSONATOR)
_MOST_ANSWERS: Final = 4096
_MOST_VHOSTS: Final = 256

PlaceOf = Callable[[str], tuple[str, str]]  # a partitioned queue's name -> its vhost, its name there


class RightMissing(Exception):
    """An authenticated user or token lacks a right (HTTP 403); the text says which."""


@dataclass(frozen=True, slots=True)
class Right:
    """What one route requires. Declared once, in the route's row; the documentation is generated from it."""

    role: Role | None = None  # the least role of a token without a user; None: any valid token
    actions: tuple[Action, ...] = ()  # required on every queue (or exchange, or key) in the request
    tags: tuple[str, ...] = ()  # one of these is enough
    is_public: bool = False
    path_name: str = ""  # the path parameter with a queue or exchange name: checked before the body is read
    is_either: bool = False  # one of the actions is enough here; the body decides which

    def __str__(self) -> str:
        if self.is_public:
            return "none"
        word = " or " if self.is_either else " and "
        parts = [word.join(action.value for action in self.actions)] if self.actions else []
        if self.tags:
            parts.append("any tag" if len(self.tags) > 2 else "tag " + " or ".join(self.tags))
        return ", ".join(parts) or "login"


PUBLIC: Final = Right(is_public=True)


def role_of(right: Right) -> str:
    """The least role of a token without a user, as text for the documentation."""
    if right.is_public:
        return "none"
    return "any role" if right.role is None else f"role {right.role.name.lower().replace('_', '-')}"


class Identity:
    """The sender of a request. ``subject`` is stored with its messages; None if it has no name."""

    __slots__ = (
        "_access",
        "_could",
        "_passed",
        "_place_of",
        "_vhosts",
        "changes",
        "configures",
        "expires_at",
        "name",
        "reads",
        "reads_everything",
        "role",
        "scopes",
        "subject",
        "tags",
        "writes",
        "writes_everything",
    )

    def __init__(
        self,
        name: str,
        tags: tuple[str, ...],
        access: Callable[[str], Access],
        vhosts: tuple[str, ...],
        place_of: PlaceOf,
        changes: int,
        *,
        subject: str | None = None,
        role: Role | None = None,
        expires_at: float | None = None,
        scopes: Scopes | None = None,
    ) -> None:
        self.name = name
        self.scopes = scopes  # of an OAuth 2 token, which restrict routing keys, too
        self.tags = tags
        self.subject = subject
        self.role = role
        self.changes = changes
        self.expires_at = expires_at
        self._access = access
        self._place_of = place_of
        self._vhosts = vhosts
        in_vhosts = [access(vhost) for vhost in vhosts]
        self._could = {action for action in Action if any(one.could(action) for one in in_vhosts)}
        self.reads_everything = all(one.is_total(Action.READ) for one in in_vhosts)
        self.writes_everything = all(one.is_total(Action.WRITE) for one in in_vhosts)
        self._passed: dict[int, Right] = {}  # by identity of the object: to hash a right costs more
        # Caches of allowed names: the usual check of a request is one lookup here.
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.configures: set[str] = set()

    def has_tag(self, *tags: str) -> bool:
        """Whether the sender has one of these tags; an administrator has all."""
        return ADMINISTRATOR in self.tags or any(tag in self.tags for tag in tags)

    def could(self, action: Action) -> bool:
        """Whether the action is allowed on at least some names in some vhost."""
        return action in self._could

    def access(self, vhost: str) -> Access:
        """What the sender may do in a vhost."""
        return self._access(vhost)

    def may_enter(self, vhost: str) -> bool:
        """Whether the sender has permissions in the vhost at all."""
        return self._access(vhost).is_granted

    def sees(self, vhost: str) -> bool:
        """Whether lists show the vhost to the sender."""
        return self.has_tag(MONITORING) or self.may_enter(vhost)

    def check(self, right: Right, path: dict[str, str]) -> None:
        """Raise RightMissing if a right is missing. Names in the body are checked later."""
        if id(right) in self._passed or right.is_public:
            return
        if self.role is not None and right.role is not None and self.role < right.role:
            raise RightMissing("Insufficient permissions")
        if right.tags and not self.has_tag(*right.tags):
            named = " or ".join(f"'{tag}'" for tag in right.tags)
            raise RightMissing(f"user '{self.name}' has no tag {named}")
        if right.path_name:
            self._check_path(right, path)
            return
        if right.actions:
            missing = [action for action in right.actions if action not in self._could]
            if missing and (not right.is_either or len(missing) == len(right.actions)):
                raise RightMissing(f"user '{self.name}' has no {missing[0].value} permission in any vhost")
        self._passed[id(right)] = right  # tags, role and permissions of this object do not change

    def _check_path(self, right: Right, path: dict[str, str]) -> None:
        name, vhost = path[right.path_name], path.get("vhost")
        for action in right.actions:
            if vhost is None:
                self.require(action, name)
            elif vhost in self._vhosts:  # the handler refuses an unknown vhost
                self.require_in(vhost, action, name)

    def may(self, action: Action, queue: str) -> bool:
        """Whether the action is allowed on the partitioned queue, ephemeral queue or key with this name."""
        known = self._known(action)
        if queue in known:
            return True
        vhost, name = self._place_of(queue)
        if not self._access(vhost).may(action, name):
            return False
        if len(known) >= _MOST_ANSWERS:
            known.clear()
        known.add(queue)
        return True

    def require(self, action: Action, queue: str) -> None:
        """Raise RightMissing unless ``may``; the text is the one AMQP clients get."""
        if not self.may(action, queue):
            vhost, name = self._place_of(queue)
            raise refused(action, name, vhost, self.name)

    def may_in(self, vhost: str, action: Action, name: str) -> bool:
        """As ``may``, for a queue or exchange given by vhost and name."""
        return self._access(vhost).may(action, name)

    def require_in(self, vhost: str, action: Action, name: str) -> None:
        """As ``require``, for a queue or exchange given by vhost and name, as in RabbitMQ's API."""
        if not self.may_in(vhost, action, name):
            raise refused(action, name, vhost, self.name)

    def restricts_topics(self, permissions: TopicPermissions, vhost: str, exchange: str) -> bool:
        """Whether only some routing keys are allowed on this topic exchange."""
        if self.scopes is not None:
            return self.scopes.restricts_topics
        return permissions.restricts(self.name, vhost, exchange)

    def require_topic(
        self, permissions: TopicPermissions, vhost: str, exchange: str, topic: str, *, write: bool
    ) -> None:
        """Raise RightMissing unless the routing key is allowed on this topic exchange."""
        if not self.restricts_topics(permissions, vhost, exchange):
            return
        if self.scopes is not None:
            allowed = self.scopes.may_topic(vhost, exchange, topic, write=write)
        else:
            allowed = permissions.may(self.name, vhost, exchange, topic, write=write)
        if not allowed:
            raise RightMissing(
                f"access to topic '{topic}' in exchange '{exchange}' in vhost '{vhost}' "
                f"refused for user '{self.name}'"
            )

    def _known(self, action: Action) -> set[str]:
        if action is Action.READ:
            return self.reads
        return self.writes if action is Action.WRITE else self.configures


def refused(action: Action, name: str, vhost: str, user: str) -> RightMissing:
    return RightMissing(
        f"ACCESS_REFUSED - {action.value} access to '{name}' in vhost '{vhost}' refused for user '{user}'"
    )


def of_user(
    users: UserStore, user: User, place_of: PlaceOf, subject: str | None, expires_at: float | None = None
) -> Identity:
    """The identity of a user of the broker."""
    return Identity(
        user.name,
        user.tags,
        lambda vhost: users.access(user.name, vhost),
        tuple(vhost.name for vhost in users.vhosts()),
        place_of,
        users.changes,
        subject=subject,
        expires_at=expires_at,
    )


def of_scopes(
    users: UserStore, scopes: Scopes, subject: str | None, place_of: PlaceOf, expires_at: float | None
) -> Identity:
    """The identity of a token whose scopes say what it may do."""
    return Identity(
        subject or "token with scopes",
        scopes.tags,
        lru_cache(maxsize=_MOST_VHOSTS)(scopes.access),
        tuple(vhost.name for vhost in users.vhosts()),
        place_of,
        users.changes,
        subject=subject,
        expires_at=expires_at,
        scopes=scopes,
    )


# Queen's roles as tags and permissions of the broker, which apply in the default vhost only.
_ROLE_TAGS: Final = {
    Role.READ_ONLY: (MONITORING,),
    Role.READ_WRITE: (MONITORING,),
    Role.ADMIN: (ADMINISTRATOR,),
}
_ROLE_PERMISSIONS: Final = {
    Role.READ_ONLY: Permissions("", "", ".*"),
    Role.READ_WRITE: FULL_ACCESS,
    Role.ADMIN: FULL_ACCESS,
}


def of_role(
    users: UserStore, role: Role, subject: str | None, place_of: PlaceOf, expires_at: float | None
) -> Identity:
    """The identity of a token that has a role but names no user of the broker."""
    inside, outside = Access(_ROLE_PERMISSIONS[role]), Access(None)
    return Identity(
        subject or f"token with role {role.name.lower().replace('_', '-')}",
        _ROLE_TAGS[role],
        lambda vhost: inside if vhost == DEFAULT_VHOST else outside,
        tuple(vhost.name for vhost in users.vhosts()),
        place_of,
        users.changes,
        subject=subject,
        role=role,
        expires_at=expires_at,
    )
