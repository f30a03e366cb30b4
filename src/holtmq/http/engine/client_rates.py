"""Rates of clients for the management API: from one request to the next.

Owns: the last figures of each client that was listed. Must not touch: clocks, counting. A connection has no
ring of its own, because thousands of them would cost memory and time although most are never looked at.
"""

from typing import Final, NamedTuple

_LEAST_SECONDS: Final = 1.0  # between two figures for a rate; an earlier request gets the last rate again
_MOST_SECONDS: Final = 300.0  # after a longer pause a rate would be about the distant past
_MOST_CLIENTS: Final = 100_000  # connections, channels and vhosts; beyond that the oldest are forgotten


class _Seen(NamedTuple):
    at: float
    totals: tuple[int, ...]
    rates: tuple[float, ...]


class ClientRates:
    """What was shown last, by client."""

    def __init__(self) -> None:
        self._seen: dict[object, _Seen] = {}

    def rates(
        self, client: object, totals: tuple[int, ...], now: float, *, signed: bool = False
    ) -> tuple[float, ...]:
        """How fast each of the totals has grown since the last request; 0 at the first. ``signed``: they are
        levels, which also fall; a total falls only if another client has this name."""
        before = self._seen.get(client)
        if before is not None and 0 <= now - before.at < _LEAST_SECONDS:
            return before.rates
        rates = (0.0,) * len(totals)
        if before is not None and 0 < now - before.at <= _MOST_SECONDS:
            pairs = zip(totals, before.totals, strict=True)
            changes = [new - old if signed else max(0, new - old) for new, old in pairs]
            rates = tuple(round(change / (now - before.at), 1) for change in changes)
        self._seen.pop(client, None)  # the newest is last
        self._seen[client] = _Seen(now, totals, rates)
        if len(self._seen) > _MOST_CLIENTS:
            del self._seen[next(iter(self._seen))]
        return rates
