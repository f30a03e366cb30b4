"""From a verified token to an identity, the same for AMQP and HTTP.

Owns: the order: scopes, then the user that the token names, then its role. A token with scopes has these
alone: an issuer's subject that happens to be called like a user must not get that user's rights. Must not
touch: how a token is verified.
"""

import re
from typing import Final

from holtmq.auth.login import refuse_from_outside
from holtmq.auth.rights import Identity, PlaceOf, RightMissing, of_role, of_scopes, of_user
from holtmq.auth.roles import Bearer
from holtmq.auth.users import UserStore

_TOKEN: Final = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


def looks_like_token(password: str) -> bool:
    """Whether a password is a JWT by its form: its header is JSON in base64."""
    return _TOKEN.fullmatch(password) is not None


def identity_of(
    bearer: Bearer, users: UserStore, place_of: PlaceOf, *, from_loopback: bool, expires_at: float | None
) -> Identity:
    """The sender that a token stands for. Raises RightMissing or LoginRefused."""
    if bearer.scopes:
        return of_scopes(users, bearer.scopes, bearer.subject, place_of, expires_at)
    user = users.user(bearer.subject) if bearer.subject is not None else None
    if user is not None:
        refuse_from_outside(user, from_loopback)
        return of_user(users, user, place_of, user.name, expires_at)
    if bearer.role is None:
        raise RightMissing("Insufficient permissions")
    return of_role(users, bearer.role, bearer.subject, place_of, expires_at)
