"""Protocol errors, and the only place that maps broker errors to reply codes.

Owns: the two kinds of protocol error and the translation of broker errors. Must not touch: frames.
"""

from typing import Final

from holtmq.amqp.codes import ReplyCode
from holtmq.broker.errors import (
    AccessRefused,
    BrokerError,
    Conflict,
    LimitReached,
    NotFound,
    ResourceLocked,
)


class AmqpError(Exception):
    """The peer gets a close method with this code and text."""

    def __init__(self, code: ReplyCode, text: str, which: int = 0) -> None:
        super().__init__(text)
        self.code = code
        self.which = which  # class and method number that caused it; 0: unknown, or the caller adds it

    @property
    def reply_text(self) -> str:
        """The text in RabbitMQ's form, which users search for. A short string holds 255 bytes."""
        full = f"{self.code.name} - {self}"
        return full.encode("utf-8", "replace")[:255].decode("utf-8", "ignore")


class ChannelFault(AmqpError):
    """An error that closes the channel."""


class ConnectionFault(AmqpError):
    """An error that closes the connection."""


_CODES: Final = (
    (NotFound, ReplyCode.NOT_FOUND),
    (AccessRefused, ReplyCode.ACCESS_REFUSED),
    (ResourceLocked, ReplyCode.RESOURCE_LOCKED),
    (Conflict, ReplyCode.PRECONDITION_FAILED),
    (LimitReached, ReplyCode.PRECONDITION_FAILED),
)


def channel_error(error: BrokerError) -> AmqpError:
    """Translate a broker error into a channel error; an unknown kind closes the connection."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return ChannelFault(code, str(error))
    return ConnectionFault(ReplyCode.INTERNAL_ERROR, str(error))
