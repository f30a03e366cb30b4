"""Connections with their unacknowledged messages, and where a message would be routed.

Owns: the wire form of both. Must not touch: AMQP, the rules of routing.
"""

from heapq import nlargest, nsmallest
from typing import Final

import msgspec

from holtmq.broker.errors import NotFound
from holtmq.http.engine.clients import ConnectionRow
from holtmq.http.engine.endpoints import MONITOR, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management.topology import exchange_name
from holtmq.http.management.wire import checked_key, checked_table

_PAGE: Final = 50
_PAGE_MOST: Final = 500
_LATE: Final = 1 << 62  # sorts connections that hold nothing last


class ClientRow(msgspec.Struct, kw_only=True):
    """One connection. ``held_since``: when its oldest unacked delivery was made, in milliseconds."""

    name: str
    client: str  # the name it gave itself
    product: str
    user: str
    vhost: str
    channels: int
    state: str
    unacked: int
    held_since: int | None
    connected_at: int
    received: int
    sent: int


class RouteIn(msgspec.Struct, kw_only=True):
    vhost: str = "/"
    exchange: str = ""
    routing_key: str = ""
    headers: dict[str, object] = {}


async def list_connections(call: Call) -> object:
    query, clients, stepwise = call.query, call.context.clients, Stepwise()
    sort, text = query.text("sort", "held_since"), query.text("text").lower()
    if sort not in ClientRow.__struct_fields__:
        columns = ", ".join(ClientRow.__struct_fields__)
        raise Refusal(400, f"sort: there is no column {sort!r}; one of {columns}")
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    held: dict[str, tuple[int, int | None]] = {}
    for consumer in clients.consumers():
        name = consumer.channel_details.connection_name
        count, since = held.get(name, (0, None))
        begun = [at for at in (since, consumer.held_since) if at is not None]
        held[name] = (count + consumer.messages_unacknowledged, min(begun, default=None))
    rows: list[ClientRow] = []
    for row in clients.connections():
        shown = _client_row(row, *held.get(row.name, (0, None)))
        if text in f"{shown.name} {shown.client} {shown.user} {shown.product}".lower():
            rows.append(shown)
        await stepwise.between()

    def key(row: ClientRow) -> tuple[object, str]:
        value = getattr(row, sort)
        return (_LATE if value is None else value), row.name

    pick = nlargest if query.flag("descending") else nsmallest
    return {"rows": pick(skip + limit, rows, key=key)[skip:], "total": len(rows)}


def _client_row(row: ConnectionRow, unacked: int, held_since: int | None) -> ClientRow:
    product, version = (row.client_properties.get(name, "") for name in ("product", "version"))
    return ClientRow(
        name=row.name,
        client=row.user_provided_name,
        product=f"{product} {version}".strip(),
        user=row.user,
        vhost=row.vhost,
        channels=row.channels,
        state=row.state,
        unacked=unacked,
        held_since=held_since,
        connected_at=row.connected_at,
        received=row.recv_oct,
        sent=row.send_oct,
    )


async def route_test(call: Call) -> object:
    """The queues that a message with this key and these headers would reach now."""
    asked = call.json(RouteIn)
    vhost = call.context.broker.vhosts.get(asked.vhost)
    if vhost is None:
        raise NotFound(f"no vhost '{asked.vhost}'")
    start = vhost.exchange(exchange_name(asked.exchange))
    headers = checked_table(asked.headers, "headers")
    result = vhost.route(start, checked_key(asked.routing_key), headers, None)
    return {
        "queues": sorted(queue.name for queue in result.queues),
        "delayed_by": [delay.exchange.name for delay in result.delays],
    }


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/api/v1/dashboard/connections",
        MONITOR,
        "dashboard",
        "Connections: one page, filtered and sorted",
        list_connections,
        query=("text", "sort", "descending", "offset", "limit"),
        statuses=(200, 400),
    ),
    Endpoint(
        "POST",
        "/api/v1/dashboard/route-test",
        MONITOR,
        "dashboard",
        "Where a message would go",
        route_test,
        body=RouteIn,
        statuses=(200, 400, 404),
    ),
)
