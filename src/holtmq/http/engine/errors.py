"""Maps errors to HTTP statuses. No other module pairs broker errors with numbers.

Owns: the shape of error answers and the codes in them. Must not touch: sockets, state.
"""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from holtmq.auth.rights import RightMissing
from holtmq.auth.roles import TokenRefused
from holtmq.broker.errors import (
    AccessRefused,
    BrokerError,
    Conflict,
    JournalUnavailable,
    LimitReached,
    NotFound,
    Protected,
    ResourceLocked,
)
from holtmq.broker.partitioned.store import MessagesSetAside
from holtmq.journal.interface import JournalFailed, RecordUnreadable
from holtmq.name_patterns import BadPattern
from holtmq.wire.primitives import CodecError

log = logging.getLogger(__name__)

EMPTY_BODY: Final = "Empty request body"


class Refusal(Exception):
    """A request that the HTTP layer itself refuses; the text is part of the API's contract."""

    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.code = code or _CODES.get(status, "error")


class NoRoute(Refusal):
    """No endpoint has this path, or none has this method on it: then some other methods are allowed."""

    def __init__(self, method: str, path: str, allowed: Sequence[str]) -> None:
        self.path = path
        self.allow = ", ".join(allowed)
        if allowed:
            super().__init__(405, f"{method} is not a method of this path; {self.allow} would be")
        else:
            super().__init__(404, "not found", "no_such_route")


_CODES: Final = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    412: "precondition_failed",
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
    (Protected, 412, "protected"),
    (Conflict, 400, "bad_request"),
)


class Failure(NamedTuple):
    """What an exception from a handler means for the client."""

    status: int
    text: str
    code: str


def failure_of(error: Exception) -> Failure:
    """The meaning of an exception from a handler; an unexpected one is logged."""
    match error:
        case Refusal():
            return Failure(error.status, str(error), error.code)
        case TokenRefused():
            return Failure(401, str(error), "unauthorized")
        case RightMissing():
            return Failure(403, str(error), "forbidden")
        case JournalFailed():
            return Failure(503, str(error), "unavailable")
        case MessagesSetAside():
            text = f"a message cannot be read and was set aside; ask again for the others: {error}"
            return Failure(503, text, "set_aside")
        case RecordUnreadable():
            return Failure(500, f"the message cannot be read: {error}", "unreadable")
        case BadPattern() | CodecError():
            return Failure(400, str(error), "bad_request")
        case UnicodeError():  # msgspec raises it for a string that is not valid UTF-8
            return Failure(400, f"Invalid JSON: {error}", "bad_request")
        case RecursionError():
            return Failure(400, "Invalid JSON: nested too deeply", "bad_request")
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return Failure(status, str(error), code)
    log.error("request failed", exc_info=error)
    return Failure(500, "Internal server error", "internal")


def answer_for(error: Exception) -> tuple[int, bytes]:
    """(status, body) for an exception from a handler."""
    status, text, code = failure_of(error)
    more = {"path": error.path} if isinstance(error, NoRoute) else {}
    return status, error_body(text, code, more)


def error_body(text: str, code: str, more: Mapping[str, str] = MappingProxyType({})) -> bytes:
    return msgspec.json.encode({"error": text, "code": code, **more})


def invalid_json(error: Exception) -> Refusal:
    """For a body that is not JSON, or not of the expected shape."""
    return Refusal(400, f"Invalid JSON: {error}")
