"""Ephemeral queues over HTTP.

Owns: the wire form, and how pops wait. Must not touch: the queues' rules.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from typing import Final
from weakref import ref

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.partitioned.commands.pushing import DEFAULT_PARTITION
from holtmq.broker.partitioned.extras.ephemeral import EphemeralQueue
from holtmq.broker.partitioned.extras.ephemeral_values import NAMELESS, EphemeralConfig
from holtmq.http.engine.encoded_rows import EncodedObject, EncodedRows
from holtmq.http.engine.endpoints import (
    CONFIGURE,
    CONFIGURE_QUEUE,
    LOOK,
    LOOK_AT_QUEUE,
    READ,
    WRITE,
    Call,
    Endpoint,
    Reply,
)
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.lasting_requests import sender_now
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import raw
from holtmq.http.queues.push import check_text
from holtmq.http.queues.request_bounds import check_size

_QUEUES_MAX: Final = 10_000


class WindowIn(msgspec.Struct):
    ms: float = 0
    count: int = 0


class OptionsIn(msgspec.Struct, rename="camel"):
    max_bytes: int | None = None
    max_length: int | None = None
    policy: str | None = None
    ttl_seconds: float | None = None
    lease_seconds: float | None = None
    retry_limit: int | None = None
    window_buffer: WindowIn | None = None


class ConfigureIn(msgspec.Struct):
    queue: str
    options: OptionsIn = msgspec.field(default_factory=OptionsIn)


class MessageIn(msgspec.Struct, gc=False):
    payload: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class PushIn(msgspec.Struct):
    queue: str
    messages: list[MessageIn]
    partition: str | None = None


class AckIn(msgspec.Struct, gc=False):
    id: str
    status: str | None = None
    error: str | None = None


class AcksIn(msgspec.Struct):
    queue: str
    acks: list[AckIn]
    group: str | None = None


class QueueIn(msgspec.Struct):
    queue: str


def _queue(call: Call, name: str) -> EphemeralQueue:
    """The queue of this name, created on first use."""
    queues = call.service.ephemeral
    found = queues.get(name)
    if found is None:
        if not name:
            raise Refusal(400, "queue is required")
        if len(queues) >= _QUEUES_MAX:
            idle = [one for one in queues.values() if one.unused]
            for one in idle:
                del queues[one.name]
            call.broker.long_changes.add(_discarding(idle))
        if len(queues) >= _QUEUES_MAX:
            raise Refusal(429, f"more than {_QUEUES_MAX} ephemeral queues", "too_many_queues")
        found = queues[name] = EphemeralQueue(name, EphemeralConfig())
        found.watch(_Alarm(found, call.context.clock).ask)
    return found


def _discarding(queues: list[EphemeralQueue]) -> Iterator[None]:
    while queues:
        yield from queues.pop().discarding()
        yield


async def configure(call: Call) -> object:
    asked = call.json(ConfigureIn)
    call.require(Action.CONFIGURE, asked.queue)
    options = asked.options
    if options.policy not in (None, "reject", "dropOldest"):
        raise Refusal(400, "policy must be reject or dropOldest")
    default, window = EphemeralConfig(), options.window_buffer or WindowIn()
    for name, value in {**msgspec.to_builtins(options), **msgspec.to_builtins(window)}.items():
        if isinstance(value, int | float) and value < 0:
            raise Refusal(400, f"{name} must not be negative: {value}")
    config = EphemeralConfig(
        options.max_bytes or default.max_bytes,
        options.max_length or default.max_length,
        options.policy == "dropOldest",
        options.ttl_seconds or 0,
        options.lease_seconds or default.lease_seconds,
        default.retry_limit if options.retry_limit is None else options.retry_limit,
        window.ms,
        window.count,
    )
    queue = _queue(call, asked.queue)
    queue.config, queue.declared = config, True
    await Stepwise().run(queue.tidying(call.now))  # a pop may wait for a window that is no more
    return Reply(201, {"queue": asked.queue, "options": _options_out(config), "declared": True})


def _options_out(config: EphemeralConfig) -> dict[str, object]:
    return {
        "maxBytes": config.max_bytes,
        "maxLength": config.max_length,
        "policy": "dropOldest" if config.drops_oldest else "reject",
        "ttlSeconds": config.ttl_seconds,
        "leaseSeconds": config.lease_seconds,
        "retryLimit": config.retry_limit,
        "windowBuffer": {"ms": config.window_ms, "count": config.window_count},
    }


async def push(call: Call) -> object:
    asked = call.json(PushIn)
    call.require(Action.WRITE, asked.queue)
    check_text(call.body)
    call.context.check_alarm()
    check_size(len(asked.messages), call.context.config.http.max_batch, "messages")
    payloads = [bytes(message.payload) for message in asked.messages]
    queue, partition = _queue(call, asked.queue), asked.partition or DEFAULT_PARTITION
    await Stepwise().run(queue.pushing(partition, payloads, call.now))
    return Reply(201, {"pushed": len(payloads)})


async def pop(call: Call) -> object:
    query = call.query
    name, group = query.text("queue"), query.text("group", NAMELESS)
    call.require(Action.READ, name)
    queue = _queue(call, name)
    limit = query.number("batch", 1, 1, call.context.config.http.max_batch)
    wait_ms = query.number("timeout", 30_000, high=call.context.config.http.max_wait_ms)
    partition, auto_ack = query.optional("partition"), query.flag("autoAck")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (wait_ms / 1000 if query.flag("wait") else 0)
    call.forget_body()
    stepwise = Stepwise()
    found = await stepwise.run(queue.popping(group, partition, limit, auto_ack, call.now))
    while not found and (left := deadline - loop.time()) > 0:
        changed = asyncio.Event()
        place = queue.wait(group, partition, changed.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await changed.wait()
            (await sender_now(call.request)).require(Action.READ, name)
            stepwise = Stepwise()
            found = await stepwise.run(queue.popping(group, partition, limit, auto_ack, call.now))
        finally:
            queue.leave(place)
    rows = EncodedRows()
    for handed in found:
        rows.append(
            {
                "id": f"e:{queue.incarnation}:{handed.partition}:{handed.number}",
                "partition": handed.partition,
                "attempts": handed.attempts,
                "payload": raw(handed.payload),
            }
        )
        await stepwise.between()
    return {"queue": name, "messages": rows}


class _Alarm:
    """Tidies a queue when a lease or window ends, for the pops that wait. There is one timer per queue."""

    def __init__(self, queue: EphemeralQueue, clock: Callable[[], float]) -> None:
        self._queue = ref(queue, self._stop)  # which refers to the alarm
        self._clock = clock
        self._due = inf
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, due: float) -> None:
        """Be called at this time, or before."""
        if due < self._due:
            self._due = due
            if self._timer is not None:
                self._timer.cancel()
            seconds = min(max(due - self._clock(), 0.001), 3_600)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._ring)

    def _stop(self, _: object) -> None:
        """The queue is gone."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer, self._due = None, inf
        queue = self._queue()
        if queue is None:
            return
        stepwise, now = Stepwise(), self._clock()
        for _ in queue.tidying(now):
            if stepwise.is_due:
                self.ask(now)  # for what is left
                return
        queue.plan()


