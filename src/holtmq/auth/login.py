"""Checking a name and a password without stopping the event loop.

Owns: the order of the checks and the refusals. Who waits for whom is ``turns.py``'s.
Must not touch: the protocol that carried the credentials.
"""

import asyncio
import ipaddress

from holtmq.auth import passwords
from holtmq.auth.passwords import VerifiedCredentials
from holtmq.auth.turns import LoginTurns
from holtmq.auth.users import User, UserStore


class LoginRefused(Exception):
    """The credentials do not open this node. The text is for the log; the peer learns only "refused"."""


class Authenticator:
    """Decides logins against a store of users."""

    def __init__(self, users: UserStore, verified: VerifiedCredentials | None = None) -> None:
        self._users = users
        self._verified = verified or VerifiedCredentials()
        self._turns = LoginTurns()

    def from_memory(self, name: str, password: str, *, from_loopback: bool) -> User | None:
        """The user if these credentials were verified before; None when argon2 has to be asked."""
        user = self._users.user(name)
        if user is None or not self._verified.knows(name, password, user.password_hash):
            return None
        refuse_from_outside(user, from_loopback)
        return user

    def remember(self, name: str, password: str, password_hash: str) -> None:
        """Take these credentials for verified."""
        self._verified.remember(name, password, password_hash)

    async def authenticate(self, name: str, password: str, *, from_loopback: bool, address: str = "") -> User:
        """The user these credentials belong to; raises LoginRefused, and TooManyLogins."""
        if (known := self.from_memory(name, password, from_loopback=from_loopback)) is not None:
            return known
        user = self._users.user(name)
        password_hash = user.password_hash if user and user.password_hash else passwords.NOBODY_HASH
        async with self._turns.turn(address, name):
            matches = await asyncio.to_thread(passwords.verify_password, password_hash, password)
        # The user may have been changed or deleted meanwhile: only the hash of now counts.
        user = self._users.user(name)
        if user is None:
            raise LoginRefused(f"there is no user {name!r}")
        if not matches or user.password_hash != password_hash:
            raise LoginRefused(f"wrong password for user {name!r}")
        refuse_from_outside(user, from_loopback)
        self._verified.remember(name, password, password_hash)
        return user

    def certified(self, name: str, *, from_loopback: bool) -> User:
        """The user a verified client certificate speaks for; raises LoginRefused."""
        user = self._users.user(name)
        if user is None:
            raise LoginRefused(f"there is no user {name!r}")
        refuse_from_outside(user, from_loopback)
        return user


def refuse_from_outside(user: User, from_loopback: bool) -> None:
    """Raise LoginRefused for the default user from anywhere but this machine."""
    if user.is_loopback_only and not from_loopback:
        raise LoginRefused(f"user {user.name!r} can only log in via localhost")


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, also as IPv4 inside IPv6."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
