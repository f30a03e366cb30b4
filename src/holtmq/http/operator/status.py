"""The node's state for dashboards: now, and over the last hours.

Owns: the wire form of time series and totals. Must not touch: counting; fields with no meaning here (database
pools, workers) are zero or empty, never missing.
"""

from collections import Counter
from collections.abc import AsyncGenerator
from typing import Final

from holtmq.broker.partitioned.commands.admin import queue_named
from holtmq.broker.partitioned.counters import QueueCounts
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.statistics import count_queue
from holtmq.http.engine.encoded_rows import EncodedRows
from holtmq.http.engine.endpoints import LOOK, LOOK_AT_QUEUE, MONITOR, Call, Endpoint
from holtmq.http.engine.history import MINUTE_US, bucket_minutes, summed
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import iso_ms
from holtmq.http.operator.resources import (
    Row,
    counts_of,
    page_of,
    partition_rows,
    queue_head,
    selected,
    six,
    with_partitions,
)
from holtmq.http.queues.configure import options_out

_HOUR_US: Final = 60 * MINUTE_US
_INTERVALS: Final = {"minute": 1, "hour": 60, "day": 1440}
_OPTIONS_SHOWN: Final = ("leaseTime", "retryLimit", "retryDelay", "ttl", "maxQueueSize")


async def span_of(call: Call, default_us: int = _HOUR_US) -> tuple[int, int, int]:
    """(from, to, bucket width in minutes) of a request; the counters are read first."""
    now_us = micros(call.now)
    await call.context.history.read(now_us)
    to_us = call.query.time_us("to")
    to_us = now_us if to_us is None else to_us
    from_us = call.query.time_us("from")
    from_us = to_us - default_us if from_us is None else min(from_us, to_us)
    # The history covers one day: a huge span must not become a million empty buckets.
    from_us = max(from_us, to_us - 31 * 24 * _HOUR_US)
    return from_us, to_us, bucket_minutes(from_us, to_us)


def time_range(from_us: int, to_us: int) -> dict[str, str]:
    return {"from": iso_ms(from_us), "to": iso_ms(to_us)}


def lag_ms(row: QueueCounts) -> float:
    return round(row.lag_sum_us / row.pop_requests / 1000, 3) if row.pop_requests else 0


async def status(call: Call) -> object:
    now, stepwise = call.now, Stepwise()
    queues = await selected(call, stepwise)
    names = {queue.name for queue in queues}
    everything = not any(call.query.text(name) for name in ("queue", "namespace", "ns", "task"))
    from_us, to_us, width = await span_of(call)
    line: list[dict[str, object]] = []
    total = QueueCounts()
    async for start, rows in call.context.history.buckets(from_us, to_us, width, stepwise):
        row = await summed(rows, stepwise, None if everything else names)
        line.append(_point(call, start, width, row))
        total.add(row)
    counts = await counts_of(stepwise, queues, now)
    consumed = EncodedRows()
    for queue in queues:
        consumed.append(_consumed(queue))
        await stepwise.between()
    return {
        "timeRange": time_range(from_us, to_us),
        "bucketMinutes": width,
        "pointCount": len(line),
        "throughput": line,
        "queues": consumed,
        "messages": {
            **six(counts),
            "requests": {"push": total.push_requests, "pop": total.pop_requests, "ack": total.ack_requests},
            "batchEfficiency": {
                "push": _ratio(total.push_messages, total.push_requests),
                "pop": _ratio(total.pop_messages, total.pop_requests),
                "ack": _ratio(total.ack_success, total.ack_requests),
            },
        },
        "leases": await _leases(stepwise, queues, now),
        "deadLetterQueue": await _letters(stepwise, queues),
        "workers": [],
        "errors": {"dbErrors": 0, "ackFailed": total.ack_failed, "dlqMessages": total.dead_letters},
        "statsAge": 0,
    }


def _ratio(messages: int, requests: int) -> float:
    return round(messages / requests, 2) if requests else 0


def _point(call: Call, start: int, width: int, row: QueueCounts) -> dict[str, object]:
    seconds = width * 60
    machine = call.context.history.machine_between(start, width)
    rss = machine.rss_bytes / machine.samples if machine.samples else 0
    return {
        "timestamp": iso_ms(start),
        "ingested": row.push_messages,
        "processed": row.ack_success,
        "popMessages": row.pop_messages,
        "ingestedPerSecond": round(row.push_messages / seconds, 3),
        "processedPerSecond": round(row.ack_success / seconds, 3),
        "popPerSecond": round(row.pop_messages / seconds, 3),
        "avgLagMs": lag_ms(row),
        "maxLagMs": round(row.lag_max_us / 1000, 3),
        "avgEventLoopLagMs": round(machine.loop_lag_max * 1000, 3),
        "maxEventLoopLagMs": round(machine.loop_lag_max * 1000, 3),
        "minFreeSlots": 0,
        "dbErrors": 0,
        "ackFailed": row.ack_failed,
        "dlqCount": row.dead_letters,
        "queenCpuUserPct": round(machine.cpu_user / seconds * 100, 2),
        "queenCpuSysPct": round(machine.cpu_system / seconds * 100, 2),
        "queenRssMb": round(rss / (1 << 20), 2),
        "dbPoolActive": 0,
        "dbPoolIdle": 0,
        "dbPoolSize": 0,
    }


