"""Browser sessions: a cookie replaces the credentials in every request.

Owns: which cookies are valid, and for how long. Must not touch: passwords, HTTP. Sessions are in memory: they
end with the process, with their user, and with a change of the password.
"""

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from holtmq.auth.users import User, UserStore

COOKIE: Final = "holt_session"
IDLE_SECONDS: Final = 8 * 3600.0
_MOST: Final = 10_000


@dataclass(slots=True)
class _Session:
    user: str
    password_hash: str
    expires_at: float


class Sessions:
    """Every session of the node, least recently used first."""

    def __init__(self, users: UserStore) -> None:
        self._users = users
        self._open: OrderedDict[str, _Session] = OrderedDict()

    def begin(self, user: User, now: float) -> str:
        """Start a session; return the token for its cookie."""
        while len(self._open) >= _MOST:
            self._open.popitem(last=False)
        token = secrets.token_urlsafe(32)
        self._open[token] = _Session(user.name, user.password_hash, now + IDLE_SECONDS)
        return token

    def find(self, cookies: bytes, now: float) -> User | None:
        """The user of the session in a Cookie header; None if there is none. Restarts its idle time-out."""
        token = token_in(cookies)
        session = self._open.get(token)
        if session is None:
            return None
        user = self._users.user(session.user)
        if user is None or user.password_hash != session.password_hash or now >= session.expires_at:
            del self._open[token]
            return None
        session.expires_at = now + IDLE_SECONDS
        self._open.move_to_end(token)
        return user

    def end(self, cookies: bytes) -> bool:
        """Delete the session in a Cookie header; False when there is none."""
        return self._open.pop(token_in(cookies), None) is not None


def token_in(cookies: bytes) -> str:
    """Our cookie's value in a Cookie header; empty when it is not there."""
    for pair in cookies.decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            return value
    return ""
