"""Delayed messages over HTTP: list, deliver now, cancel.

Owns: their wire form, paging by due time. Must not touch: when a delay ends.

A list reads the journal, since only due times are in memory. It goes in steps, and reads at most
``_MOST_READ`` messages: with a filter a page may be short or empty although ``next`` says that there is more.
"""

import re
from typing import Final

from holtmq.auth.permissions import DEFAULT_EXCHANGE, Action
from holtmq.broker.errors import NotFound
from holtmq.broker.publish.delays import DelayedMessage
from holtmq.broker.publish.due_message import Origin, origin_of
from holtmq.http.engine.endpoints import CONFIGURE, LOOK, WRITE, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import iso_ms
from holtmq.http.management.messages import properties_row
from holtmq.journal.interface import RecordUnreadable

_PAGE: Final = 50
_PAGE_MOST: Final = 500
_MOST_READ: Final = 5_000
_MOST_BYTES: Final = 64 << 20
_AT_ONCE: Final = 1_000
_CURSOR: Final = re.compile(r"([0-9]{1,15})-([0-9]{1,19})")

_Due = tuple[int, int]  # due time, position


async def list_delayed(call: Call) -> object:
    query = call.query
    limit = query.number("limit", _PAGE, 1, _PAGE_MOST)
    wanted = query.optional("vhost"), query.optional("exchange"), query.optional("queue")
    stepwise, flow = Stepwise(), call.broker.flow
    is_filtered = any(wanted) or not call.identity.reads_everything
    soonest = await _soonest(call, _cursor(query.optional("after")), _MOST_READ if is_filtered else limit + 1)
    rows: list[dict[str, object]] = []
    read_bytes, last = 0, None
    for place, (due_ms, position) in enumerate(soonest):
        if len(rows) == limit or read_bytes > _MOST_BYTES:
            break
        last = place
        if position in flow.delayed:  # its delay may have ended since the last step
            try:
                found = flow.delays.look_at(position)
            except RecordUnreadable as error:
                if call.identity.reads_everything and not any(wanted):
                    is_delayed = origin_of(due_ms) is Origin.DELAY
                    due_at = iso_ms(due_ms * 1000) if is_delayed else None
                    rows.append({"id": str(position), "dueAt": due_at, "unreadable": str(error)})
            else:
                read_bytes += len(found.message.body)
                if _is_wanted(found, *wanted) and _may(call, Action.READ, found):
                    rows.append(_row(found, flow.delayed[position][0]))
        await stepwise.between()
    is_end = (last is None or last == len(soonest) - 1) and len(soonest) < (
        _MOST_READ if is_filtered else limit + 1
    )
    following = None if is_end or last is None else "{}-{}".format(*soonest[last])
    total = len(flow.delayed) if call.identity.reads_everything else None
    return {"messages": rows, "total": total, "next": following}


async def _soonest(call: Call, after: _Due, most: int) -> list[_Due]:
    """The earliest messages after a cursor, in order of their due times."""
    stepwise, found = Stepwise(), list[_Due]()
    delayed = call.broker.flow.delayed
    positions = list(delayed)  # a copy, since the next step may change it
    for start in range(0, len(positions), _AT_ONCE):
        part = [(delayed[one][1], one) for one in positions[start : start + _AT_ONCE] if one in delayed]
        if len(found) == most:  # most of the rest is due too late
            latest = found[-1]
            part = [due for due in part if due < latest]
        later = [due for due in part if due > after]
        if later:
            found = sorted(found + later)[:most]
        await stepwise.between()
    return found


def _cursor(text: str | None) -> _Due:
    if text is None:
        return -1, -1
    parts = _CURSOR.fullmatch(text)
    if parts is None:
        raise Refusal(400, f"after: {text!r} is not the 'next' of an earlier page")
    return int(parts[1]), int(parts[2])


def _is_wanted(found: DelayedMessage, vhost: str | None, exchange: str | None, queue: str | None) -> bool:
    return (
        vhost in (None, found.vhost)
        and exchange in (None, found.exchange or DEFAULT_EXCHANGE)
        and (queue is None or queue in found.queues)
    )


def _may(call: Call, action: Action, found: DelayedMessage) -> bool:
    return call.identity.may_in(found.vhost, action, found.exchange or DEFAULT_EXCHANGE)


def _row(found: DelayedMessage, persistent: bool) -> dict[str, object]:
    message = found.message
    return {
        "id": str(found.position),
        "vhost": found.vhost,
        "exchange": found.exchange,
        "routingKey": message.routing_key,
        "queues": found.queues,
        "publishedAt": iso_ms(message.arrived_ms * 1000),
        "dueAt": iso_ms(found.due_ms * 1000),
        "bytes": len(message.body),
        "persistent": persistent,
        "properties": properties_row(message),
    }


async def deliver(call: Call) -> object:
    found = _found(call, Action.WRITE)
    if not call.broker.flow.delays.deliver(found.position):
        raise Refusal(
            409,
            f"delayed message {found.position} waits for room in a full queue, and is delivered then",
        )
    await call.durable()
    return {"id": call.path["id"], "delivered": True, "queues": found.queues}


async def cancel(call: Call) -> object:
    found = _found(call, Action.CONFIGURE)
    call.broker.flow.delays.cancel(found.position)
    await call.durable()
    return {"id": call.path["id"], "cancelled": True}


def _found(call: Call, action: Action) -> DelayedMessage:
    """The message that the path names; raises 404, 403, or 503 if nothing more can be journalled."""
    name, flow = call.path["id"], call.broker.flow
    position = int(name) if re.fullmatch(r"[0-9]{1,19}", name) else -1
    if position not in flow.delayed:
        raise NotFound(f"no delayed message {name}: it was delivered or cancelled, or never existed")
    if call.context.journal.failed is not None:
        raise call.context.journal.failed
    try:
        found = flow.delays.look_at(position)
    except RecordUnreadable as error:
        raise Refusal(409, f"delayed message {name} cannot be read: {error}") from None
    if not _may(call, action, found):
        # The id does not show whose it is: without the right to read, it does not exist.
        if not _may(call, Action.READ, found):
            raise NotFound(f"no delayed message {name}: it was delivered or cancelled, or never existed")
        call.identity.require_in(found.vhost, action, found.exchange or DEFAULT_EXCHANGE)
    return found


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/api/v1/delayed",
        LOOK,
        "delayed messages",
        "List delayed messages, the next one due first",
        list_delayed,
        query=("vhost", "exchange", "queue", "limit", "after"),
        statuses=(200, 400),
    ),
    Endpoint(
        "POST",
        "/api/v1/delayed/{id}/deliver",
        WRITE,
        "delayed messages",
        "Deliver a delayed message now",
        deliver,
        statuses=(200, 404, 409, 503),
    ),
    Endpoint(
        "DELETE",
        "/api/v1/delayed/{id}",
        CONFIGURE,
        "delayed messages",
        "Cancel a delayed message",
        cancel,
        statuses=(200, 404, 409, 503),
    ),
)
