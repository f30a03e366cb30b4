"""The clients connected over AMQP, read in steps and cached for a second: by connection and by queue.

Owns: what a viewer sees of a connection, and its byte rates. Must not touch: AMQP.
"""

from typing import Final

import msgspec

from holtmq.http.dashboard.fresh import Fresh
from holtmq.http.engine.clients import ConnectionRow, ConsumerRow
from holtmq.http.engine.context import Context
from holtmq.http.engine.stepwise import Stepwise

FRESH_SECONDS: Final = 1.0
_RATE_OVER_AT_MOST: Final = 30.0  # seconds between two readings; after a longer pause a rate is unknown


class ClientRow(msgspec.Struct, kw_only=True, gc=False):
    """One connection. ``held_since``: when its oldest unacked delivery was made, in milliseconds."""

    name: str
    client: str  # the name it gave itself
    product: str
    user: str
    vhost: str
    channels: int
    consumers: int
    state: str
    unacked: int
    held_since: int | None
    connected_at: int
    received: int
    sent: int
    receiving: float | None = None  # bytes per second
    sending: float | None = None
    published: int = 0  # messages
    delivered: int = 0
    settled: int = 0
    publishing: float | None = None  # messages per second
    delivering: float | None = None
    settling: float | None = None


class ClientTable(msgspec.Struct):
    """All connections, and consumers by (vhost, queue)."""

    connections: dict[str, ClientRow]
    consumers: dict[tuple[str, str], list[ConsumerRow]]
    at: float


class ClientTables:
    """The table of clients, rebuilt when it is older than a second."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._before: ClientTable | None = None
        self._table = Fresh(self._read, context.clock, FRESH_SECONDS)

    async def get(self) -> ClientTable:
        """The current table."""
        return await self._table.get()

    def expire(self) -> None:
        """Read again at the next request, after an action on a client."""
        self._table.expire()

    async def _read(self, now: float) -> ClientTable:
        clients, stepwise = self._context.clients, Stepwise()
        connections: dict[str, ClientRow] = {}
        for row in clients.connections(ordered=False):
            connections[row.name] = self._row(row, now)
            await stepwise.between()
        consumers: dict[tuple[str, str], list[ConsumerRow]] = {}
        for one in clients.consumers(ordered=False):
            consumers.setdefault((one.queue.vhost, one.queue.name), []).append(one)
            holder = connections.get(one.channel_details.connection_name)
            if holder is not None:
                holder.consumers += 1
                holder.unacked += one.messages_unacknowledged
                since = [at for at in (holder.held_since, one.held_since) if at is not None]
                holder.held_since = min(since, default=None)
            await stepwise.between()
        self._before = ClientTable(connections, consumers, now)
        return self._before

    def _row(self, row: ConnectionRow, now: float) -> ClientRow:
        product, version = (row.client_properties.get(name, "") for name in ("product", "version"))
        shown = ClientRow(
            name=row.name,
            client=row.user_provided_name,
            product=f"{product} {version}".strip(),
            user=row.user,
            vhost=row.vhost,
            channels=row.channels,
            consumers=0,
            state=row.state,
            unacked=0,
            held_since=None,
            connected_at=row.connected_at,
            received=row.recv_oct,
            sent=row.send_oct,
            published=row.published,
            delivered=row.delivered,
            settled=row.settled,
        )
        before = self._before
        known = before.connections.get(row.name) if before is not None else None
        if before is None or known is None:
            return shown
        passed = now - before.at
        if passed <= 0:  # read twice at the same moment
            shown.receiving, shown.sending = known.receiving, known.sending
            shown.publishing, shown.delivering = known.publishing, known.delivering
            shown.settling = known.settling
        elif passed <= _RATE_OVER_AT_MOST:
            shown.receiving = round(max(0, row.recv_oct - known.received) / passed, 1)
            shown.sending = round(max(0, row.send_oct - known.sent) / passed, 1)
            shown.publishing = round(max(0, row.published - known.published) / passed, 1)
            shown.delivering = round(max(0, row.delivered - known.delivered) / passed, 1)
            shown.settling = round(max(0, row.settled - known.settled) / passed, 1)
        return shown
