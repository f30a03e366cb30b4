"""The broker's errors, named for what went wrong.

Owns: the refusals that rules raise. Must not touch: reply codes and HTTP statuses; each edge
translates once, in one place.
"""


class BrokerError(Exception):
    """A request was refused; the text names the thing and what would be right."""


class NotFound(BrokerError):
    """The named queue, exchange, vhost, group or message does not exist."""


class Conflict(BrokerError):
    """The request contradicts the state: inequivalent argument, in use, not empty, bad value."""


class Protected(Conflict):
    """The object is protected from deletion."""


class AccessRefused(BrokerError):
    """The user may not do this, or the name is reserved."""


class ResourceLocked(BrokerError):
    """Another connection owns the exclusive resource."""


class LimitReached(BrokerError):
    """A limit was reached: queue full, too many of something."""


class StillExpiring(BrokerError):
    """Very many messages have expired: a later turn finds out whether there is one behind them."""


class JournalUnavailable(BrokerError):
    """The journal failed; nothing more can be made durable until the node is restarted."""
