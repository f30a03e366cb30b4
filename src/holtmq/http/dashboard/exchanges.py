"""Exchanges: the list with what leads nowhere, and the bindings of one for drawing.

Owns: the wire form, and what counts as unbound and unread. Must not touch: routing.
"""

from itertools import islice
from typing import Final

import msgspec

from holtmq.auth.permissions import DEFAULT_EXCHANGE
from holtmq.broker.errors import NotFound
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.exchanges import Exchange
from holtmq.broker.topology.vhost import QueueBinding, QueueExchange, VHost
from holtmq.http.dashboard.access_rights import SEE_QUEUES, offered
from holtmq.http.dashboard.ordering import ordered_page
from holtmq.http.engine.endpoints import Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import plain
from holtmq.http.management.topology import exchange_name, exchange_rates
from holtmq.http.management.wire import properties_key

_PAGE: Final = 50
_PAGE_MOST: Final = 500
_DRAWN_MOST: Final = 500  # bindings in one answer
_LOOKED_AT_MOST: Final = 200  # bindings that are looked at to find a reader


class ExchangeRow(msgspec.Struct, kw_only=True):
    """One exchange. ``is_unread``: it leads to queues, none of which has a reader; None: not determined."""

    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    bindings: int | None  # None: the default exchange leads to every queue
    is_unbound: bool
    is_unread: bool | None
    alternate: str | None
    policy: str | None
    published: int = 0  # messages since the start
    publishing: float = 0.0  # messages per second


_SORTS: Final = ("name", "vhost", "type", "bindings", "is_unbound", "policy", "published", "publishing")


async def list_exchanges(call: Call) -> object:
    query, broker, stepwise = call.query, call.broker, Stepwise()
    sort, text = query.text("sort", "name"), query.text("text").lower()
    if sort not in _SORTS:
        raise Refusal(400, f"sort: there is no column {sort!r}; one of {', '.join(_SORTS)}")
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    vhost, only_unbound = query.optional("vhost"), query.flag("unbound")
    rows: list[ExchangeRow] = []
    for where in list(broker.vhosts.values()):
        if vhost not in (None, where.name) or not call.identity.sees(where.name):
            continue
        for exchange in list(where.exchanges.values()):
            if text in exchange.name.lower():
                row = _row(call, where, exchange)
                if row.is_unbound or not only_unbound:
                    rows.append(row)
            await stepwise.between()

    def key(row: ExchangeRow) -> tuple[object, str, str]:
        value = getattr(row, sort)
        if value is None:
            value = "" if sort == "policy" else -1
        return value, row.name, row.vhost

    page = await ordered_page(rows, key, query.flag("descending"), skip, limit)
    for row in page:
        where = broker.vhosts[row.vhost]
        row.is_unread = _is_unread(call, where, where.exchanges[row.name])
        await stepwise.between()
    return {
        "rows": page,
        "total": len(rows),
        "can": [offered(call.identity, row.vhost, row.name or DEFAULT_EXCHANGE) for row in page],
    }


def _row(call: Call, vhost: VHost, exchange: QueueExchange) -> ExchangeRow:
    policy = call.broker.policies.for_exchange(vhost.name, exchange.name)
    alternate = vhost.alternate_of(exchange)
    return ExchangeRow(
        name=exchange.name,
        vhost=vhost.name,
        type=exchange.kind.value,
        durable=exchange.durable,
        auto_delete=exchange.auto_delete,
        internal=exchange.internal,
        bindings=None if exchange.is_default else exchange.binding_count,
        is_unbound=not exchange.is_default and exchange.is_unused,
        is_unread=None,
        alternate=None if alternate is None else alternate.name,
        policy=None if policy is None else policy.name,
        published=exchange.published,
        publishing=exchange_rates(exchange, call.now)[0],
    )


def _is_unread(call: Call, vhost: VHost, exchange: QueueExchange) -> bool | None:
    if exchange.is_default or exchange.is_unused:
        return None
    for count, binding in enumerate(exchange.bindings()):
        if count >= _LOOKED_AT_MOST:
            return None
        if isinstance(binding.destination, Exchange):
            if not binding.destination.is_unused:
                return False  # the exchange behind it has a row of its own
        elif _is_read(call, binding.destination):
            return False
    return True


def _is_read(call: Call, queue: Queue) -> bool:
    if queue.consumers or not queue.is_stream:
        return bool(queue.consumers)
    stream = call.service.store.queues.get(queue.name)
    return stream is not None and bool(stream.groups)


async def show_exchange(call: Call) -> object:
    """One exchange with the bindings from it and to it."""
    name, stepwise = call.path["vhost"], Stepwise()
    vhost = call.broker.vhosts.get(name) if call.identity.sees(name) else None
    if vhost is None:
        raise NotFound(f"no vhost '{name}'")
    exchange = vhost.exchange(exchange_name(call.path["exchange"]))
    bindings: list[dict[str, object]] = []
    total = 0
    found = [] if exchange.is_default else list(exchange.bindings())
    for binding in found:
        total += 1
        if len(bindings) < _DRAWN_MOST:
            bindings.append(_binding_row(call, binding))
        await stepwise.between()
    row = _row(call, vhost, exchange)
    row.is_unread = _is_unread(call, vhost, exchange)
    return {
        "row": row,
        "arguments": plain(dict(exchange.arguments)),
        "bindings": bindings,
        "total": total,
        "sources": [
            {"source": binding.source, "routing_key": binding.routing_key}
            for binding in islice(vhost.bindings_to(exchange), _DRAWN_MOST)
        ],
        "can": offered(call.identity, vhost.name, exchange.name or DEFAULT_EXCHANGE),
    }


def _binding_row(call: Call, binding: QueueBinding) -> dict[str, object]:
    arguments, end = dict(binding.arguments), binding.destination
    return {
        "destination": end.name,
        "destination_type": "exchange" if isinstance(end, Exchange) else "queue",
        "routing_key": binding.routing_key,
        "arguments": plain(arguments),
        "properties_key": properties_key(binding.routing_key, arguments),
        "ready": None if isinstance(end, Exchange) else len(end),
        "is_unread": end.is_unused if isinstance(end, Exchange) else not _is_read(call, end),
    }


_BASE: Final = "/api/v1/dashboard/exchanges"
ENDPOINTS: Final = (
    Endpoint(
        "GET",
        _BASE,
        SEE_QUEUES,
        "dashboard",
        "Exchanges: one page, with what leads nowhere",
        list_exchanges,
        query=("text", "vhost", "unbound", "sort", "descending", "offset", "limit"),
        statuses=(200, 400),
    ),
    Endpoint(
        "GET",
        f"{_BASE}/{{vhost}}/{{exchange}}",
        SEE_QUEUES,
        "dashboard",
        "An exchange with its bindings",
        show_exchange,
        statuses=(200, 404),
    ),
)
