"""What a verified token says: its role, its sender, or the reason of a refusal.

Owns: these types. Must not touch: how a token is verified (``tokens.py``). Apart from it, so that a broker
without tokens does not load the libraries that verify them.
"""

from dataclasses import dataclass
from enum import IntEnum

from holtmq.auth.scopes import NO_SCOPES, Scopes


class Role(IntEnum):
    """What a token may do; each role includes the ones below it."""

    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3


class TokenRefused(Exception):
    """The request has no valid token (HTTP 401); the API contract defines the text."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """What a valid token says about its sender."""

    subject: str | None
    role: Role | None = None  # None: the token is valid but grants nothing by itself
    expires_at: float | None = None  # when the token must be verified again; None: never
    scopes: Scopes = NO_SCOPES
