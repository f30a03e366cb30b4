"""Dead letters over HTTP: list, replay, purge.

Owns: their wire form. Must not touch: when a message is dead-lettered.
"""

from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.errors import LimitReached, NotFound
from holtmq.broker.partitioned.commands.admin import Replayed, purge, queue_named, replay
from holtmq.broker.partitioned.commands.replaying import find_letter
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter, LetterFilter
from holtmq.broker.partitioned.log.identifiers import (
    dead_letter_id,
    dead_letter_of,
    partition_id,
    partition_of,
)
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.http.engine.endpoints import CONFIGURE, LOOK, READ, Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.newest import Newest
from holtmq.http.engine.paging import page_out, within_bytes
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import iso_ms, raw

_GONE: Final = Reply(404, {"success": False, "result": "gone", "error": "Message not found"})


class TargetIn(msgspec.Struct):
    """Where a dead letter goes, if not home."""

    queue: str | None = None
    partition: str | None = None


async def list_letters(call: Call) -> object:
    query = call.query
    limit, skip = query.number("limit", 100, 0, 10_000), query.number("offset", 0)
    name, partition = query.optional("queue"), query.optional("partition")
    newest, stepwise = Newest[tuple[PartitionedQueue, DeadLetter]](skip + limit), Stepwise()
    from_us, to_us = query.time_us("from"), query.time_us("to")
    for queue in await _queues(call, name, stepwise):
        await stepwise.between()
        index = None
        if partition is not None:
            index = queue.indexes.get(partition)
            if index is None:
                continue
        wanted = LetterFilter(query.optional("consumerGroup"), index, from_us, to_us)
        for letter in queue.dead_letters.newest_first():
            if wanted.matches(letter):
                newest.add((letter.failed_us, letter.number), (queue, letter))
            await stepwise.between()
    page = newest.page(skip)
    rows, cut = await within_bytes(_letter_if_there(call, queue, letter) for queue, letter in page)
    pagination = page_out(limit, skip, cut)
    return {"messages": rows, "total": newest.count, "pagination": pagination}


async def _queues(call: Call, name: str | None, stepwise: Stepwise) -> list[PartitionedQueue]:
    queues = call.service.store.queues
    if name is None:
        readable: list[PartitionedQueue] = []
        for queue in list(queues.values()):
            if call.may_read(queue.name) and len(queue.dead_letters):
                readable.append(queue)
            await stepwise.between()
        return readable
    call.require(Action.READ, name)
    found = queues.get(name)
    return [] if found is None else [found]


def _letter_if_there(call: Call, queue: PartitionedQueue, letter: DeadLetter) -> dict[str, object] | None:
    known = call.service.store.by_number.get(queue.number)
    if known is not queue or queue.dead_letters.get(letter.number) is not letter:
        return None
    return _letter_out(call, queue, letter)


def _letter_out(call: Call, queue: PartitionedQueue, letter: DeadLetter) -> dict[str, object]:
    body = call.service.store.letter_body(queue, letter)
    payload = raw(body.payload)
    return {
        "id": dead_letter_id(queue.number, letter.number),
        "messageId": queue.id_of(letter.offset, letter.created_us),
        "transactionId": body.transaction_id,
        "partitionId": partition_id(queue.number, letter.partition),
        "queue": queue.name,
        "partition": queue.partitions[letter.partition].name,
        "consumerGroup": letter.group,
        "errorMessage": letter.error,
        "retryCount": letter.retry_count,
        "data": payload,
        "payload": payload,
        "traceId": body.trace_id,
        "producerSub": body.producer,
        "createdAt": iso_ms(letter.created_us),
        "failedAt": iso_ms(letter.failed_us),
    }


async def retry_message(call: Call) -> object:
    """Replay by the message's address, as the clients' admin APIs do."""
    where = partition_of(call.path["partition"])
    queue = call.service.store.find(*where) if where is not None else None
    if queue is None or where is None:
        return _GONE
    call.require(Action.READ, queue.name)
    letter = await Stepwise().run(find_letter(queue, where[1], call.path["transaction"]))
    return _GONE if letter is None else await _replay(call, queue, letter.number)


async def replay_letter(call: Call) -> object:
    where = dead_letter_of(call.path["id"])
    queue = call.service.store.by_number.get(where[0]) if where is not None else None
    return _GONE if queue is None or where is None else await _replay(call, queue, where[1])


async def _replay(call: Call, queue: PartitionedQueue, number: int) -> object:
    target = call.json_or(TargetIn, TargetIn())
    call.require(Action.READ, queue.name)
    call.require(Action.WRITE, target.queue or queue.name)
    letter = queue.dead_letters.get(number)
    if letter is None:
        return _GONE
    call.context.check_alarm()
    if target.queue:
        call.context.check_partitioned(target.queue)
    if call.service.spool.holds:
        # The spool can hold a push, but not the removal of a dead letter. Replayed directly, the message
        # would overtake the spooled ones.
        raise Refusal(503, "Pushes are suspended by maintenance")
    original = call.service.store.body(letter.journal_position).transaction_id
    try:
        done = replay(call.service, queue, number, call.now, target.queue, target.partition)
    except NotFound:
        return _GONE
    except LimitReached as error:
        return Reply(409, {"success": False, "result": "refused", "error": str(error)})
    await call.durable()
    return _replayed_out(queue, done, original)


def _replayed_out(queue: PartitionedQueue, done: Replayed, original: str) -> dict[str, object]:
    result, letter = done.result, done.decision.letter
    return {
        "success": True,
        "result": "duplicate" if result.duplicate else "moved",
        "queue": done.decision.target.name,
        "partition": done.decision.partition,
        "consumerGroup": letter.group,
        "dlqId": dead_letter_id(queue.number, letter.number),
        "originalTransactionId": original,
        "replayedAs": {
            "index": 0,
            "status": "duplicate" if result.duplicate else "queued",
            "transaction_id": done.body.transaction_id,
            "message_id": done.decision.target.id_of(result.offset, result.created_us),
            "partition_id": partition_id(result.queue, result.partition),
            "trace_id": done.body.trace_id,
            "queueName": done.decision.target.name,
        },
        "dlqRowRemoved": True,
    }


async def purge_letters(call: Call) -> object:
    name = call.query.optional("queue")
    if name is None:
        raise Refusal(400, "queue is required")
    call.require(Action.CONFIGURE, name)
    group = call.query.optional("consumerGroup")
    count = await Stepwise().run(purge(call.service, queue_named(call.service, name), LetterFilter(group)))
    await call.durable()
    return {"success": True, "queue": name, "consumerGroup": group, "deleted": count}


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/api/v1/dlq",
        LOOK,
        "dead letters",
        "List dead letters, newest failure first",
        list_letters,
        query=("queue", "consumerGroup", "partition", "from", "to", "limit", "offset"),
    ),
    Endpoint(
        "DELETE",
        "/api/v1/dlq",
        CONFIGURE,
        "dead letters",
        "Delete dead letters",
        purge_letters,
        query=("queue", "consumerGroup"),
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "POST",
        "/api/v1/dlq/{id}/replay",
        READ,
        "dead letters",
        "Replay a dead letter",
        replay_letter,
        body=TargetIn,
        statuses=(200, 404, 409, 503),
    ),
    Endpoint(
        "POST",
        "/api/v1/messages/{partition}/{transaction}/retry",
        READ,
        "dead letters",
        "Replay a message's dead letter",
        retry_message,
        body=TargetIn,
        statuses=(200, 404, 409, 503),
    ),
)
