"""The API of the dashboard and of ``holt stuck|top``: overview, attention, queues of both kinds, peeking.

Owns: the wire form. Must not touch: counting, the rules of attention. Lists are filtered, sorted and paged
here, so that an answer is one page.
"""

import os
from heapq import nlargest, nsmallest
from typing import Final

from holtmq.auth.permissions import Action
from holtmq.broker.errors import NotFound
from holtmq.broker.figures.rings import Ring
from holtmq.broker.work.peeking import waiting
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.dashboard.attention import Thresholds
from holtmq.http.dashboard.facts import Facts, QueueRow
from holtmq.http.dashboard.watch import Watch
from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import ADMINISTER, LOOK, MONITOR, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management.messages import message_row
from holtmq.http.management.wire import plain
from holtmq.http.operator.system import resident_bytes, total_memory

_PAGE: Final = 50
_PAGE_MOST: Final = 500
_PEEK_MOST: Final = 200
_PEEK_SKIP_MOST: Final = 10_000
_PEEK_BYTES: Final = 4 << 20
_SORTS: Final = frozenset(QueueRow.__struct_fields__)


class Dashboard:
    """The dashboard's view of one node; all viewers share the tables it has read."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.facts = Facts(context)
        self.watch = Watch(context, self.facts)


def dashboard_of(context: Context) -> Dashboard:
    """The dashboard of this node."""
    found = context.kept.get(Dashboard)
    if not isinstance(found, Dashboard):
        found = context.kept[Dashboard] = Dashboard(context)
    return found


async def overview(call: Call) -> object:
    return await overview_of(dashboard_of(call.context))


async def overview_of(dashboard: Dashboard) -> dict[str, object]:
    """The node at a glance."""
    context = dashboard.context
    now = context.clock()
    rows = await dashboard.facts.queues()
    findings = await dashboard.watch.findings()
    rates = [round(rate, 1) for rate in context.sampler.node.rates(int(now))]
    limits, journal = context.config.limits, context.journal.stats()
    return {
        "now": int(now * 1000),
        "uptime": round(now - context.started_at, 1),
        "rates": dict(zip(("published", "delivered", "acked"), rates, strict=True)),
        "ready": sum(row.ready for row in rows if row.kind != "stream"),
        "stored": sum(row.ready for row in rows if row.kind == "stream"),
        "unacked": sum(row.unacked or 0 for row in rows),
        "queues": len(rows),
        "connections": context.clients.counts()[0],
        "consumers": sum(row.consumers for row in rows),
        "memory": {"used": resident_bytes(), "limit": limits.memory_bytes(total_memory())},
        "disk": {
            "free": _free_bytes(context),
            "limit": limits.disk_free_min_bytes,
            "journal": journal.bytes_on_disk,
        },
        "journal": {
            "commits": journal.commits,
            "records": journal.records,
            "group": round(journal.records / journal.commits, 1) if journal.commits else None,
            "lastSyncMs": round(journal.last_sync_seconds * 1000, 2) if journal.syncs else None,
            "segments": journal.segments,
            "checkpoints": journal.checkpoints,
        },
        "alarm": context.alarm(),
        "findings": findings,
    }


def _free_bytes(context: Context) -> int | None:
    try:
        disk = os.statvfs(context.config.data.dir)
    except OSError:  # an in-memory journal has no directory
        return None
    return disk.f_bavail * disk.f_frsize


async def attention(call: Call) -> object:
    dashboard = dashboard_of(call.context)
    return {"findings": await dashboard.watch.findings(), "thresholds": dashboard.watch.thresholds}


async def put_thresholds(call: Call) -> object:
    dashboard = dashboard_of(call.context)
    dashboard.watch.change(call.json(Thresholds))
    return dashboard.watch.thresholds


async def list_queues(call: Call) -> object:
    query = call.query
    sort, text = query.text("sort", "name"), query.text("text").lower()
    if sort not in _SORTS:
        raise Refusal(400, f"sort: there is no column {sort!r}; one of {', '.join(sorted(_SORTS))}")
    vhost, kind = query.optional("vhost"), query.optional("kind")
    hide_empty = query.flag("hideEmpty")
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    stepwise, rows = Stepwise(), []
    for row in await dashboard_of(call.context).facts.queues():
        if (
            text in row.name.lower()
            and vhost in (None, row.vhost)
            and (kind is None or (row.kind == "stream") == (kind == "stream"))
            and not (hide_empty and not row.ready and not row.unacked)
        ):
            rows.append(row)
        await stepwise.between()

    def key(row: QueueRow) -> tuple[object, str, str]:
        value = getattr(row, sort)
        return (value if isinstance(value, str) else -1 if value is None else value), row.name, row.vhost

    pick = nlargest if query.flag("descending") else nsmallest
    page = pick(skip + limit, rows, key=key)[skip:]
    return {"rows": page, "total": len(rows)}


def _queue(call: Call) -> WorkQueue:
    vhost = call.context.broker.vhosts.get(call.path["vhost"])
    found = vhost.queues.get(call.path["queue"]) if vhost is not None else None
    if found is None:
        raise NotFound(f"no queue '{call.path['queue']}' in vhost '{call.path['vhost']}'")
    return found


async def show_queue(call: Call) -> object:
    """A queue with its rates over time, its consumers, and the origin of its settings."""
    context, queue = call.context, _queue(call)
    dashboard, now = dashboard_of(context), call.now
    if queue.is_stream:
        stream = context.service.store.queues.get(queue.name)
        if stream is None:
            raise NotFound(f"no partitioned queue '{queue.name}'")
        row, ring = dashboard.facts.stream_row(stream, now), context.sampler.partitioned.get(queue.name)
    else:
        row, ring = dashboard.facts.work_row(queue, now), queue.figures.ring
    holders = dashboard.watch.holders().get((queue.vhost, queue.name), [])
    consumers = [
        one
        for one in context.clients.consumers()
        if one.queue.name == queue.name and one.queue.vhost == queue.vhost
    ]
    return {
        "row": row,
        "series": _series(ring, now),
        "totals": _totals(queue),
        "consumers": consumers,
        "holders": holders,
        "settings": _settings(call, queue),
        "findings": [
            one
            for one in await dashboard.watch.findings()
            if one.subject == "queue" and one.name == queue.name and one.vhost == queue.vhost
        ],
    }


def _totals(queue: WorkQueue) -> dict[str, int] | None:
    if queue.is_stream:
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


def _settings(call: Call, queue: WorkQueue) -> list[dict[str, object]]:
    """Each setting with where it comes from: the queue's own arguments, or a policy."""
    broker, kind = call.context.broker, queue.options.queue_type
    rows: list[dict[str, object]] = [
        {"name": name, "value": plain(value), "origin": "argument"}
        for name, value in sorted(queue.arguments.items())
    ]
    for origin, policies in (("policy", broker.policies), ("operator policy", broker.operator_policies)):
        policy = policies.for_queue(queue.vhost, queue.name, kind)
        if policy is not None:
            rows += [
                {"name": name, "value": plain(value), "origin": f"{origin} {policy.name}"}
                for name, value in sorted(policy.definition.items())
            ]
    return rows


