"""The API of the dashboard's front page and of ``holt stuck|top``: the node at a glance, and its findings.

Owns: the wire form, and the tables that all viewers share. Must not touch: counting, the rules of attention.
"""

import os
from typing import Final

from holtmq.broker.figures.rings import Ring
from holtmq.http.dashboard.client_table import ClientTables
from holtmq.http.dashboard.thresholds import Thresholds
from holtmq.http.dashboard.watch import Watch
from holtmq.http.engine.context import Context
from holtmq.http.engine.endpoints import ADMINISTER, MONITOR, Call, Endpoint
from holtmq.http.operator.system import resident_bytes, total_memory


class Dashboard:
    """The dashboard's view of one node; all viewers share the tables it has read."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.clients = ClientTables(context)
        self.watch = Watch(context)


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
    findings = await dashboard.watch.findings()
    sampler, counts = context.sampler, context.broker.counts
    rates = [round(rate, 1) for rate in sampler.node.rates(int(now))]
    limits, journal = context.config.limits, context.journal.stats()
    return {
        "now": int(now * 1000),
        "uptime": round(now - context.started_at, 1),
        "rates": dict(zip(("published", "delivered", "acked"), rates, strict=True)),
        "ready": sampler.ready,
        "stored": findings.stored,
        "unacked": sampler.unacked,
        "queues": findings.queues,
        "connections": counts.connections_opened - counts.connections_closed,
        "consumers": counts.consumers,
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
            "syncP50Ms": milliseconds(journal.commit_seconds.quantile(0.5)),
            "syncP99Ms": milliseconds(journal.commit_seconds.quantile(0.99)),
            "segments": journal.segments,
            "checkpoints": journal.checkpoints,
        },
        "alarm": context.alarm(),
        "findings": findings.worst,
        "findingsTotal": findings.total,
    }


def milliseconds(seconds: float | None) -> float | None:
    """Seconds as milliseconds for an answer; unknown stays unknown."""
    return None if seconds is None else round(seconds * 1000, 2)


def _free_bytes(context: Context) -> int | None:
    try:
        disk = os.statvfs(context.config.data.dir)
    except OSError:  # an in-memory journal has no directory
        return None
    return disk.f_bavail * disk.f_frsize


async def attention(call: Call) -> object:
    dashboard = dashboard_of(call.context)
    found = await dashboard.watch.findings()
    return {"findings": found.worst, "total": found.total, "thresholds": dashboard.watch.thresholds}


async def put_thresholds(call: Call) -> object:
    dashboard = dashboard_of(call.context)
    dashboard.watch.change(call.json(Thresholds))
    await call.durable()
    return dashboard.watch.thresholds


def series_of(ring: Ring | None, now: float) -> dict[str, object] | None:
    """Counts by second and by minute; None for what was never used."""
    if ring is None:
        return None
    names, second = ("published", "delivered", "acked"), int(now)
    return {
        "bySecond": dict(zip(names, ring.by_second(second), strict=True)),
        "byMinute": dict(zip(names, ring.by_minute(second), strict=True)),
    }


async def node_series(call: Call) -> object:
    return series_of(call.context.sampler.node, call.now)


_BASE: Final = "/api/v1/dashboard"
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
)
