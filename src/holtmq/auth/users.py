"""Users, vhosts and permissions, as plain state.

Owns: that state, and the decisions made from it.
Must not touch: the journal (the broker writes records and applies them here), clocks, sockets, argon2.
"""

from typing import Final

import msgspec

from holtmq.auth.permissions import FULL_ACCESS, Access, Action, Permissions
from holtmq.ordered_table import OrderedTable

DEFAULT_USER: Final = "guest"
DEFAULT_VHOST: Final = "/"
ADMINISTRATOR: Final = "administrator"


class User(msgspec.Struct, frozen=True):
    """A user account."""

    name: str
    password_hash: str  # empty: no password matches; only a certificate or token can log in
    tags: tuple[str, ...] = ()

    @property
    def is_loopback_only(self) -> bool:
        """Whether logins from other machines are refused: the default user's password is public."""
        return self.name == DEFAULT_USER

    def __repr__(self) -> str:
        return f"User({self.name!r}, tags={self.tags!r})"


class Vhost(msgspec.Struct, frozen=True):
    """A namespace with queues, exchanges and permissions of its own."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = ""  # of queues that are declared without a type; empty: classic
    protected_from_deletion: bool = False


class Grant(msgspec.Struct, frozen=True):
    """One user's permissions in one vhost."""

    user: str
    vhost: str
    permissions: Permissions


class Snapshot(msgspec.Struct, frozen=True):
    """The whole store, for a checkpoint."""

    vhosts: tuple[Vhost, ...] = ()
    users: tuple[User, ...] = ()
    grants: tuple[Grant, ...] = ()


def defaults(guest_password_hash: str) -> Snapshot:
    """The state of a new node: vhost ``/``, and ``guest`` with all permissions in it."""
    return Snapshot(
        (Vhost(DEFAULT_VHOST, "Default virtual host"),),
        (User(DEFAULT_USER, guest_password_hash, (ADMINISTRATOR,)),),
        (Grant(DEFAULT_USER, DEFAULT_VHOST, FULL_ACCESS),),
    )


class UserStore:
    """The store. Every change is idempotent, so that the journal can be replayed from any checkpoint."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._vhosts: dict[str, Vhost] = {}
        self._users: OrderedTable[tuple[str], User] = OrderedTable(_key_of_user)
        self._grants: OrderedTable[tuple[str, str], Grant] = OrderedTable(_key_of_grant)
        self._access: dict[str, dict[str, Access]] = {}  # by user, and there by vhost
        self.changes = 0  # rises with every change: earlier decisions must be made again
        if snapshot is not None:
            self.restore(snapshot)

    def put_user(self, user: User) -> None:
        """Add the user, or replace the one with that name; permissions stay."""
        self.changes += 1
        self._users.put(user)

    def delete_user(self, name: str) -> bool:
        """Remove the user and all its permissions; return whether it existed."""
        if not self._users.remove((name,)):
            return False
        self.changes += 1
        self._grants.remove_under(name)
        # A session may still hold these objects: they refuse from now on. The next login gets new ones.
        for access in self._access.pop(name, {}).values():
            access.replace(None)
        return True

    def put_vhost(self, vhost: Vhost) -> None:
        """Add the vhost, or replace what is known about it."""
        self.changes += 1
        self._vhosts[vhost.name] = vhost

    def delete_vhost(self, name: str) -> bool:
        """Remove the vhost and all permissions in it; return whether it existed."""
        if self._vhosts.pop(name, None) is None:
            return False
        self.clear_vhost(name)
        for of_user in self._access.values():
            of_user.pop(name, None)
        return True

    def clear_vhost(self, name: str) -> list[Grant]:
        """Remove all permissions in a vhost; return them."""
        self.changes += 1
        for of_user in self._access.values():
            if (access := of_user.get(name)) is not None:
                access.replace(None)
        return self._grants.remove_at(1, name)

    def set_permissions(self, grant: Grant) -> None:
        """Add or replace permissions; the caller has checked patterns, user and vhost."""
        self.changes += 1
        self._grants.put(grant)
        if (access := self._known_access(grant.user, grant.vhost)) is not None:
            access.replace(grant.permissions)

    def clear_permissions(self, user: str, vhost: str) -> bool:
        """Remove the user's permissions in the vhost; return whether there were any."""
        if not self._grants.remove((user, vhost)):
            return False
        self.changes += 1
        # Sessions keep their Access object: it refuses now, and is updated if permissions are set again.
        if (access := self._known_access(user, vhost)) is not None:
            access.replace(None)
        return True

    def user(self, name: str) -> User | None:
        """The user with this name."""
        return self._users.get((name,))

    def users(self) -> tuple[User, ...]:
        """All users, by name."""
        return tuple(self._users.under())

    def vhost(self, name: str) -> Vhost | None:
        """The vhost with this name."""
        return self._vhosts.get(name)

    def vhosts(self) -> tuple[Vhost, ...]:
        """All vhosts, by name."""
        return tuple(self._vhosts[name] for name in sorted(self._vhosts))

    def grants(self, *, user: str | None = None, vhost: str | None = None) -> tuple[Grant, ...]:
        """All permissions, optionally of one user or in one vhost."""
        found = self._grants.under() if user is None else self._grants.under(user)
        return tuple(found if vhost is None else [grant for grant in found if grant.vhost == vhost])

    def grant(self, user: str, vhost: str) -> Grant | None:
        """The permissions of one user in one vhost."""
        return self._grants.get((user, vhost))

    def access(self, user: str, vhost: str) -> Access:
        """What the user may do in the vhost; the object is updated when permissions change."""
        found = self._known_access(user, vhost)
        if found is None:
            found = Access(self._permissions(user, vhost))
            # Only for existing names: a client could invent any number of others.
            if (user,) in self._users and vhost in self._vhosts:
                self._access.setdefault(user, {})[vhost] = found
        return found

    def may(self, user: str, vhost: str, action: Action, name: str) -> bool:
        """Whether the user may do this to the queue or exchange with this name."""
        return self.access(user, vhost).may(action, name)

    @property
    def has_own_users(self) -> bool:
        """Whether any user can log in from another machine."""
        return any(not user.is_loopback_only for user in self._users.under())

    def snapshot(self) -> Snapshot:
        """The whole state, in a fixed order."""
        return Snapshot(self.vhosts(), self.users(), self.grants())

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole state; Access objects given out before are updated."""
        self.changes += 1
        self._vhosts = {vhost.name: vhost for vhost in snapshot.vhosts}
        self._users = OrderedTable(_key_of_user, snapshot.users)
        self._grants = OrderedTable(_key_of_grant, snapshot.grants)
        for user, of_user in self._access.items():
            for vhost, access in of_user.items():
                access.replace(self._permissions(user, vhost))

    def _permissions(self, user: str, vhost: str) -> Permissions | None:
        grant = self._grants.get((user, vhost))
        return None if grant is None else grant.permissions

    def _known_access(self, user: str, vhost: str) -> Access | None:
        of_user = self._access.get(user)
        return None if of_user is None else of_user.get(vhost)


def _key_of_user(user: User) -> tuple[str]:
    return (user.name,)


def _key_of_grant(grant: Grant) -> tuple[str, str]:
    return grant.user, grant.vhost
