"""The clients connected over AMQP, read in steps and cached for a second.

Owns: their rates, between two readings. Must not touch: AMQP.
"""

from typing import Final

from holtmq.http.dashboard.fresh import Fresh
from holtmq.http.engine.clients import ClientRow
from holtmq.http.engine.context import Context
from holtmq.http.engine.stepwise import Stepwise

_FRESH_SECONDS: Final = 1.0
_RATE_OVER_AT_MOST: Final = 30.0  # seconds between two readings; after a longer pause a rate is unknown


class ClientTables:
    """All connections by name, read again when the last reading is older than a second."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._before: dict[str, ClientRow] = {}
        self._read_at = 0.0
        self._table = Fresh(self._read, context.clock, _FRESH_SECONDS)

    async def get(self) -> dict[str, ClientRow]:
        """The current table."""
        return await self._table.get()

    def expire(self) -> None:
        """Read again at the next request, after an action on a client."""
        self._table.expire()

    async def _read(self, now: float) -> dict[str, ClientRow]:
        stepwise = Stepwise()
        found: dict[str, ClientRow] = {}
        passed = now - self._read_at
        for row in self._context.clients.at_a_glance():
            found[row.name] = row
            known = self._before.get(row.name)
            if known is not None and passed <= _RATE_OVER_AT_MOST:
                _set_rates(row, known, passed)
            await stepwise.between()
        self._before, self._read_at = found, now
        return found


def _set_rates(row: ClientRow, known: ClientRow, passed: float) -> None:
    if passed <= 0:  # read twice at the same moment
        row.receiving, row.sending = known.receiving, known.sending
        row.publishing, row.delivering, row.settling = known.publishing, known.delivering, known.settling
        return
    row.receiving = _rate(row.received, known.received, passed)
    row.sending = _rate(row.sent, known.sent, passed)
    row.publishing = _rate(row.published, known.published, passed)
    row.delivering = _rate(row.delivered, known.delivered, passed)
    row.settling = _rate(row.settled, known.settled, passed)


def _rate(now: int, before: int, passed: float) -> float:
    return round((now - before) / passed, 1) if now > before else 0.0
