"""Maps errors to HTTP statuses. No other module pairs broker errors with numbers.

Owns: the shape of error answers and the codes in them. Must not touch: sockets, state.
"""

import logging
from typing import Final

import msgspec

from holtmq.auth.rights import RightMissing
from holtmq.auth.tokens import TokenRefused
from holtmq.broker.errors import (
    AccessRefused,
    BrokerError,
    Conflict,
    JournalUnavailable,
    LimitReached,
    NotFound,
    ResourceLocked,
)
from holtmq.broker.partitioned.store import MessagesSetAside
from holtmq.journal.interface import JournalFailed, RecordUnreadable

log = logging.getLogger(__name__)

EMPTY_BODY: Final = "Empty request body"


class Refusal(Exception):
    """A request that the HTTP layer itself refuses; the text is part of the API's contract."""

    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.code = code or _CODES.get(status, "error")


_CODES: Final = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "payload_too_large",
    415: "unsupported_media_type",
    429: "rate_limited",
    500: "internal",
    503: "unavailable",
}

# A refused acknowledgment is an answer with 200: AckRefused does not reach this table.
_STATUSES: Final[tuple[tuple[type[BrokerError], int, str], ...]] = (
    (NotFound, 404, "not_found"),
    (LimitReached, 429, "queue_full"),
    (AccessRefused, 403, "forbidden"),
    (ResourceLocked, 409, "locked"),
    (JournalUnavailable, 503, "unavailable"),
    (Conflict, 400, "bad_request"),
)


def answer_for(error: Exception) -> tuple[int, bytes]:
    """(status, body) for an exception from a handler; an unexpected one is logged and answered 500."""
    if isinstance(error, Refusal):
        return error.status, error_body(str(error), error.code)
    if isinstance(error, TokenRefused):
        return 401, error_body(str(error), "unauthorized")
    if isinstance(error, RightMissing):
        return 403, error_body(str(error), "forbidden")
    if isinstance(error, JournalFailed):
        return 503, error_body(str(error), "unavailable")
    if isinstance(error, MessagesSetAside):
        text = f"a message cannot be read and was set aside; ask again for the others: {error}"
        return 503, error_body(text, "set_aside")
    if isinstance(error, RecordUnreadable):
        return 500, error_body(f"the message cannot be read: {error}", "unreadable")
    if isinstance(error, BrokerError):
        for kind, status, code in _STATUSES:
            if isinstance(error, kind):
                return status, error_body(str(error), code)
    if isinstance(error, UnicodeError):  # msgspec raises it for a string that is not valid UTF-8
        return 400, error_body(f"Invalid JSON: {error}", "bad_request")
    if isinstance(error, RecursionError):
        return 400, error_body("Invalid JSON: nested too deeply", "bad_request")
    log.error("request failed", exc_info=error)
    return 500, error_body("Internal server error", "internal")


def error_body(text: str, code: str) -> bytes:
    return msgspec.json.encode({"error": text, "code": code})


def invalid_json(error: Exception) -> Refusal:
    """For a body that is not JSON, or not of the expected shape."""
    return Refusal(400, f"Invalid JSON: {error}")
