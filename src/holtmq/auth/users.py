"""Users, vhosts and permissions, as plain state.

Owns: that state, and the decisions made from it.
Must not touch: the journal (the broker writes records and applies them here), clocks, sockets, argon2.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from holtmq.auth.permissions import FULL_ACCESS, Access, Action, Permissions

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
        self._users: dict[str, User] = {}
        self._grants: dict[tuple[str, str], Permissions] = {}
        self._access: dict[tuple[str, str], Access] = {}
        self.changes = 0  # rises with every change: earlier decisions must be made again
        if snapshot is not None:
            self.restore(snapshot)

    def put_user(self, user: User) -> None:
        """Add the user, or replace the one with that name; permissions stay."""
        self.changes += 1
        self._users[user.name] = user

    def delete_user(self, name: str) -> bool:
        """Remove the user and all its permissions; return whether it existed."""
        if self._users.pop(name, None) is None:
            return False
        self.changes += 1
        self._forget([key for key in self._grants | self._access if key[0] == name])
        return True

    def put_vhost(self, vhost: Vhost) -> None:
        """Add the vhost, or replace what is known about it."""
        self.changes += 1
        self._vhosts[vhost.name] = vhost

    def delete_vhost(self, name: str) -> bool:
        """Remove the vhost and all permissions in it; return whether it existed."""
        if self._vhosts.pop(name, None) is None:
            return False
        self.changes += 1
        self._forget([key for key in self._grants | self._access if key[1] == name])
        return True

    def set_permissions(self, grant: Grant) -> None:
        """Add or replace permissions; the caller has checked patterns, user and vhost."""
        self.changes += 1
        key = (grant.user, grant.vhost)
        self._grants[key] = grant.permissions
        if key in self._access:
            self._access[key].replace(grant.permissions)

    def clear_permissions(self, user: str, vhost: str) -> bool:
        """Remove the user's permissions in the vhost; return whether there were any."""
        if (user, vhost) not in self._grants:
            return False
        self.changes += 1
        del self._grants[user, vhost]
        # Sessions keep their Access object: it refuses now, and is updated if permissions are set again.
        if (access := self._access.get((user, vhost))) is not None:
            access.replace(None)
        return True

    def user(self, name: str) -> User | None:
        """The user with this name."""
        return self._users.get(name)

    def users(self) -> tuple[User, ...]:
        """All users, by name."""
        return tuple(self._users[name] for name in sorted(self._users))

    def vhost(self, name: str) -> Vhost | None:
        """The vhost with this name."""
        return self._vhosts.get(name)

    def vhosts(self) -> tuple[Vhost, ...]:
        """All vhosts, by name."""
        return tuple(self._vhosts[name] for name in sorted(self._vhosts))

    def grants(self, *, user: str | None = None, vhost: str | None = None) -> tuple[Grant, ...]:
        """All permissions, optionally of one user or in one vhost."""
        return tuple(
            Grant(of, where, self._grants[of, where])
            for of, where in sorted(self._grants)
            if user in (None, of) and vhost in (None, where)
        )

    def access(self, user: str, vhost: str) -> Access:
        """What the user may do in the vhost; the object is updated when permissions change."""
        key = (user, vhost)
        found = self._access.get(key)
        if found is None:
            found = Access(self._grants.get(key))
            # Only for existing names: a client could invent any number of others.
            if user in self._users and vhost in self._vhosts:
                self._access[key] = found
        return found

    def may(self, user: str, vhost: str, action: Action, name: str) -> bool:
        """Whether the user may do this to the queue or exchange with this name."""
        return self.access(user, vhost).may(action, name)

    @property
    def has_own_users(self) -> bool:
        """Whether any user can log in from another machine."""
        return any(not user.is_loopback_only for user in self._users.values())

    def snapshot(self) -> Snapshot:
        """The whole state, in a fixed order."""
        return Snapshot(self.vhosts(), self.users(), self.grants())

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the whole state; Access objects given out before are updated."""
        self.changes += 1
        self._vhosts = {vhost.name: vhost for vhost in snapshot.vhosts}
        self._users = {user.name: user for user in snapshot.users}
        self._grants = {(grant.user, grant.vhost): grant.permissions for grant in snapshot.grants}
        for key, access in self._access.items():
            access.replace(self._grants.get(key))

    def _forget(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            self._grants.pop(key, None)
            # A session may still hold this object: it refuses from now on. The next login gets a new one.
            if (access := self._access.pop(key, None)) is not None:
                access.replace(None)
