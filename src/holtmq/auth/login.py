"""Checks a name and a password without blocking the event loop.

Owns: the order of the checks and the refusals. The order of waiting logins is in ``login_queue.py``.
Must not touch: the protocol that carried the credentials.
"""

import asyncio
import ipaddress

from holtmq.auth import passwords
from holtmq.auth.attempts import AuthAttempts
from holtmq.auth.login_queue import LoginQueue
from holtmq.auth.passwords import VerifiedCredentials
from holtmq.auth.users import User, UserStore


class LoginRefused(Exception):
    """The credentials are not accepted. The text is for the log; the client learns only "refused"."""


class Authenticator:
    """Checks logins against a user store."""

    def __init__(self, users: UserStore, verified: VerifiedCredentials | None = None) -> None:
        self._users = users
        self._verified = verified or VerifiedCredentials()
        self._queue = LoginQueue()
        self.attempts = AuthAttempts()  # counted by those who know the protocol

    def from_memory(self, name: str, password: str, *, from_loopback: bool) -> User | None:
        """The user if these credentials were verified before; None if argon2 has to run."""
        user = self._users.user(name)
        if user is None or not self._verified.knows(name, password, user.password_hash):
            return None
        refuse_from_outside(user, from_loopback)
        return user

    def remember(self, name: str, password: str, password_hash: str) -> None:
        """Treat these credentials as verified from now on."""
        self._verified.remember(name, password, password_hash)

    async def authenticate(self, name: str, password: str, *, from_loopback: bool, address: str = "") -> User:
        """The user with these credentials; raises LoginRefused or TooManyLogins."""
        if (known := self.from_memory(name, password, from_loopback=from_loopback)) is not None:
            return known
        user = self._users.user(name)
        password_hash = user.password_hash if user and user.password_hash else passwords.UNKNOWN_USER_HASH
        async with self._queue.turn(address, name):
            matches = await asyncio.to_thread(passwords.verify_password, password_hash, password)
        # The user may have been changed or deleted meanwhile: compare with the current hash.
        user = self._users.user(name)
        if user is None:
            raise LoginRefused(f"there is no user {name!r}")
        if not matches or user.password_hash != password_hash:
            raise LoginRefused(f"wrong password for user {name!r}")
        refuse_from_outside(user, from_loopback)
        self._verified.remember(name, password, password_hash)
        return user

    def certified(self, name: str, *, from_loopback: bool) -> User:
        """The user named by a verified client certificate; raises LoginRefused."""
        user = self._users.user(name)
        if user is None:
            raise LoginRefused(f"there is no user {name!r}")
        refuse_from_outside(user, from_loopback)
        return user


def refuse_from_outside(user: User, from_loopback: bool) -> None:
    """Raise LoginRefused if the default user logs in from another machine."""
    if user.is_loopback_only and not from_loopback:
        raise LoginRefused(f"user {user.name!r} can only log in via localhost")


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address, including IPv4 mapped into IPv6."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
