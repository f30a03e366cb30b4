"""The API of stream processors: register a query, read its state, commit a cycle.

Owns: the wire form, snake_case as in the SDKs. Must not touch: the cycle's rules; a refused cycle is an
answer (200, ``success: false``), a configuration conflict is 409.
"""

from typing import Final
from uuid import uuid4

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.errors import BrokerError
from holtmq.broker.partitioned.commands.atomic_commit import Cycle, run_cycle
from holtmq.broker.partitioned.extras.stream_state import ConfigMismatch, StateOp
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckRefused, AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.log.identifiers import partition_id, partition_of
from holtmq.broker.partitioned.requests import PushItem, PushResult
from holtmq.http.engine import paging
from holtmq.http.engine.endpoints import LOOK, READ, Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.wire import iso_ms, raw
from holtmq.http.queues.push import PushItemIn, check_text, read_item
from holtmq.http.queues.rendering import buffered_results, refusal_text
from holtmq.http.queues.request_bounds import STATE_OPERATIONS, check_queues, check_size


class QueryIn(msgspec.Struct):
    name: str | None = None
    source_queue: str | None = None
    sink_queue: str | None = None
    config_hash: str | None = None
    reset: bool | None = None


class StateIn(msgspec.Struct):
    query_id: str | None = None
    partition_id: str | None = None
    keys: list[str] | None = None
    key_prefix: str | None = None
    ripe_at_or_before: float | None = None


class StateOpIn(msgspec.Struct):
    type: str
    key: str
    value: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class AckIn(msgspec.Struct, rename="camel"):
    transaction_id: str
    lease_id: str | None = None
    status: str | None = None
    count: int | None = None


class CycleIn(msgspec.Struct):
    query_id: str | None = None
    partition_id: str | None = None
    consumer_group: str | None = None
    state_ops: list[StateOpIn] | None = None
    push_items: list[PushItemIn] | None = None
    ack: AckIn | None = None
    release_lease: bool | None = None


def _need(value: str | None, name: str) -> str:
    if not value:
        raise Refusal(400, f"{name} is required")
    return value


async def register(call: Call) -> object:
    asked = call.json(QueryIn)
    name = _need(asked.name, "name")
    source = _need(asked.source_queue, "source_queue")
    config_hash = _need(asked.config_hash, "config_hash")
    call.require(Action.READ, source)
    if asked.sink_queue:
        call.require(Action.WRITE, asked.sink_queue)
    try:
        done = call.service.streams.register(
            name, source, asked.sink_queue or "", config_hash, bool(asked.reset), str(uuid4())
        )
    except ConfigMismatch as error:
        answer = {"success": False, "query_id": error.query.id, "name": name, "error": str(error)}
        return Reply(409, answer)
    await call.durable()
    return {
        "success": True,
        "query_id": done.query.id,
        "name": name,
        "config_hash": config_hash,
        "fresh": done.fresh,
        "reset": done.reset,
    }


async def read_state(call: Call) -> object:
    asked = call.json(StateIn)
    call.require_at(Action.READ, partition_of(asked.partition_id or ""))
    rows = call.service.streams.rows(
        _need(asked.query_id, "query_id"),
        _need(asked.partition_id, "partition_id"),
        asked.keys or (),
        asked.key_prefix or "",
        asked.ripe_at_or_before,
    )
    size = sum([len(row.key) + len(row.value) for row in rows])
    if size > paging.MOST_BYTES:
        # Refuse instead of cutting: a processor assumes that a row missing from the answer does not exist.
        raise Refusal(
            413,
            f"the {len(rows)} rows asked for have {size} bytes, more than {paging.MOST_BYTES}: "
            "ask for fewer, by keys or key_prefix",
        )
    return {
        "success": True,
        "rows": [{"key": r.key, "value": raw(r.value), "updated_at": iso_ms(r.updated_us)} for r in rows],
    }


async def cycle(call: Call) -> object:
    asked = call.json(CycleIn)
    check_text(call.body)
    query_id, partition = _need(asked.query_id, "query_id"), _need(asked.partition_id, "partition_id")
    where = partition_of(partition) or (0, 0)
    if any(item.delay_seconds for item in asked.push_items or ()):
        raise Refusal(400, "delaySeconds is not possible in a cycle: push such messages by themselves")
    check_size(len(asked.state_ops or ()), STATE_OPERATIONS, "state operations")
    check_size(len(asked.push_items or ()), call.context.config.http.max_batch, "push_items")
    items = [read_item(item, call.subject) for item in asked.push_items or ()]
    call.require_at(Action.READ, where)
    targets = {item.queue for item in items}
    for name in targets:
        call.require(Action.WRITE, name)
    check_queues(targets, call.service.store.queues.__contains__)
    if items:
        call.context.check_alarm()
    for name in targets:
        call.context.check_partitioned(name)
    ack = asked.ack
    wanted = Cycle(
        query_id,
        *where,
        partition,
        asked.consumer_group or QUEUE_MODE,
        [_state_op(op) for op in asked.state_ops or ()],
        items,
        None
        if ack is None
        else Ack(
            where[1], ack.transaction_id, AckStatus.named(ack.status or "completed"), ack.lease_id or ""
        ),
        asked.release_lease is not False,
    )
    try:
        results, outcome, queue = run_cycle(call.service, call.service.streams, wanted, call.now)
    except BrokerError as error:
        text = refusal_text(error.verdict) if isinstance(error, AckRefused) else str(error)
        answer = {"success": False, "query_id": query_id, "partition_id": partition, "error": text}
        return {**answer, "state_ops_applied": 0, "push_results": [], "ack_result": None}
    await call.durable()
    return {
        "success": True,
        "query_id": query_id,
        "partition_id": partition,
        "queueName": queue.name,
        "state_ops_applied": len(wanted.state_ops),
        "push_results": raw(buffered_results(items))
        if results is None
        else [_pushed_out(call, i, *pair) for i, pair in enumerate(zip(items, results, strict=True))],
        "ack_result": None
        if outcome is None or ack is None
        else {
            "success": True,
            "count": ack.count or 1,
            "lease_released": outcome.lease_released,
            "dlq": outcome.dead_lettered,
        },
    }


def _state_op(op: StateOpIn) -> StateOp:
    if op.type == "upsert":
        return StateOp(op.key, bytes(op.value))
    if op.type == "delete":
        return StateOp(op.key, None)
    raise Refusal(400, f"Unknown state operation: {op.type}")


def _pushed_out(call: Call, index: int, item: PushItem, result: PushResult) -> dict[str, object]:
    return {
        "index": index,
        "status": "duplicate" if result.duplicate else "queued",
        "transaction_id": item.body.transaction_id,
        "message_id": call.service.store.by_number[result.queue].id_of(result.offset, result.created_us),
        "partition_id": partition_id(result.queue, result.partition),
        "trace_id": item.body.trace_id,
        "queueName": item.queue,
    }


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/streams/v1/queries",
        READ,
        "streams",
        "Register a query",
        register,
        body=QueryIn,
        statuses=(200, 400, 409),
    ),
    Endpoint(
        "POST",
        "/streams/v1/state/get",
        LOOK,
        "streams",
        "Read state rows",
        read_state,
        body=StateIn,
        statuses=(200, 400, 413),
    ),
    Endpoint(
        "POST",
        "/streams/v1/cycle",
        READ,
        "streams",
        "Commit a cycle",
        cycle,
        body=CycleIn,
        statuses=(200, 400, 409, 503),
    ),
)
