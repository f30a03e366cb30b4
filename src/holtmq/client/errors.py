"""The exceptions a call to a broker may raise.

Owns: the client's exceptions, and the mapping from a response's status, code and text to one of them.
Must not touch: sockets, retries; the caller decides.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from holtmq.client.records import PushResult


class ClientError(Exception):
    """Base class of all exceptions of this client."""


class ConnectionFailed(ClientError):
    """No broker could be reached, or it closed the connection before it answered."""


class TimedOut(ConnectionFailed):
    """The broker did not answer in time. Whether it executed the request is unknown."""


class HungUp(ClientError):
    """This client cancelled the request itself, because it is stopping."""


class ClientClosed(ClientError):
    """The client was closed before this call."""


class BadAnswer(ClientError):
    """The response does not fit the call: the server is probably not a HoltMQ broker."""


class OutcomeUnknown(ClientError):
    """A connection broke during a commit, and the second try was refused: the first may have been applied."""


class Refused(ClientError):
    """The broker refused: its text, its stable error ``code``, the HTTP ``status``."""

    def __init__(
        self, text: str, *, status: int = 200, code: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retry_after = retry_after


class BadRequest(Refused):
    """The broker rejects the request as invalid (400, and other 4xx without a class of their own)."""


class Unauthorized(Refused):
    """Missing or invalid credentials (401)."""


class Forbidden(Refused):
    """The user's permissions, or the token's role, do not allow this (403)."""


class NotFound(Refused):
    """No such object (404)."""


class Conflict(Refused):
    """The request conflicts with the current state (409)."""


class TooLarge(Refused):
    """More messages or bytes than one request may carry (413)."""


class Overloaded(Refused):
    """Too many requests (429), even after all attempts."""


class QueueFull(Overloaded):
    """The queue holds as many messages as its ``max_size`` allows; nothing was stored."""


class Unavailable(Refused):
    """The broker is failing (5xx), even after all attempts."""


class AckRefused(Refused):
    """An acknowledgment was refused."""


class LeaseLost(AckRefused):
    """The lease has expired: the message was or will be delivered again."""


class MessageNotFound(AckRefused):
    """No such message in that partition."""


class TransactionFailed(Refused):
    """Nothing of the transaction was applied."""


class PushFailed(ClientError):
    """Some items of a push were not stored; ``results`` says which."""

    def __init__(self, text: str, results: "Sequence[PushResult]") -> None:
        super().__init__(text)
        self.results = results


_BY_STATUS: Final[dict[int, type[Refused]]] = {
    401: Unauthorized,
    408: Unavailable,  # a proxy sends it about a dropped connection, not about the request
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    429: Overloaded,
}
_LEASE_TEXTS: Final = ("lease", "stale")
_TEXT_MAX: Final = 500


class _ErrorBody(msgspec.Struct):
    error: str = ""
    code: str = ""


def refusal(status: int, body: bytes, retry_after: float | None = None) -> Refused:
    """The exception for a response with status 400 or above."""
    try:
        told = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.MsgspecError:  # a proxy's error page, or an empty body
        told = _ErrorBody(body[:_TEXT_MAX].decode("utf-8", "replace").strip())
    kind: type[Refused] = Unavailable if status >= 500 else _BY_STATUS.get(status, BadRequest)
    if status == 429 and told.code == "queue_full":
        kind = QueueFull
    text = told.error or f"the broker answered with status {status}"
    return kind(text, status=status, code=told.code, retry_after=retry_after)


def ack_refusal(text: str | None) -> AckRefused:
    """The exception for a refused acknowledgment; the wire carries only a text."""
    told = text or "the acknowledgment was refused"
    lowered = told.lower()
    if "not found" in lowered or "not_found" in lowered:
        return MessageNotFound(told, code="not_found")
    if any(word in lowered for word in _LEASE_TEXTS):
        return LeaseLost(told, code="invalid_lease")
    return AckRefused(told, code="refused")


def is_passing(error: ClientError) -> bool:
    """Whether the same request may succeed later: no connection, 429 or 5xx; never another 4xx."""
    return isinstance(error, ConnectionFailed | Overloaded | Unavailable)
