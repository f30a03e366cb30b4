"""Queues of both kinds: the list, one queue over time, peeking, and figures over its messages.

Owns: the wire form. Must not touch: counting, leases. Lists are filtered, sorted and paged here, so that an
answer is one page.
"""

from itertools import islice
from typing import Final

from holtmq.auth.permissions import Action
from holtmq.auth.users import DEFAULT_VHOST
from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.peeking import waiting
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.dashboard.access_rights import SEE_QUEUES, offered
from holtmq.http.dashboard.api import Dashboard, dashboard_of, series_of
from holtmq.http.dashboard.histograms import Histogram, spread
from holtmq.http.dashboard.ordering import ordered_page
from holtmq.http.dashboard.queue_columns import COLUMNS, QueueRow, WorkColumns, is_shown
from holtmq.http.dashboard.queue_settings import settings_of
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
_LOOK_EVERY: Final = 32  # queues between two looks at the clock
_AGES: Final = (1, 10, 60, 600, 3600, 21_600, 86_400)  # seconds
_DELIVERIES: Final = (1, 2, 3, 5, 10, 20)


async def list_queues(call: Call) -> object:
    query, identity, context = call.query, call.identity, call.context
    sort, text = query.text("sort", "name"), query.text("text").lower()
    if sort not in COLUMNS:
        raise Refusal(400, f"sort: there is no column {sort!r}; one of {', '.join(sorted(COLUMNS))}")
    vhost, kind = query.optional("vhost"), query.optional("kind")
    hide_empty = query.flag("hideEmpty")
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    dashboard, stepwise = dashboard_of(context), Stepwise()
    await dashboard.watch.refreshed_lags()  # the oldest unread message of each stream
    work, streams = WorkColumns(context, call.now), dashboard.watch.stream_columns(call.now)
    shown = [
        found
        for name, found in context.broker.vhosts.items()
        if identity.sees(name) and (vhost is None or vhost == name)
    ]
    found: list[WorkQueue | PartitionedQueue] = []
    for home in shown if kind != "stream" else ():
        for place, queue in enumerate(list(home.queues.values())):
            if (
                is_shown(queue)
                and (not text or text in queue.name.lower())
                and not (hide_empty and not len(queue.store) and not queue.unacked)
            ):
                found.append(queue)
            if not place % _LOOK_EVERY:
                await stepwise.between()
    if kind in (None, "stream") and any(home.name == DEFAULT_VHOST for home in shown):
        for place, stream in enumerate(list(call.service.store.queues.values())):
            if (not text or text in stream.name.lower()) and not (hide_empty and not stream.log.live):
                found.append(stream)
            if not place % _LOOK_EVERY:
                await stepwise.between()
    read, read_stream = work.sort_key(sort), streams.sort_key(sort)

    def key(queue: WorkQueue | PartitionedQueue) -> tuple[object, str, str]:
        if isinstance(queue, WorkQueue):
            value = read(queue)
            return -1 if value is None else value, queue.name, queue.vhost
        value = read_stream(queue)
        return -1 if value is None else value, queue.name, DEFAULT_VHOST

    rows: list[QueueRow] = []
    lines: list[list[list[int]] | None] = []
    for one in await ordered_page(found, key, query.flag("descending"), skip, limit):
        row = work.row(one) if isinstance(one, WorkQueue) else streams.row(one)
        rows.append(row)
        lines.append(_line(dashboard, row, call.now))
        await stepwise.between()
    return {
        "rows": rows,
        "total": len(found),
        "can": [offered(identity, row.vhost, row.name) for row in rows],
        "lines": lines,
    }


def _line(dashboard: Dashboard, row: QueueRow, now: float) -> list[list[int]] | None:
    """Messages in and out by second, for a line the size of a word; None for a queue that was not used."""
    ring = dashboard.watch.ring(row)
    return None if ring is None else ring.by_second(int(now))[:2]


def queue_of(call: Call) -> Queue:
    """The queue in the path; raises 404, also for a vhost that the viewer does not see."""
    name = call.path["vhost"]
    vhost = call.broker.vhosts.get(name) if call.identity.sees(name) else None
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
            dashboard.watch.stream_columns(now).row(stream),
            context.sampler.partitioned.get(queue.name),
        )
    else:
        row, ring = WorkColumns(context, now).row(queue), queue.figures.ring
    consumers = list(islice(context.clients.consumers_of(queue.vhost, queue.name), _PAGE_MOST))
    others = context.clients.other_holders_of(queue.vhost, queue.name)
    kind = queue.options.queue_type
    policy = context.broker.policies.for_queue(queue.vhost, queue.name, kind)
    return {
        "row": row,
        "series": series_of(ring, now),
        "depth": None
        if depth is None
        else {"bySecond": depth.by_second(int(now)), "byMinute": depth.by_minute(int(now))},
        "totals": _totals(queue),
        "consumers": consumers,
        "settings": settings_of(context.broker, queue),
        "policy": None if policy is None else policy.name,
        "can": offered(call.identity, queue.vhost, queue.name),
        "others": others[:_PAGE_MOST],
        "findings": await dashboard.watch.findings_of(row, await dashboard.watch.holders_of(queue), now),
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
    for message in waiting(queue, call.broker.flow.pager):
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