def _consumed(queue: PartitionedQueue) -> dict[str, object]:
    consumed = sum(sum(group.leases.consumed) for group in queue.groups.values())
    return {
        "id": str(queue.number),
        "name": queue.name,
        "namespace": queue.namespace,
        "task": queue.task,
        "partitions": len(queue.indexes),
        "totalConsumed": consumed,
    }


async def _leases(stepwise: Stepwise, queues: list[PartitionedQueue], now: float) -> dict[str, int]:
    ids, places, size = set[str](), set[tuple[int, int]](), 0
    for queue in queues:
        for group in list(queue.groups.values()):
            for lease in list(group.leases.live(now)):
                ids.add(lease.id)
                places.add((queue.number, lease.partition))
                size += lease.size
        await stepwise.between()
    return {
        "active": len(ids),
        "partitionsWithLeases": len(places),
        "totalBatchSize": size,
        "totalAcked": 0,
    }


async def _letters(stepwise: Stepwise, queues: list[PartitionedQueue]) -> dict[str, object]:
    errors: Counter[str] = Counter()
    places: set[tuple[int, int]] = set()
    for queue in queues:
        await stepwise.between()
        for letter in list(queue.dead_letters):
            await stepwise.between()
            errors[letter.error] += 1
            places.add((queue.number, letter.partition))
    return {
        "totalMessages": errors.total(),
        "affectedPartitions": len(places),
        "topErrors": [{"error": text, "count": count} for text, count in errors.most_common(10)],
    }


async def status_queues(call: Call) -> object:
    now, stepwise = call.now, Stepwise()
    limit, skip = page_of(call, 100)
    rows = EncodedRows()
    for queue in (await selected(call, stepwise))[skip : skip + limit]:
        await stepwise.between()
        head = {**queue_head(queue), "partitions": len(queue.indexes)}
        rows.append({**head, "messages": six(await stepwise.run(count_queue(queue, now)))})
    return {"queues": rows, "pagination": {"limit": limit, "offset": skip}}


async def status_queue(call: Call) -> object:
    queue, now, stepwise = queue_named(call.service, call.path["queue"]), call.now, Stepwise()
    config, options = queue.config, options_out(queue.config)
    totals = six(await stepwise.run(count_queue(queue, now)))
    head: Row = {
        "queue": {
            **queue_head(queue),
            "priority": config.priority,
            "config": {
                **{name: options[name] for name in _OPTIONS_SHOWN},
                "deadLetterQueue": config.files_dead_letters,
            },
        },
    }
    rows = partition_rows(stepwise, queue, list(queue.indexes.values()), now)
    rows = _with_cursors(stepwise, queue, rows)
    end: Row = {"totals": {"messages": totals, **totals}}
    return await with_partitions(head, rows, end, len(queue.indexes))


async def _with_cursors(
    stepwise: Stepwise, queue: PartitionedQueue, partitions: AsyncGenerator[list[tuple[int, Row]], None]
) -> AsyncGenerator[list[tuple[int, Row]], None]:
    async for rows in partitions:
        for index, row in rows:
            await stepwise.between()
            groups = [group for group in queue.groups.values() if group.leases.cursor(index) is not None]
            consumed = sum(group.leases.consumed[index] for group in groups)
            row["cursor"] = {"totalConsumed": consumed, "batchesConsumed": 0}
            last = max((group.leases.settled_at[index] for group in groups), default=0)
            row["lastActivity"] = iso_ms(last) if last else row["newestMessage"]
        yield rows


async def analytics(call: Call) -> object:
    interval = call.query.text("interval", "hour")
    width = _INTERVALS.get(interval, 60)
    from_us, to_us, _ = await span_of(call, 24 * _HOUR_US)
    stepwise = Stepwise()
    points = [
        {"timestamp": iso_ms(start), "messages": (await summed(rows, stepwise)).push_messages}
        async for start, rows in call.context.history.buckets(from_us, to_us, width, stepwise)
    ]
    return {"dataPoints": points, "interval": interval, **time_range(from_us, to_us)}


_SPAN: Final = ("from", "to")
ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/api/v1/status",
        MONITOR,
        "status",
        "Throughput, totals, leases, dead letters",
        status,
        query=(*_SPAN, "queue", "namespace", "task"),
    ),
    Endpoint(
        "GET",
        "/api/v1/status/queues",
        LOOK,
        "status",
        "Queues with their totals",
        status_queues,
        query=("limit", "offset", "namespace", "task"),
    ),
    Endpoint(
        "GET",
        "/api/v1/status/queues/{queue}",
        LOOK_AT_QUEUE,
        "status",
        "A queue, partition by partition",
        status_queue,
        statuses=(200, 404),
    ),
    Endpoint(
        "GET",
        "/api/v1/status/analytics",
        MONITOR,
        "status",
        "Messages pushed over time",
        analytics,
        query=("interval", *_SPAN),
    ),
)
