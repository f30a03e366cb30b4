"""What can go wrong in a call to a broker, as types a program can catch.

Owns: the errors of the client, and how an answer's status, code and text become one of them.
Must not touch: sockets, retries; who catches decides.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from holtmq.client.records import PushResult


class ClientError(Exception):
    """Anything this client raises on purpose."""


class ConnectionFailed(ClientError):
    """No broker could be reached, or it hung up before it answered."""


class TimedOut(ConnectionFailed):
    """The broker did not answer in time. Whether it did what was asked is unknown."""


class HungUp(ClientError):
    """This client withdrew the request itself, because it is stopping."""


class ClientClosed(ClientError):
    """The client was closed before this call."""


class BadAnswer(ClientError):
    """What came back is not what this call is answered with: probably not a broker."""


class OutcomeUnknown(ClientError):
    """A connection broke during a commit, and the second try was refused: the first may have been applied."""


class Refused(ClientError):
    """The broker said no: its text, its stable word in ``code``, the HTTP ``status``."""

    def __init__(
        self, text: str, *, status: int = 200, code: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retry_after = retry_after


class BadRequest(Refused):
    """The request makes no sense to the broker (400, and other 4xx without a type of their own)."""


class Unauthorized(Refused):
    """No credentials, or not valid ones (401)."""


class Forbidden(Refused):
    """The user's permissions, or the token's role, do not allow this (403)."""


class NotFound(Refused):
    """There is no such thing (404)."""


class Conflict(Refused):
    """It contradicts what is there (409)."""


class TooLarge(Refused):
    """More messages or bytes than one request may carry (413)."""


class Overloaded(Refused):
    """Too much at the moment (429), and still so after all tries."""


class QueueFull(Overloaded):
    """The queue holds as many messages as its ``max_size`` allows; nothing was stored."""


class Unavailable(Refused):
    """The broker cannot do its work (5xx), and still so after all tries."""


class AckRefused(Refused):
    """An acknowledgment did not count."""


class LeaseLost(AckRefused):
    """The lease is over: the message is, or will be, delivered again."""


class MessageNotFound(AckRefused):
    """No such message in that partition."""


class TransactionFailed(Refused):
    """Nothing of the transaction was applied."""


class PushFailed(ClientError):
    """Some items of a push were not stored; ``results`` tells which."""

    def __init__(self, text: str, results: "Sequence[PushResult]") -> None:
        super().__init__(text)
        self.results = results


_BY_STATUS: Final[dict[int, type[Refused]]] = {
    401: Unauthorized,
    408: Unavailable,  # what a proxy says about a connection it gave up, not about a request
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
    """The error an answer of 400 or above stands for."""
    try:
        told = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.MsgspecError:  # a proxy's page, or nothing at all
        told = _ErrorBody(body[:_TEXT_MAX].decode("utf-8", "replace").strip())
    kind: type[Refused] = Unavailable if status >= 500 else _BY_STATUS.get(status, BadRequest)
    if status == 429 and told.code == "queue_full":
        kind = QueueFull
    text = told.error or f"the broker answered with status {status}"
    return kind(text, status=status, code=told.code, retry_after=retry_after)


def ack_refusal(text: str | None) -> AckRefused:
    """The error a refused acknowledgment stands for; the wire has only a text for it."""
    told = text or "the acknowledgment was refused"
    lowered = told.lower()
    if "not found" in lowered or "not_found" in lowered:
        return MessageNotFound(told, code="not_found")
    if any(word in lowered for word in _LEASE_TEXTS):
        return LeaseLost(told, code="invalid_lease")
    return AckRefused(told, code="refused")


def is_passing(error: ClientError) -> bool:
    """Whether the same request may succeed later: no connection, 429 or 5xx, never another 4xx."""
    return isinstance(error, ConnectionFailed | Overloaded | Unavailable)
