"""Single messages, for operators: list, show, delete, move to the dead letters.

Owns: their wire form. Must not touch: how a message's state is determined.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from holtmq.auth.permissions import Action
from holtmq.broker.partitioned.commands.admin import delete_message, queue_named
from holtmq.broker.partitioned.commands.replaying import find_letter
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, micros
from holtmq.broker.partitioned.log.identifiers import partition_id, partition_of
from holtmq.broker.partitioned.log.message_log import GONE
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.statistics import MessageState, message_state
from holtmq.http.engine.endpoints import CONFIGURE, LOOK, LOOK_AT_QUEUE, READ, Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.newest import Newest
from holtmq.http.engine.paging import page_out, within_bytes
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import iso_ms, iso_seconds, raw
from holtmq.http.operator.resources import page_of, selected
from holtmq.http.queues.configure import options_out

_HOUR_US: Final = 3_600_000_000
_OPTIONS_SHOWN: Final = ("leaseTime", "retryLimit", "retryDelay", "ttl", "priority")
_COUNTED: Final = 100_000  # messages that a list examines per queue
_LISTED: Final = (
    "id",
    "transactionId",
    "partitionId",
    "queuePath",
    "queue",
    "partition",
    "status",
    "createdAt",
)


async def list_messages(call: Call) -> object:
    query = call.query
    now = call.now
    limit, skip = page_of(call, 200)
    from_us, to_us = query.time_us("from"), query.time_us("to")
    if from_us is None:
        from_us = micros(now) - _HOUR_US
    stepwise, groups = Stepwise(), set[str]()
    partition, status = query.optional("partition"), query.optional("status")
    newest = Newest[tuple[PartitionedQueue, int]](skip + limit)
    for queue in await selected(call, stepwise):
        groups.update(queue.groups)
        await stepwise.between()
        for created_us, offset in _looked_at(queue, from_us, to_us, partition, status, now):
            if created_us is not None:
                newest.add((created_us, offset), (queue, offset))
            await stepwise.between()
    found = newest.page(skip)
    rows, cut = await within_bytes(_row_if_there(call, queue, offset, now) for queue, offset in found)
    return {
        "messages": rows,
        "mode": _mode(groups),
        "total": newest.count,
        "pagination": page_out(limit, skip, cut),
    }


def _row_if_there(call: Call, queue: PartitionedQueue, offset: int, now: float) -> dict[str, object] | None:
    gone = queue.log.partition(offset) == GONE or call.service.store.by_number.get(queue.number) is not queue
    return None if gone else message_row(call, queue, offset, now)


def _looked_at(
    queue: PartitionedQueue,
    from_us: int,
    to_us: int | None,
    partition: str | None,
    status: str | None,
    now: float,
) -> Iterator[tuple[int | None, int]]:
    """Each message of a time span as (creation time, offset), newest first. A message that does not match has
    None for its time: the caller must be able to yield to other requests between those too."""
    for offset in _newest_first(queue, from_us, to_us, partition):
        state = None if status is None else message_state(queue, offset, now)
        fits = status is None or (state is not None and state.value == status)
        yield queue.log.created_us(offset) if fits else None, offset


def _newest_first(
    queue: PartitionedQueue, from_us: int, to_us: int | None, partition: str | None
) -> Iterator[int]:
    log = queue.log
    first = log.offset_at(from_us)
    stop = log.durable_end if to_us is None else min(log.durable_end, log.offset_at(to_us + 1))
    if partition is not None:
        index = queue.indexes.get(partition)
        if index is not None:
            mine = queue.partitions[index].offsets
            for offset in reversed(mine[-_COUNTED:]):
                if first <= offset < stop and log.partition(offset) != GONE:
                    yield offset
        return
    for offset in range(stop - 1, max(first, stop - _COUNTED) - 1, -1):
        if log.partition(offset) != GONE:
            yield offset


def _mode(names: set[str]) -> dict[str, object]:
    plain, named = QUEUE_MODE in names, len(names - {QUEUE_MODE})
    kind = ("hybrid" if named else "queue") if plain else ("bus" if named else "none")
    return {"hasQueueMode": plain, "busGroupsCount": named, "type": kind}


def message_row(call: Call, queue: PartitionedQueue, offset: int, now: float) -> dict[str, object]:
    """One message with its state over all groups."""
    index = queue.log.partition(offset)
    where = queue.partitions[index]
    position = where.position_of(offset)
    body = call.service.store.body(queue.log.position(offset))
    state = message_state(queue, offset, now) or MessageState.COMPLETED
    named = [group for group in queue.groups.values() if group.name != QUEUE_MODE]
    passed = sum(1 for group in named if (group.cursor(index) or 0) > position)
    plain = queue.groups.get(QUEUE_MODE)
    queue_status = "pending"
    if plain is not None:
        if (plain.cursor(index) or 0) > position:
            queue_status = "completed"
        elif plain.leases.lease(index, now) is not None:
            queue_status = "processing"
    leases = [lease for g in queue.groups.values() if (lease := g.leases.lease(index, now)) is not None]
    covering = [lease.expires_at for lease in leases if lease.first <= position < lease.end]
    payload = raw(body.payload)
    return {
        "id": queue.id_of(offset, queue.log.created_us(offset)),
        "transactionId": body.transaction_id,
        "partitionId": partition_id(queue.number, index),
        "queuePath": f"{queue.name}/{where.name}",
        "queue": queue.name,
        "partition": where.name,
        "namespace": queue.namespace,
        "task": queue.task,
        "status": state.value,
        "queueStatus": queue_status,
        "busStatus": {"consumedBy": passed, "totalGroups": len(named)},
        "traceId": body.trace_id,
        "producerSub": body.producer,
        "queuePriority": queue.config.priority,
        "createdAt": iso_ms(queue.log.created_us(offset)),
        "leaseExpiresAt": iso_seconds(max(covering, default=None)),
        "data": payload,
        "payload": payload,
    }


def _address(call: Call) -> tuple[PartitionedQueue, int, int | None]:
    """Queue, partition and position of the message in the path."""
    where = partition_of(call.path["partition"])
    queue = call.service.store.find(*where) if where is not None else None
    if queue is None or where is None:
        raise Refusal(404, "Message not found")
    call.require(Action.READ, queue.name)
    return queue, where[1], queue.find(where[1], call.path["transaction"])


async def show_message(call: Call) -> object:
    queue, index, position = _address(call)
    if position is None:
        raise Refusal(404, "Message not found")
    now = call.now
    offset = queue.offset_of(index, position)
    letters = queue.dead_letters.of_message(offset)
    config, options = queue.config, options_out(queue.config)
    groups = [
        {
            "name": group.name,
            "consumed": (group.cursor(index) or 0) > position,
            "leaseExpiresAt": iso_seconds(lease.expires_at)
            if (lease := group.leases.lease(index, now)) is not None
            else None,
        }
        for group in queue.groups.values()
        if group.cursor(index) is not None
    ]
    return {
        **message_row(call, queue, offset, now),
        "isEncrypted": config.encryption_enabled and call.service.store.cipher is not None,
        "errorMessage": letters[-1].error if letters else None,
        "retryCount": letters[-1].retry_count if letters else 0,
        "queueConfig": {name: options[name] for name in _OPTIONS_SHOWN},
        "mode": {
            **_mode(set(queue.groups)),
            "consumedByGroups": sum(1 for group in groups if group["consumed"]),
        },
        "consumerGroups": groups,
    }


async def drop_message(call: Call) -> object:
    """Delete a message for all groups, whatever its state, together with its dead letters."""
    transaction_id = call.path["transaction"]
    ids = {"partitionId": call.path["partition"], "transactionId": transaction_id}
    where = partition_of(call.path["partition"])
    queue = call.service.store.find(*where) if where is not None else None
    call.require_at(Action.CONFIGURE, where)
    letter = None
    if queue is not None and where is not None:
        letter = await Stepwise().run(find_letter(queue, where[1], transaction_id))
        queue = call.service.store.find(*where)  # it may have been deleted meanwhile
    if (
        queue is None
        or where is None
        or not delete_message(call.service, queue, where[1], transaction_id, letter)
    ):
        text = "Message not found"
        return Reply(404, {"success": False, **ids, "message": text, "error": text})
    await call.durable()
    return {"success": True, **ids, "message": "Message deleted"}


async def move_to_letters(call: Call) -> object:
    """Dead-letter a message by its address, for queue mode (consumers without a group)."""
    queue, index, position = _address(call)
    if position is None:
        raise Refusal(404, "Message not found")
    ack = Ack(index, call.path["transaction"], AckStatus.DEAD_LETTER, "", "Moved by hand")
    _, (outcome,) = call.service.settle(queue.number, QUEUE_MODE, [ack], call.now)
    if not outcome.success:
        raise Refusal(409, "The message is already settled")
    await call.durable()
    return {"success": True, "dlq": outcome.dead_lettered}


async def queue_messages(call: Call) -> object:
    queue, now = queue_named(call.service, call.path["queue"]), call.now
    limit, skip = page_of(call, 50)
    offsets = list(islice(_newest_first(queue, 0, None, None), skip, skip + limit))
    rows, _ = await within_bytes(_row_if_there(call, queue, offset, now) for offset in offsets)
    return [{name: row[name] for name in _LISTED} for row in rows]


_MESSAGE: Final = "/api/v1/messages/{partition}/{transaction}"
ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/api/v1/messages",
        LOOK,
        "messages",
        "List messages, newest first",
        list_messages,
        query=("queue", "partition", "namespace", "task", "status", "from", "to", "limit", "offset"),
    ),
    Endpoint("GET", _MESSAGE, LOOK, "messages", "One message", show_message, statuses=(200, 404)),
    Endpoint(
        "DELETE", _MESSAGE, CONFIGURE, "messages", "Delete a message", drop_message, statuses=(200, 404)
    ),
    Endpoint(
        "POST",
        f"{_MESSAGE}/dlq",
        READ,
        "messages",
        "Move a message to the dead letters",
        move_to_letters,
        statuses=(200, 404, 409),
    ),
    Endpoint(
        "GET",
        "/api/v1/status/queues/{queue}/messages",
        LOOK_AT_QUEUE,
        "status",
        "A queue's newest messages",
        queue_messages,
        query=("limit", "offset"),
        statuses=(200, 404),
    ),
)
