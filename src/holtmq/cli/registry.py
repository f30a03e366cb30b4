"""The interface that the verbs about users, vhosts and permissions use, for a broker or for a folder.

Owns: the rows and the methods. Two classes implement them: ``broker_api`` over HTTP, ``offline`` in a folder.
"""

from typing import Protocol

import msgspec


class UserRow(msgspec.Struct, frozen=True):
    """One user."""

    name: str
    tags: list[str] = []
    password_hash: str = ""


class VhostRow(msgspec.Struct, frozen=True):
    """One vhost."""

    name: str
    messages: int = 0


class PermissionRow(msgspec.Struct, frozen=True):
    """One user's patterns in one vhost."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class Registry(Protocol):
    """Every change is durable when the call returns."""

    def users(self) -> list[UserRow]:
        """All users."""
        ...

    def put_user(self, user: UserRow, password: str | None) -> None:
        """Add or replace; without a password the row's hash is kept."""
        ...

    def delete_user(self, name: str) -> None:
        """Remove a user."""
        ...

    def vhosts(self) -> list[VhostRow]:
        """All vhosts."""
        ...

    def put_vhost(self, name: str) -> None:
        """Add a vhost."""
        ...

    def delete_vhost(self, name: str) -> None:
        """Remove a vhost and everything in it."""
        ...

    def permissions(self) -> list[PermissionRow]:
        """All permissions."""
        ...

    def set_permissions(self, row: PermissionRow) -> None:
        """Grant or replace permissions."""
        ...

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Remove permissions."""
        ...
