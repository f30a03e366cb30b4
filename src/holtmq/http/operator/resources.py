"""Lists of queues, partitions, namespaces and tasks, for operators.

Owns: their wire form. Must not touch: state.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Final

from holtmq.broker.partitioned.commands.admin import clear, queue_named
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.identifiers import partition_id
from holtmq.broker.partitioned.log.message_log import NO_PARTITION
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.statistics import (
    Counts,
    count_group,
    count_queue,
    dead_letters_by_partition,
    group_partitions,
    partition_counts,
)
from holtmq.broker.partitioned.waiting.wide_pops import matches
from holtmq.http.engine.encoded_rows import EncodedRows
from holtmq.http.engine.endpoints import DESTROY_QUEUE, LOOK, LOOK_AT_QUEUE, MONITOR, Call, Endpoint, Stream
from holtmq.http.engine.request import JSON
from holtmq.http.engine.stepwise import Stepwise, in_order
from holtmq.http.engine.wire import encode, iso_ms
from holtmq.http.queues.configure import encryption_out, options_out

_US: Final = 1_000_000
_MOST: Final = 10_000
_ROWS_AT_ONCE: Final = 500
Row = dict[str, object]


def six(counts: Counts) -> dict[str, int]:
    """The six message counts, under the names that dashboards expect."""
    return {
        "total": counts.total,
        "pending": counts.pending,
        "processing": counts.processing,
        "completed": counts.completed,
        "failed": 0,
        "deadLetter": counts.dead_letter,
    }


async def counts_of(stepwise: Stepwise, queues: Iterable[PartitionedQueue], now: float) -> Counts:
    """The sum of the counts of several queues."""
    sums = dict.fromkeys(_COUNTED, 0)
    for queue in queues:
        counts = await stepwise.run(count_queue(queue, now))
        for name in _COUNTED:
            sums[name] += getattr(counts, name)
    return Counts(**sums)


async def selected(call: Call, stepwise: Stepwise) -> list[PartitionedQueue]:
    """The queues that match the request and that the caller may read, newest first."""
    query, found = call.query, list[PartitionedQueue]()
    namespace, task = query.text("namespace") or query.text("ns"), query.text("task")
    wanted, only = query.text("search"), query.text("queue")
    for queue in list(call.service.store.queues.values()):
        await stepwise.between()
        if not matches(namespace, task, queue) or wanted not in queue.name:
            continue
        if (not only or queue.name == only) and call.may_read(queue.name):
            found.append(queue)
    await stepwise.rest()
    found.sort(key=_by_age, reverse=True)
    await stepwise.rest()
    return found


_COUNTED: Final = tuple(field.name for field in fields(Counts))
_by_age: Final = attrgetter("created_us", "number")


def page_of(call: Call, default: int = _MOST) -> tuple[int, int]:
    return call.query.number("limit", default, 0, _MOST), call.query.number("offset", 0)


def queue_head(queue: PartitionedQueue) -> dict[str, object]:
    return {
        "id": str(queue.number),
        "name": queue.name,
        "queue": queue.name,
        "namespace": queue.namespace,
        "task": queue.task,
        "createdAt": iso_ms(queue.created_us),
    }


async def list_queues(call: Call) -> object:
    now, stepwise = call.now, Stepwise()
    limit, skip = page_of(call)
    rows = EncodedRows()
    for queue in (await selected(call, stepwise))[skip : skip + limit]:
        await stepwise.between()
        rows.append(
            {
                **queue_head(queue),
                "partitions": len(queue.indexes),
                "messages": six(await stepwise.run(count_queue(queue, now))),
                "options": options_out(queue.config),
                **encryption_out(queue.config, call.service.store.cipher is not None),
            }
        )
    return {"queues": rows}


async def partition_rows(
    stepwise: Stepwise, queue: PartitionedQueue, indexes: Sequence[int], now: float
) -> AsyncGenerator[list[tuple[int, Row]], None]:
    """(index, row with counts) of each partition, some hundred at a time."""
    letters = dead_letters_by_partition(queue)
    rows: list[tuple[int, Row]] = []
    for index in indexes:
        await stepwise.between()
        where = queue.partitions[index]
        if where is NO_PARTITION:
            continue  # deleted meanwhile
        counts = partition_counts(queue, index, now, letters.get(index, 0))
        oldest = newest = None
        if where.offsets:
            oldest = iso_ms(queue.log.created_us(where.offsets[0]))
            newest = iso_ms(queue.log.created_us(where.offsets[-1]))
        row: Row = {
            "id": partition_id(queue.number, index),
            "name": where.name,
            "createdAt": iso_ms(where.created_us),
            "stats": six(counts),
            "messages": six(counts),
            "oldestMessage": oldest,
            "newestMessage": newest,
        }
        rows.append((index, row))
        if len(rows) == _ROWS_AT_ONCE:
            yield rows
            rows = []
    if rows:
        yield rows


async def with_partitions(
    head: Row, partitions: AsyncGenerator[list[tuple[int, Row]], None], end: Row, count: int
) -> bytes | Stream:
    """An answer of these fields, with the partitions between them; that of very many is sent in pieces, since
    100,000 partitions at once would hold the event loop for a third of a second."""
    pieces = _pieces(head, partitions, end)
    return Stream(pieces, JSON) if count > _ROWS_AT_ONCE else b"".join([piece async for piece in pieces])


async def _pieces(
    head: Row, partitions: AsyncGenerator[list[tuple[int, Row]], None], end: Row
) -> AsyncGenerator[bytes, None]:
    yield encode(head)[:-1] + b',"partitions":['
    comma = b""
    async for rows in partitions:
        yield comma + encode([row for _, row in rows])[1:-1]
        comma = b","
    yield b"]," + encode(end)[1:]


async def show_queue(call: Call) -> object:
    queue, now, stepwise = queue_named(call.service, call.path["queue"]), call.now, Stepwise()
    end: Row = {
        "totals": six(await stepwise.run(count_queue(queue, now))),
        "options": options_out(queue.config),
        **encryption_out(queue.config, call.service.store.cipher is not None),
    }
    rows = partition_rows(stepwise, queue, list(queue.indexes.values()), now)
    return await with_partitions(queue_head(queue), rows, end, len(queue.indexes))


async def queue_depth(call: Call) -> object:
    queue, now, stepwise = queue_named(call.service, call.path["queue"]), call.now, Stepwise()
    name = call.query.optional("group")
    group = queue.groups.get(name) if name is not None else None
    head: dict[str, object] = {"queue": queue.name, "group": name}
    if group is None:
        counts = await stepwise.run(count_queue(queue, now))
        plain = {"pending": counts.pending, "processing": counts.processing, "ready": counts.pending}
        waiting, count = await _waiting(stepwise, queue, now)
        busy = {"partitionsPending": count, "partitionsReady": count}
        effective = {"effectivePending": counts.pending, "effectiveReady": counts.pending}
        return {**head, **plain, **busy, "conflation": False, **effective, "partitions": waiting}
    figures = await stepwise.run(count_group(queue, group, now))
    rows = EncodedRows()
    for place in group_partitions(queue, group, now):
        span = group.visible(place.partition, now, queue.config)
        if place.lag:
            rows.append(
                {
                    "partition": queue.partitions[place.partition].name,
                    "pending": place.lag,
                    "processing": place.lease_size,
                    "ready": 0 if span is None else queue.partitions[place.partition].count(*span),
                }
            )
        await stepwise.between()
    folds = group.conflates
    return {
        **head,
        "pending": figures.lag,
        "processing": figures.processing,
        "ready": figures.ready,
        "partitionsPending": figures.partitions_lagging,
        "partitionsReady": figures.partitions_ready,
        "conflation": folds,
        "effectivePending": figures.partitions_lagging if folds else figures.lag,
        "effectiveReady": figures.partitions_ready if folds else figures.ready,
        "partitions": rows,
    }


async def _waiting(stepwise: Stepwise, queue: PartitionedQueue, now: float) -> tuple[EncodedRows, int]:
    """The partitions with pending messages, and how many these are."""
    rows, count = EncodedRows(), 0
    for name, index in list(queue.indexes.items()):
        await stepwise.between()
        if queue.partitions[index] is NO_PARTITION:
            continue
        counts = partition_counts(queue, index, now)
        if counts.pending:
            figures = {"pending": counts.pending, "processing": counts.processing, "ready": counts.pending}
            rows.append({"partition": name, **figures})
            count += 1
    return rows, count


async def list_namespaces(call: Call) -> object:
    return {"namespaces": await _by(call, "namespace")}


async def list_tasks(call: Call) -> object:
    return {"tasks": await _by(call, "task")}


async def _by(call: Call, what: str) -> EncodedRows:
    now, stepwise = call.now, Stepwise()
    grouped: dict[str, list[PartitionedQueue]] = {}
    for queue in list(call.service.store.queues.values()):
        await stepwise.between()
        if call.may_read(queue.name):
            grouped.setdefault(queue.namespace if what == "namespace" else queue.task, []).append(queue)
    rows = EncodedRows()
    for name in [name async for part in in_order(grouped) for name in part]:
        queues = grouped[name]
        counts = await counts_of(stepwise, queues, now)
        rows.append(
            {
                what: name,
                "queues": len(queues),
                "partitions": await _partitions_of(stepwise, queues),
                "messages": {"total": counts.total, "pending": counts.pending},
            }
        )
    return rows


async def _partitions_of(stepwise: Stepwise, queues: Sequence[PartitionedQueue]) -> int:
    count = 0
    for queue in queues:
        count += len(queue.indexes)
        await stepwise.between()
    return count


async def overview(call: Call) -> object:
    now, stepwise = call.now, Stepwise()
    queues = list(call.service.store.queues.values())
    namespaces, tasks = set[str](), set[str]()
    for queue in queues:
        namespaces.add(queue.namespace)
        tasks.add(queue.task)
        await stepwise.between()
    counts = await counts_of(stepwise, queues, now)
    seconds, offsets = await _lags(stepwise, queues, now)
    total = await call.context.history.read(micros(now), stepwise)
    uptime = max(now - call.context.started_at, 1.0)
    return {
        "queues": len(queues),
        "partitions": await _partitions_of(stepwise, queues),
        "namespaces": len(namespaces - {""}),
        "tasks": len(tasks - {""}),
        "messages": six(counts),
        "lag": {"time": await _spread(stepwise, seconds), "offset": await _spread(stepwise, offsets)},
        "throughput": {
            "ingestedPerSecond": round(total.push_messages / uptime, 3),
            "processedPerSecond": round(total.ack_success / uptime, 3),
        },
        "timestamp": iso_ms(micros(now)),
        "statsAge": 0,
    }


async def _lags(
    stepwise: Stepwise, queues: Sequence[PartitionedQueue], now: float
) -> tuple[list[float], list[float]]:
    seconds: list[float] = []
    offsets: list[float] = []
    for queue in queues:
        for group in list(queue.groups.values()):
            counts = await stepwise.run(count_group(queue, group, now))
            if counts.oldest_us is not None:
                seconds.append(max(0.0, (micros(now) - counts.oldest_us) / _US))
                offsets.append(counts.lag)
    return seconds, offsets


async def _spread(stepwise: Stepwise, values: list[float]) -> dict[str, float]:
    await stepwise.rest()
    if not values:
        return {"avg": 0, "median": 0, "min": 0, "max": 0}
    values = sorted(values)
    middle = values[len(values) // 2]
    return {
        "avg": round(sum(values) / len(values), 3),
        "median": round(middle, 3),
        "min": round(values[0], 3),
        "max": round(values[-1], 3),
    }


async def list_partitions(call: Call) -> object:
    now, stepwise = call.now, Stepwise()
    limit, skip = page_of(call, 1000)
    rows: list[dict[str, object]] = []
    total, end = 0, skip + limit
    for queue in await selected(call, stepwise):
        await stepwise.between()
        mine = list(queue.indexes.values())
        wanted = mine[max(skip - total, 0) : max(end - total, 0)]
        total += len(mine)
        if wanted:
            async for found in partition_rows(stepwise, queue, wanted, now):
                rows += [{**row, "queue": queue.name} for _, row in found]
    return {"partitions": rows, "total": total}


async def clear_queue(call: Call) -> object:
    queue = queue_named(call.service, call.path["queue"])
    count = await Stepwise().run(clear(call.service, queue, call.query.optional("partition")))
    await call.durable()
    return {"cleared": count}


_LIST: Final = ("limit", "offset", "search", "namespace", "task")
ENDPOINTS: Final = (
    Endpoint("GET", "/api/v1/resources/queues", LOOK, "resources", "List queues", list_queues, query=_LIST),
    Endpoint(
        "GET",
        "/api/v1/resources/queues/{queue}",
        LOOK_AT_QUEUE,
        "resources",
        "A queue and its partitions",
        show_queue,
        statuses=(200, 404),
    ),
    Endpoint(
        "GET",
        "/api/v1/resources/queues/{queue}/depth",
        LOOK_AT_QUEUE,
        "resources",
        "Number of waiting messages, for one group or all",
        queue_depth,
        query=("group",),
        statuses=(200, 404),
    ),
    Endpoint("GET", "/api/v1/resources/namespaces", LOOK, "resources", "List namespaces", list_namespaces),
    Endpoint("GET", "/api/v1/resources/tasks", LOOK, "resources", "List tasks", list_tasks),
    Endpoint(
        "GET", "/api/v1/resources/overview", MONITOR, "resources", "The whole node in figures", overview
    ),
    Endpoint(
        "GET",
        "/api/v1/resources/partitions",
        LOOK,
        "resources",
        "List partitions",
        list_partitions,
        query=("queue", *_LIST),
    ),
    Endpoint(
        "DELETE",
        "/api/v1/queues/{queue}/clear",
        DESTROY_QUEUE,
        "resources",
        "Delete every message of a queue",
        clear_queue,
        query=("partition",),
        statuses=(200, 404),
    ),
)
