"""The list of connections, and where a message would be routed.

Owns: the wire form of both. Must not touch: AMQP, the rules of routing.
"""

from typing import Final

import msgspec

from holtmq.broker.errors import NotFound
from holtmq.http.dashboard.api import dashboard_of
from holtmq.http.dashboard.ordering import ordered_page
from holtmq.http.engine.clients import ClientRow
from holtmq.http.engine.endpoints import MONITOR, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management.topology import exchange_name
from holtmq.http.management.wire import checked_key, checked_table

_PAGE: Final = 50
_PAGE_MOST: Final = 500
_LATE: Final = 1 << 62  # sorts connections that hold nothing last


class RouteIn(msgspec.Struct, kw_only=True):
    vhost: str = "/"
    exchange: str = ""
    routing_key: str = ""
    headers: dict[str, object] = {}


async def list_connections(call: Call) -> object:
    query, stepwise = call.query, Stepwise()
    sort, text = query.text("sort", "held_since"), query.text("text").lower()
    if sort not in ClientRow.__struct_fields__:
        columns = ", ".join(ClientRow.__struct_fields__)
        raise Refusal(400, f"sort: there is no column {sort!r}; one of {columns}")
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    rows: list[ClientRow] = []
    for place, row in enumerate((await dashboard_of(call.context).clients.get()).values()):
        if not text or text in f"{row.name} {row.client} {row.user} {row.product}".lower():
            rows.append(row)
        if not place % 32:
            await stepwise.between()

    def key(row: ClientRow) -> tuple[object, str]:
        value = getattr(row, sort)
        return (_LATE if value is None else value), row.name

    page = await ordered_page(rows, key, query.flag("descending"), skip, limit)
    return {"rows": page, "total": len(rows)}


async def list_consumers(call: Call) -> object:
    """The consumers of one connection."""
    name = call.path["connection"]
    connection = (await dashboard_of(call.context).clients.get()).get(name)
    found = call.context.clients.consumers_on(name, _PAGE_MOST)
    if connection is None or found is None:
        raise NotFound(f"no connection '{name}'")
    consumers, total = found
    return {"connection": connection, "consumers": consumers, "total": total}


async def route_test(call: Call) -> object:
    """The queues that a message with this key and these headers would reach now."""
    asked = call.json(RouteIn)
    vhost = call.broker.vhosts.get(asked.vhost)
    if vhost is None:
        raise NotFound(f"no vhost '{asked.vhost}'")
    start = vhost.exchange(exchange_name(asked.exchange))
    headers = checked_table(asked.headers, "headers")
    walk, stepwise = vhost.walk(start, checked_key(asked.routing_key), headers), Stepwise()
    queues: set[str] = set()
    for part in walk:
        queues.update(queue.name for queue in part)
        await stepwise.between()
    return {"queues": sorted(queues), "delayed_by": [delay.exchange.name for delay in walk.delays]}


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
        "GET",
        "/api/v1/dashboard/connections/{connection}/consumers",
        MONITOR,
        "dashboard",
        "The consumers of a connection",
        list_consumers,
        statuses=(200, 404),
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
