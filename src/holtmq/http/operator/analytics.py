"""Time series by queue, worker and machine.

Owns: their wire form. Must not touch: counting. This node is the only worker; its counts are the cluster's.
"""

import os
import socket
from typing import Final

from holtmq.auth.rights import MONITORING, Right
from holtmq.broker.partitioned.counters import QueueCounts
from holtmq.broker.partitioned.groups.group import micros
from holtmq.http.engine.encoded_rows import EncodedRows
from holtmq.http.engine.endpoints import ADMIN, MONITOR, Call, Endpoint
from holtmq.http.engine.history import OTHERS, summed
from holtmq.http.engine.stepwise import Stepwise, in_order
from holtmq.http.engine.wire import iso_ms
from holtmq.http.operator.resources import counts_of
from holtmq.http.operator.status import lag_ms, span_of, time_range

_HOST: Final = socket.gethostname()


async def system_metrics(call: Call) -> object:
    from_us, to_us, width = await span_of(call)
    points = []
    for start in call.context.history.starts(from_us, to_us, width):
        machine = call.context.history.machine_between(start, width)
        if machine.samples:
            metrics = {
                "cpu": {
                    "user_us": int(machine.cpu_user * 1e6),
                    "system_us": int(machine.cpu_system * 1e6),
                },
                "memory": {"rss_bytes": machine.rss_bytes // machine.samples},
                "eventLoop": {"maxLagMs": round(machine.loop_lag_max * 1000, 3)},
            }
            points.append({"timestamp": iso_ms(start), "sampleCount": machine.samples, "metrics": metrics})
    replica = {"hostname": _HOST, "port": call.context.config.http.port, "workerId": os.getpid()}
    return {
        "timeRange": time_range(from_us, to_us),
        "bucketMinutes": width,
        "replicas": [{**replica, "timeSeries": points}],
        "replicaCount": 1,
        "pointCount": len(points),
    }


async def worker_metrics(call: Call) -> object:
    now = call.now
    from_us, to_us, width = await span_of(call)
    line: list[dict[str, object]] = []
    queues: dict[str, QueueCounts] = {}
    stepwise = Stepwise()
    async for start, rows in call.context.history.buckets(from_us, to_us, width, stepwise):
        row = await summed(rows, stepwise)
        line.append({"timestamp": iso_ms(start), **_counts(row, width * 60)})
        for name, more in rows.items():
            queues.setdefault(name, QueueCounts()).add(more)
            await stepwise.between()
    total = await summed(queues, stepwise)
    counts = await counts_of(stepwise, list(call.service.store.queues.values()), now)
    queues.pop(OTHERS, None)
    shown = EncodedRows()
    async for part in in_order(queues):
        for name in part:
            shown.append({"queueName": name, **_lag(queues[name])})
            await stepwise.between()
    return {
        "timeRange": time_range(from_us, to_us),
        "bucketMinutes": width,
        "timeSeries": line,
        "workers": [{"hostname": _HOST, "workerId": os.getpid(), "healthy": call.context.health()[0]}],
        "queues": shown,
        "summary": {
            "totalPushRequests": total.push_requests,
            "totalPushMessages": total.push_messages,
            "totalPopRequests": total.pop_requests,
            "totalPopMessages": total.pop_messages,
            "totalAckRequests": total.ack_requests,
            "totalAckMessages": total.ack_success,
            "totalAckFailed": total.ack_failed,
            "totalTransactions": total.transactions,
            "totalDlqMessages": total.dead_letters,
            "totalDbErrors": 0,
            "pendingMessages": counts.pending,
            "avgLagMs": lag_ms(total),
            "maxLagMs": round(total.lag_max_us / 1000, 3),
        },
        "pointCount": len(line),
    }


def _counts(row: QueueCounts, seconds: int) -> dict[str, object]:
    return {
        "pushRequests": row.push_requests,
        "pushMessages": row.push_messages,
        "popMessages": row.pop_messages,
        "popEmpty": row.pop_empty,
        "ackRequests": row.ack_requests,
        "ackSuccess": row.ack_success,
        "ackFailed": row.ack_failed,
        "transactions": row.transactions,
        "avgLagMs": lag_ms(row),
        "maxLagMs": round(row.lag_max_us / 1000, 3),
        "pushPerSecond": round(row.push_messages / seconds, 3),
        "popPerSecond": round(row.pop_messages / seconds, 3),
        "ackPerSecond": round(row.ack_success / seconds, 3),
        "emptyPerSecond": round(row.pop_empty / seconds, 3),
    }


def _lag(row: QueueCounts) -> dict[str, object]:
    return {
        "popCount": row.pop_messages,
        "avgLagMs": lag_ms(row),
        "maxLagMs": round(row.lag_max_us / 1000, 3),
    }


async def queue_lag(call: Call) -> object:
    only = call.query.optional("queue")
    from_us, to_us, width = await span_of(call)
    stepwise = Stepwise()
    found = EncodedRows()
    async for start, rows in call.context.history.buckets(from_us, to_us, width, stepwise):
        for name, row in rows.items():
            if row.pop_requests and only in (None, name) and name != OTHERS:
                found.append({"queueName": name, **_lag(row), "bucketTime": iso_ms(start)})
            await stepwise.between()
    return found


async def queue_ops(call: Call) -> object:
    only = call.query.optional("queue")
    from_us, to_us, width = await span_of(call)
    series, shown = EncodedRows(), EncodedRows()
    names: set[str] = set()
    stepwise = Stepwise()
    async for start, rows in call.context.history.buckets(from_us, to_us, width, stepwise):
        for name, row in rows.items():
            await stepwise.between()
            if only not in (None, name) or name == OTHERS:
                continue
            names.add(name)
            queue = call.service.store.queues.get(name)
            series.append(
                {
                    "bucket": iso_ms(start),
                    "queueName": name,
                    **_counts(row, width * 60),
                    "partitionsCreated": row.partitions_created,
                    "partitionsDeleted": row.partitions_deleted,
                    "partitionCount": 0 if queue is None else len(queue.indexes),
                    "parkedCount": call.service.line.waiting_on(name),
                }
            )
    async for part in in_order(names):
        for name in part:
            shown.append(name)
    return {
        "timeRange": time_range(from_us, to_us),
        "bucketMinutes": width,
        "series": series,
        "queues": shown,
    }


async def parked(call: Call) -> object:
    """Pops that wait now; there is no history of waiting pops."""
    from_us, to_us, width = await span_of(call)
    at = iso_ms(micros(call.now))
    rows = [
        {
            "bucket": at,
            "queueName": name,
            "hostname": _HOST,
            "workerId": os.getpid(),
            "parkedCount": call.service.line.waiting_on(name),
        }
        for name in call.service.store.queues
        if call.service.line.waiting_on(name)
    ]
    head = {"timeRange": time_range(from_us, to_us), "bucketMinutes": width}
    return {**head, "series": rows, "replicas": [{"hostname": _HOST, "workerId": os.getpid()}]}


async def retention(call: Call) -> object:
    from_us, to_us, width = await span_of(call)
    series: list[dict[str, object]] = []
    total = QueueCounts()
    stepwise = Stepwise()
    async for start, rows in call.context.history.buckets(from_us, to_us, width, stepwise):
        row = await summed(rows, stepwise)
        series.append({"bucket": iso_ms(start), **_aged(row)})
        total.add(row)
    head = {"timeRange": time_range(from_us, to_us), "bucketMinutes": width}
    return {**head, "series": series, "totals": _aged(total)}


def _aged(row: QueueCounts) -> dict[str, object]:
    gone = row.retained + row.retained_completed + row.evicted
    return {
        "retentionMsgs": row.retained,
        "completedRetentionMsgs": row.retained_completed,
        "evictionMsgs": row.evicted,
        "totalMsgs": gone,
        "eventCount": int(gone > 0),
    }


async def refresh(call: Call) -> object:
    """Statistics are always live: there is nothing to refresh."""
    await call.context.history.read(micros(call.now))
    return {"success": True, "refreshed": False}


async def postgres(call: Call) -> object:
    return {}


_SPAN: Final = ("from", "to")
_BASE: Final = "/api/v1/analytics"
_QUEUE: Final = (*_SPAN, "queue")
ENDPOINTS: Final = (
    Endpoint(
        "GET", f"{_BASE}/system-metrics", MONITOR, "analytics", "The machine", system_metrics, query=_SPAN
    ),
    Endpoint("GET", f"{_BASE}/worker-metrics", MONITOR, "analytics", "The node", worker_metrics, query=_SPAN),
    Endpoint("GET", f"{_BASE}/queue-lag", MONITOR, "analytics", "Age at delivery", queue_lag, query=_QUEUE),
    Endpoint(
        "GET", f"{_BASE}/queue-ops", MONITOR, "analytics", "Operations by queue", queue_ops, query=_QUEUE
    ),
    Endpoint(
        "GET", f"{_BASE}/queue-parked-replicas", MONITOR, "analytics", "Waiting pops", parked, query=_SPAN
    ),
    Endpoint(
        "GET",
        f"{_BASE}/retention",
        MONITOR,
        "analytics",
        "Messages deleted by retention",
        retention,
        query=_SPAN,
    ),
    Endpoint("GET", f"{_BASE}/postgres-stats", MONITOR, "analytics", "Empty: there is no database", postgres),
    Endpoint(
        "POST",
        "/api/v1/stats/refresh",
        Right(ADMIN, tags=(MONITORING,)),
        "analytics",
        "Refresh the statistics",
        refresh,
    ),
)
