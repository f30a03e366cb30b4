"""Trace events over HTTP.

Owns: their wire form, snake_case as clients expect. Must not touch: how many are kept.
"""

from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.commands.admin import trace
from holtmq.broker.partitioned.extras.traces import Traced
from holtmq.broker.partitioned.groups.group import QUEUE_MODE
from holtmq.broker.partitioned.log.identifiers import partition_id, partition_of
from holtmq.http.engine.endpoints import LOOK, MONITOR, READ, Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.paging import page_out, within_bytes
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import iso_ms, raw
from holtmq.http.queues.push import NAME_MAX, check_text

_DATA_MAX: Final = 1 << 20
_NAMES_MAX: Final = 100  # of one event


class TraceIn(msgspec.Struct, rename="camel"):
    transaction_id: str | None = None
    partition_id: str | None = None
    consumer_group: str | None = None
    trace_names: str | list[str] | None = None
    event_type: str | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


async def add_trace(call: Call) -> object:
    asked = call.json(TraceIn)
    check_text(call.body)
    if not asked.transaction_id or not asked.partition_id:
        raise Refusal(400, "transactionId and partitionId are required")
    if not isinstance(asked.data, msgspec.Raw):
        raise Refusal(400, "data is required")
    data = bytes(asked.data)
    if data == b"null":
        raise Refusal(400, "data is required")
    if len(data) > _DATA_MAX:
        raise Refusal(413, f"data is larger than {_DATA_MAX} bytes")
    names = (asked.trace_names,) if isinstance(asked.trace_names, str) else tuple(asked.trace_names or ())
    group, event_type = asked.consumer_group or QUEUE_MODE, asked.event_type or "info"
    if len(names) > _NAMES_MAX:
        raise Refusal(400, f"more than {_NAMES_MAX} traceNames")
    if max(map(len, (group, event_type, *names))) > NAME_MAX:
        raise Refusal(400, f"a name is longer than {NAME_MAX} characters")
    call.context.check_alarm()
    where = partition_of(asked.partition_id) or (0, 0)
    call.require_at(Action.READ, where)
    try:
        event = trace(
            call.service,
            *where,
            asked.transaction_id,
            group,
            event_type,
            names,
            data,
            call.now,
        )
    except NotFound as error:
        return Reply(404, {"success": False, "error": str(error)})
    await call.durable()
    return Reply(201, {"success": True, "traceId": str(event.number)})


def _event_out(event: Traced) -> dict[str, object]:
    return {
        "id": str(event.number),
        "event_type": event.event_type,
        "data": raw(event.data),
        "consumer_group": event.group,
        "worker_id": None,
        "created_at": iso_ms(event.created_us),
        "trace_names": list(event.names),
    }


async def message_traces(call: Call) -> object:
    where = partition_of(call.path["partition"]) or (0, 0)
    call.require_at(Action.READ, where)
    # Clients that do not page want all events: the default is the maximum.
    limit, skip = call.query.number("limit", 10_000, 0, 10_000), call.query.number("offset", 0)
    events, total = call.service.store.traces.of_message(*where, call.path["transaction"], limit, skip)
    rows, cut = await within_bytes(_event_out(event) for event in events)
    return {
        "traces": rows,
        "total": total,
        "pagination": page_out(limit, skip, cut),
    }


async def named_traces(call: Call) -> object:
    limit, skip = call.query.number("limit", 100, 0, 10_000), call.query.number("offset", 0)
    from_us, to_us = call.query.time_us("from"), call.query.time_us("to")
    if from_us is None and to_us is None and call.identity.reads_everything:
        events, total = call.service.store.traces.named(call.path["name"], limit, skip)
    else:
        everything, _ = call.service.store.traces.named(call.path["name"], 1 << 30, 0)
        fitting: list[Traced] = []
        stepwise = Stepwise()
        for event in everything:
            if (from_us or 0) <= event.created_us <= (to_us or 1 << 62) and _shown(call, event):
                fitting.append(event)
            await stepwise.between()
        events, total = fitting[skip : skip + limit], len(fitting)
    rows, cut = await within_bytes(_named_out(call, event) for event in events)
    return {
        "traces": rows,
        "total": total,
        "pagination": page_out(limit, skip, cut),
    }


def _shown(call: Call, event: Traced) -> bool:
    queue = call.service.store.by_number.get(event.queue)
    return call.identity.reads_everything or (queue is not None and call.may_read(queue.name))


def _named_out(call: Call, event: Traced) -> dict[str, object]:
    queue = call.service.store.find(event.queue, event.partition)
    payload: object = None
    if queue is not None:
        position = queue.find(event.partition, event.transaction_id)
        if position is not None:
            offset = queue.offset_of(event.partition, position)
            payload = raw(call.service.store.body(queue.log.position(offset)).payload)
    return {
        **_event_out(event),
        "transaction_id": event.transaction_id,
        "partition_id": partition_id(event.queue, event.partition),
        "queue_name": None if queue is None else queue.name,
        "partition_name": None if queue is None else queue.partitions[event.partition].name,
        "message_payload": payload,
    }


async def trace_names(call: Call) -> object:
    limit, skip = call.query.number("limit", 50, 0, 10_000), call.query.number("offset", 0)
    store, stepwise = call.service.store.traces, Stepwise()
    names, total = store.names(limit, skip)
    rows: list[dict[str, object]] = []
    for name in names:
        found = store.statistics(name)
        if found is not None:
            rows.append(
                {
                    "trace_name": found.name,
                    "trace_count": found.events,
                    "message_count": found.messages,
                    "last_seen": iso_ms(found.last_us),
                }
            )
        await stepwise.between()
    return {
        "trace_names": rows,
        "total": total,
        "pagination": {"limit": limit, "offset": skip},
    }


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/v1/traces",
        READ,
        "traces",
        "Add a trace event to a message",
        add_trace,
        body=TraceIn,
        statuses=(201, 400, 404, 413, 503),
    ),
    Endpoint(
        "GET",
        "/api/v1/traces/names",
        MONITOR,
        "traces",
        "Names in use",
        trace_names,
        query=("limit", "offset"),
    ),
    Endpoint(
        "GET",
        "/api/v1/traces/by-name/{name}",
        LOOK,
        "traces",
        "Events of a name, newest first",
        named_traces,
        query=("limit", "offset", "from", "to"),
    ),
    Endpoint(
        "GET",
        "/api/v1/traces/{partition}/{transaction}",
        LOOK,
        "traces",
        "Events of a message, oldest first",
        message_traces,
        query=("limit", "offset"),
    ),
)