async def ack(call: Call) -> object:
    asked = call.json(AcksIn)
    call.require(Action.READ, asked.queue)
    check_size(len(asked.acks), call.context.config.http.max_batch, "acks")
    queue = call.service.ephemeral.get(asked.queue)
    stepwise = Stepwise()
    outcomes = ["unknown"] * len(asked.acks)
    held: dict[int, tuple[str, int, bool]] = {}
    for at, one in enumerate(asked.acks):
        place = _place(one.id)
        if queue is None or place is None:
            continue
        incarnation, partition, number = place
        if incarnation != queue.incarnation:
            outcomes[at] = "stale"  # from before a deletion or restart: another message has the number now
        else:
            held[at] = partition, number, (one.status or "completed") in ("completed", "success")
        await stepwise.between()
    if queue is not None:
        settled = await stepwise.run(queue.settling(asked.group or NAMELESS, held.values(), call.now))
        for at, outcome in zip(held, settled, strict=True):
            outcomes[at] = outcome
    rows = EncodedRows()
    for one, outcome in zip(asked.acks, outcomes, strict=True):
        rows.append({"id": one.id, "outcome": outcome})
        await stepwise.between()
    return {"results": rows}


def _place(id_: str) -> tuple[str, str, int] | None:
    """Incarnation, partition and number of a message id; None when it is malformed."""
    tag, _, rest = id_.partition(":")
    incarnation, _, place = rest.partition(":")
    partition, colon, number = place.rpartition(":")
    if tag != "e" or not colon or not number.isdecimal() or len(number) >= 18:
        return None
    return incarnation, partition, int(number)


