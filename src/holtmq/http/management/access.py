"""Who may use the management API: HTTP basic authentication with the broker's own users.

Owns: reading the header, the tags a request needs, permissions inside a vhost. Must not touch: argon2 (the
authenticator runs it in a thread), routes.
"""

import base64
import binascii
import logging
from enum import Enum
from typing import Final

from holtmq.auth.login import Authenticator, LoginRefused, is_loopback
from holtmq.auth.permissions import DEFAULT_EXCHANGE, Action
from holtmq.auth.users import ADMINISTRATOR, User
from holtmq.broker.broker import Broker
from holtmq.broker.errors import AccessRefused
from holtmq.http.engine.errors import Refusal

log = logging.getLogger(__name__)

MONITORING: Final = "monitoring"


class Need(Enum):
    """What a user must be for a request."""

    LOGIN = "login"
    MONITORING = "monitoring"
    ADMINISTRATOR = "administrator"

    def check(self, user: User) -> None:
        """403 when the user's tags are too few."""
        if self is Need.LOGIN or user.is_administrator:
            return
        if self is Need.ADMINISTRATOR:
            raise Refusal(403, f"user '{user.name}' has no tag '{ADMINISTRATOR}'")
        if MONITORING not in user.tags:
            raise Refusal(403, f"user '{user.name}' has none of the tags '{ADMINISTRATOR}', '{MONITORING}'")


async def log_in(authenticator: Authenticator, authorization: str | None, host: str) -> User:
    """The user these credentials belong to, or 401."""
    credentials = read_basic(authorization)
    if credentials is None:
        raise Refusal(401, "HTTP basic authentication is required")
    try:
        return await authenticator.authenticate(*credentials, from_loopback=is_loopback(host))
    except LoginRefused as refusal:
        log.warning("login refused", extra={"reason": str(refusal), "peer": host})
        # One text for every reason: a stranger must not learn which names exist.
        raise Refusal(401, "Login failed") from None


def read_basic(authorization: str | None) -> tuple[str, str] | None:
    """Name and password of a basic header; None when it is not one."""
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    name, colon, password = text.partition(":")
    return (name, password) if colon else None


def require(broker: Broker, user: User, vhost: str, action: Action, name: str) -> None:
    """The same permissions, and the same words, as over AMQP: a tag alone opens no queue."""
    name = name or DEFAULT_EXCHANGE
    if not broker.users.may(user.name, vhost, action, name):
        raise AccessRefused(
            f"ACCESS_REFUSED - {action.value} access to '{name}' in vhost '{vhost}' "
            f"refused for user '{user.name}'"
        )