def _series(ring: Ring | None, now: float) -> dict[str, object] | None:
    if ring is None:
        return None
    names, second = ("published", "delivered", "acked"), int(now)
    return {
        "bySecond": dict(zip(names, ring.by_second(second), strict=True)),
        "byMinute": dict(zip(names, ring.by_minute(second), strict=True)),
    }


async def node_series(call: Call) -> object:
    return _series(call.context.sampler.node, call.now)


async def peek(call: Call) -> object:
    """Ready messages; they stay in the queue and are not marked redelivered."""
    context, queue = call.context, _queue(call)
    call.identity.require_in(queue.vhost, Action.READ, queue.name)
    if queue.is_stream:
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


_BASE: Final = "/api/v1/dashboard"
_QUEUE: Final = f"{_BASE}/queues/{{vhost}}/{{queue}}"
ENDPOINTS: Final = (
    Endpoint("GET", f"{_BASE}/overview", MONITOR, "dashboard", "The node at a glance", overview),
    Endpoint("GET", f"{_BASE}/series", MONITOR, "dashboard", "Rates of the last hours", node_series),
    Endpoint("GET", f"{_BASE}/attention", MONITOR, "dashboard", "What needs attention", attention),
    Endpoint(
        "PUT",
        f"{_BASE}/thresholds",
        ADMINISTER,
        "dashboard",
        "Set the thresholds of what needs attention",
        put_thresholds,
        body=Thresholds,
        statuses=(200, 400),
    ),
    Endpoint(
        "GET",
        f"{_BASE}/queues",
        MONITOR,
        "dashboard",
        "Queues of both kinds: one page, filtered and sorted",
        list_queues,
        query=("text", "vhost", "kind", "hideEmpty", "sort", "descending", "offset", "limit"),
        statuses=(200, 400),
    ),
    Endpoint("GET", _QUEUE, MONITOR, "dashboard", "One queue over time", show_queue, statuses=(200, 404)),
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
)