async def reset(call: Call) -> object:
    asked = call.json(QueueIn)
    call.require(Action.READ, asked.queue)
    queue = call.service.ephemeral.get(asked.queue)
    dropped = 0 if queue is None else await Stepwise().run(queue.resetting())
    return {"queue": asked.queue, "dropped": dropped}


async def delete(call: Call) -> object:
    gone = call.service.ephemeral.pop(call.path["queue"], None)
    if gone is not None:
        call.broker.long_changes.add(gone.discarding())
    return {"queue": call.path["queue"], "deleted": gone is not None}


async def list_queues(call: Call) -> object:
    stepwise, rows = Stepwise(), EncodedRows()
    for name in list(call.service.ephemeral):
        queue = call.service.ephemeral.get(name)
        if queue is not None and call.may_read(name):
            gauges = await _gauges_out(queue, call.now, stepwise)
            rows.append({key: _joined(value) for key, value in gauges.items()})
        await stepwise.between()
    return {"queues": rows}


def _joined(value: object) -> object:
    return raw(b"".join(value.pieces())) if isinstance(value, EncodedObject) else value


async def depth(call: Call) -> object:
    queue = call.service.ephemeral.get(call.path["queue"])
    if queue is None:
        raise Refusal(404, f"no ephemeral queue {call.path['queue']}", "ephemeral_queue_not_found")
    return await _gauges_out(queue, call.now, Stepwise())


async def _gauges_out(queue: EphemeralQueue, now: float, stepwise: Stepwise) -> dict[str, object]:
    gauges, groups = await stepwise.run(queue.gauges(now)), EncodedObject()
    for group, (waiting, out) in gauges.groups.items():
        groups.put(group, {"pending": waiting, "inFlight": out})
        await stepwise.between()
    return {
        "queue": queue.name,
        "tier": "declared" if queue.declared else "implicit",
        "length": gauges.length,
        "depth": gauges.length,
        "pending": gauges.pending,
        "bytes": gauges.size,
        "partitions": gauges.partitions,
        "dropped": gauges.dropped,
        "groups": groups,
        "options": _options_out(queue.config),
    }


_BASE: Final = "/api/v1/ephemeral"
_POP: Final = ("queue", "partition", "batch", "wait", "timeout", "group", "autoAck")
ENDPOINTS: Final = (
    Endpoint(
        "POST",
        f"{_BASE}/configure",
        CONFIGURE,
        "ephemeral",
        "Declare a queue",
        configure,
        body=ConfigureIn,
        statuses=(201, 400),
    ),
    Endpoint(
        "POST",
        f"{_BASE}/push",
        WRITE,
        "ephemeral",
        "Push to memory",
        push,
        body=PushIn,
        statuses=(201, 400, 413, 429),
    ),
    Endpoint("GET", f"{_BASE}/pop", READ, "ephemeral", "Pop", pop, query=_POP),
    Endpoint("POST", f"{_BASE}/ack", READ, "ephemeral", "Acknowledge", ack, body=AcksIn),
    Endpoint("POST", f"{_BASE}/reset", READ, "ephemeral", "Delete all messages", reset, body=QueueIn),
    Endpoint("DELETE", f"{_BASE}/queue/{{queue}}", CONFIGURE_QUEUE, "ephemeral", "Delete a queue", delete),
    Endpoint("GET", f"{_BASE}/queues", LOOK, "ephemeral", "List queues", list_queues),
    Endpoint(
        "GET",
        f"{_BASE}/queues/{{queue}}/depth",
        LOOK_AT_QUEUE,
        "ephemeral",
        "A queue's gauges",
        depth,
        statuses=(200, 404),
    ),
)
