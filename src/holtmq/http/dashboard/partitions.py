"""The partitions of a partitioned queue by backlog, and deleting those that are idle.

Owns: the wire form. Must not touch: what idle means, how a backlog is counted.
"""

from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.commands.idle_partitions import STEP_PARTITIONS, decide_idle
from holtmq.broker.partitioned.groups.group import Group
from holtmq.broker.partitioned.log.message_log import GONE, NO_PARTITION
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.http.dashboard.access_rights import SEE_QUEUES
from holtmq.http.dashboard.ordering import ordered_page
from holtmq.http.dashboard.queues import queue_of
from holtmq.http.engine.endpoints import CONFIGURE_QUEUE, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.queues.configure import options_out

_US: Final = 1_000_000
_DRAWN: Final = 500  # partitions in one answer
_DRAWN_MOST: Final = 5_000
_LOOK_EVERY: Final = 32  # partitions between two looks at the clock
_WEIGHED: Final = 32  # messages that the estimate of the stored bytes is made from
_DAY: Final = 86_400.0


class IdleIn(msgspec.Struct, rename="camel"):
    idle_seconds: float = _DAY
    dry_run: bool = False


class PartitionRow(msgspec.Struct, kw_only=True):
    """One partition: messages stored, and how many of them the chosen group has not read."""

    name: str
    stored: int
    backlog: int
    oldest: float | None  # seconds: age of the first message of the backlog


def stream_of(call: Call) -> PartitionedQueue:
    """The partitioned queue in the path."""
    queue = queue_of(call)
    found = call.service.store.queues.get(queue.name) if queue.is_stream else None
    if found is None:
        raise NotFound(f"no partitioned queue '{queue.name}' in vhost '{queue.vhost}'")
    return found


async def show_partitions(call: Call) -> object:
    """Partitions with the largest backlog first: of one group, or of stored messages without one."""
    queue, now, stepwise = stream_of(call), call.now, Stepwise()
    name = call.query.optional("group")
    group = None
    if name is not None:
        group = queue.groups.get(name)
        if group is None:
            raise NotFound(f"no group '{name}' on queue '{queue.name}'")
    limit = call.query.number("limit", _DRAWN, 1, _DRAWN_MOST)
    sizes: dict[int, int] = {}  # the backlog of each partition, negative
    backlog = behind = 0
    for number, index in enumerate(list(queue.indexes.values())):
        if not number % _LOOK_EVERY:
            await stepwise.between()
        if queue.partitions[index] is not NO_PARTITION:
            size = queue.partitions[index].count(_start(queue, group, index))
            sizes[index] = -size
            backlog += size
            behind += size > 0
    drawn = await ordered_page(list(sizes), lambda index: (sizes[index], index), False, 0, limit)
    rows: list[PartitionRow] = []
    for index in drawn:
        row = _row(queue, group, index, now)
        if row is not None:
            rows.append(row)
        await stepwise.between()
    first = queue.log.first_offset
    stored = queue.log.live
    return {
        "rows": rows,
        "total": len(sizes),
        "behind": behind,
        "backlog": backlog,
        "stored": stored,
        "bytes": await _estimated_bytes(call, queue, stepwise),
        "from": queue.log.created_us(first) // 1000 if stored else None,
        "to": queue.log.last_created_us // 1000 if stored else None,
        "groups": sorted(queue.groups),
        "options": options_out(queue.config),
    }


def _start(queue: PartitionedQueue, group: Group | None, index: int) -> int:
    """The first position of the backlog."""
    where = queue.partitions[index]
    if group is None:
        return where.first
    cursor = group.cursor(index)
    return where.end if cursor is None else max(cursor, where.first)


def _row(queue: PartitionedQueue, group: Group | None, index: int, now: float) -> PartitionRow | None:
    where = queue.partitions[index]
    if where is NO_PARTITION:  # deleted since the first step
        return None
    stored, start = where.count(where.first), _start(queue, group, index)
    backlog = where.count(start)
    oldest = None
    if backlog:
        head = where.live_from(start)
        oldest = max(0.0, round(now - queue.log.created_us(where.offsets[head - where.first]) / _US, 1))
    return PartitionRow(name=where.name, stored=stored, backlog=backlog, oldest=oldest)


async def _estimated_bytes(call: Call, queue: PartitionedQueue, stepwise: Stepwise) -> int | None:
    """The size of the stored messages, from a few of them; None if none can be read."""
    log = queue.log
    if not log.live:
        return 0
    span = max(1, log.durable_end - log.first_offset)
    size = count = 0
    for step in range(_WEIGHED):
        offset = log.first_offset + span * step // _WEIGHED
        if offset < log.durable_end and log.partition(offset) != GONE:
            size += len(call.service.store.body(log.position(offset)).payload)
            count += 1
        await stepwise.between()
    return size * log.live // count if count else None


async def delete_idle(call: Call) -> object:
    """Delete partitions without messages, dead letters and leases that were not used for a while."""
    queue, asked = stream_of(call), call.json_or(IdleIn, IdleIn())
    call.require(Action.CONFIGURE, queue.name)
    if asked.idle_seconds < 0:
        raise Refusal(400, "idleSeconds: it is not negative")
    idle_us, found, stepwise = int(asked.idle_seconds * _US), 0, Stepwise()
    for start in range(0, len(queue.partitions), STEP_PARTITIONS):
        event = decide_idle(queue, call.now, idle_us, range(start, start + STEP_PARTITIONS))
        if event is not None:
            found += len(event.partitions)
            if not asked.dry_run:
                call.service.store.commit([(queue.number, event)])
        await stepwise.between()
    if found and not asked.dry_run:
        await call.durable()
    return {"queue": queue.name, "dryRun": asked.dry_run, "partitions": found}


_QUEUE: Final = "/api/v1/dashboard/queues/{vhost}/{queue}"
ENDPOINTS: Final = (
    Endpoint(
        "GET",
        f"{_QUEUE}/partitions",
        SEE_QUEUES,
        "dashboard",
        "Partitions by backlog",
        show_partitions,
        query=("group", "limit"),
        statuses=(200, 404),
    ),
    Endpoint(
        "DELETE",
        f"{_QUEUE}/partitions/idle",
        CONFIGURE_QUEUE,
        "dashboard",
        "Delete idle partitions",
        delete_idle,
        body=IdleIn,
        statuses=(200, 400, 404),
    ),
)
