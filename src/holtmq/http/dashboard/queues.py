"""Queues of both kinds: the list, one queue over time, peeking, and figures over its messages.

Owns: the wire form. Must not touch: counting, leases. Lists are filtered, sorted and paged here, so that an
answer is one page.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Final

from holtmq.auth.permissions import Action
from holtmq.broker.errors import NotFound
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.peeking import waiting
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.dashboard.access_rights import SEE_QUEUES, offered, sees
from holtmq.http.dashboard.api import Dashboard, dashboard_of, series_of
from holtmq.http.dashboard.attention import holders_of
from holtmq.http.dashboard.histograms import Histogram, spread
from holtmq.http.dashboard.ordering import ordered_page
from holtmq.http.dashboard.queue_settings import settings_of
from holtmq.http.dashboard.queue_table import QueueRow
from holtmq.http.engine.endpoints import LOOK, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management.messages import message_row

_PAGE: Final = 50
_PAGE_MOST: Final = 500
_PEEK_MOST: Final = 200
_PEEK_SKIP_MOST: Final = 10_000
_PEEK_BYTES: Final = 4 << 20
_LOOKED_AT_MOST: Final = 5_000  # messages that the histograms of one queue are made from
_SORTS: Final = frozenset(QueueRow.__struct_fields__) - {"paused_since", "paused_by"}
_MAY_BE_UNKNOWN: Final = (
    "unacked",
    "oldest",
    "incoming",
    "outgoing",
    "acked",
    "groups",
    "dead_letters",
    "died_since",
    "bytes",
)
_LOOK_EVERY: Final = 32  # queues between two looks at the clock
_AGES: Final = (1, 10, 60, 600, 3600, 21_600, 86_400)  # seconds
_DELIVERIES: Final = (1, 2, 3, 5, 10, 20)


async def list_queues(call: Call) -> object:
    query, identity = call.query, call.identity
    sort, text = query.text("sort", "name"), query.text("text").lower()
    if sort not in _SORTS:
        raise Refusal(400, f"sort: there is no column {sort!r}; one of {', '.join(sorted(_SORTS))}")
    vhost, kind = query.optional("vhost"), query.optional("kind")
    hide_empty = query.flag("hideEmpty")
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    dashboard = dashboard_of(call.context)
    visible = {name for name in call.context.broker.vhosts if sees(identity, name)}
    stepwise = Stepwise()
    rows: list[QueueRow] = []
    await dashboard.watch.refreshed_lags()  # the oldest unread message of each stream
    for place, row in enumerate((await dashboard.queue_tables.queues()).rows):
        if (
            (not text or text in row.name.lower())
            and row.vhost in visible
            and (vhost is None or vhost == row.vhost)
            and (kind is None or (row.kind == "stream") == (kind == "stream"))
            and not (hide_empty and not row.ready and not row.unacked)
        ):
            rows.append(row)
        if not place % _LOOK_EVERY:
            await stepwise.between()
    page = await ordered_page(rows, _order(sort), query.flag("descending"), skip, limit)
    return {
        "rows": page,
        "total": len(rows),
        "can": [offered(identity, row.vhost, row.name) for row in page],
        "lines": [_line(dashboard, row, call.now) for row in page],
    }


def _order(sort: str) -> Callable[[QueueRow], tuple[object, ...]]:
    if sort not in _MAY_BE_UNKNOWN:
        return attrgetter(sort, "name", "vhost")

    def key(row: QueueRow) -> tuple[object, ...]:
        value = getattr(row, sort)
        return -1 if value is None else value, row.name, row.vhost

    return key


def _line(dashboard: Dashboard, row: QueueRow, now: float) -> list[list[int]] | None:
    """Messages in and out by second, for a line the size of a word; None for a queue that was not used."""
    ring = dashboard.watch.ring(row)
    return None if ring is None else ring.by_second(int(now))[:2]


def queue_of(call: Call) -> Queue:
    """The queue in the path; raises 404, also for a vhost that the viewer does not see."""
    name = call.path["vhost"]
    vhost = call.context.broker.vhosts.get(name) if sees(call.identity, name) else None
    found = vhost.queues.get(call.path["queue"]) if vhost is not None else None
    if found is None:
        raise NotFound(f"no queue '{call.path['queue']}' in vhost '{name}'")
    return found


async def show_queue(call: Call) -> object:
    """A queue with its rates and depth over time, its consumers, and the origin of its settings."""
    context, queue = call.context, queue_of(call)
    dashboard, now = dashboard_of(context), call.now
    depth = queue.figures.depth
    if not isinstance(queue, WorkQueue):
        stream = context.service.store.queues.get(queue.name)
        if stream is None:
            raise NotFound(f"no partitioned queue '{queue.name}'")
        row, ring = (
            dashboard.queue_tables.stream_row(stream, now),
            context.sampler.partitioned.get(queue.name),
        )
    else:
        row, ring = dashboard.queue_tables.work_row(queue, now), queue.figures.ring
    consumers = context.clients.consumers_of(queue.vhost, queue.name)
    kind = queue.options.queue_type
    policy = context.broker.policies.for_queue(queue.vhost, queue.name, kind)
    return {
        "row": row,
        "series": series_of(ring, now),
        "depth": None
        if depth is None
        else {"bySecond": depth.by_second(int(now)), "byMinute": depth.by_minute(int(now))},
        "totals": _totals(queue),
        "consumers": consumers[:_PAGE_MOST],
        "settings": settings_of(context.broker, queue),
        "policy": None if policy is None else policy.name,
        "can": offered(call.identity, queue.vhost, queue.name),
        "findings": await dashboard.watch.findings_of(row, holders_of(consumers), now),
    }


def _totals(queue: Queue) -> dict[str, int] | None:
    if not isinstance(queue, WorkQueue):
        return None
    figures = queue.figures
    totals = figures.totals(queue)
    return {
        "published": totals.published,
        "delivered": totals.delivered,
        "acked": totals.acked,
        "returned": figures.returned,
        "dropped": figures.dropped,
        "purged": figures.purged,
    }


async def peek(call: Call) -> object:
    """Ready messages; they stay in the queue and are not marked redelivered."""
    context, queue = call.context, queue_of(call)
    call.identity.require_in(queue.vhost, Action.READ, queue.name)
    if not isinstance(queue, WorkQueue):
        raise Refusal(400, f"{queue.name} is a partitioned queue: read it with /api/v1/messages")
    limit = call.query.number("limit", 10, 1, _PEEK_MOST)
    skip = call.query.number("offset", 0, 0, _PEEK_SKIP_MOST)
    stepwise, size = Stepwise(), 0
    rows: list[dict[str, object]] = []
    for message in waiting(queue, context.broker.flow.pager, skip):
        rows.append(
            {
                **message_row(queue, message),
                "arrived_at": message.arrived_ms,
                "deliveries": queue.returned.get(message.seq, 0),
            }
        )
        size += len(message.body)
        if len(rows) == limit or size > _PEEK_BYTES:
            break
        await stepwise.between()
    return {"messages": rows, "total": len(queue), "truncated": size > _PEEK_BYTES}


async def show_histograms(call: Call) -> object:
    """Ages and delivery counts of the waiting messages that are first in line."""
    queue = queue_of(call)
    if not isinstance(queue, WorkQueue):
        raise Refusal(400, f"{queue.name} is a partitioned queue: see its partitions")
    now_ms, stepwise = int(call.now * 1000), Stepwise()
    ages, deliveries, seen = Histogram(_AGES), Histogram(_DELIVERIES), 0
    for message in waiting(queue, call.context.broker.flow.pager):
        ages.add(max(0.0, (now_ms - message.arrived_ms) / 1000))
        deliveries.add(queue.returned.get(message.seq, 0))
        seen += 1
        if seen >= _LOOKED_AT_MOST:
            break
        await stepwise.between()
    return {
        "ages": spread(ages),
        "deliveries": spread(deliveries),
        "seen": seen,
        "total": len(queue),
    }


_BASE: Final = "/api/v1/dashboard/queues"
_QUEUE: Final = f"{_BASE}/{{vhost}}/{{queue}}"
ENDPOINTS: Final = (
    Endpoint(
        "GET",
        _BASE,
        SEE_QUEUES,
        "dashboard",
        "Queues of both kinds: one page, filtered and sorted",
        list_queues,
        query=("text", "vhost", "kind", "hideEmpty", "sort", "descending", "offset", "limit"),
        statuses=(200, 400),
    ),
    Endpoint("GET", _QUEUE, SEE_QUEUES, "dashboard", "One queue over time", show_queue, statuses=(200, 404)),
    Endpoint(
        "GET",
        f"{_QUEUE}/messages",
        LOOK,
        "dashboard",
        "Peek at messages without taking them",
        peek,
        query=("offset", "limit"),
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "GET",
        f"{_QUEUE}/histograms",
        SEE_QUEUES,
        "dashboard",
        "Ages and delivery counts of a queue's waiting messages",
        show_histograms,
        statuses=(200, 400, 404),
    ),
)
