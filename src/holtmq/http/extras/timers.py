"""Timed messages over HTTP, alone and as parts of a transaction.

Owns: reading operations and the wire form of results. Must not touch: when they fire.
"""

import binascii
from base64 import b64decode, b64encode
from typing import Final
from uuid import uuid4

import msgspec

from holtmq.auth.permissions import Action
from holtmq.auth.rights import Identity
from holtmq.broker.partitioned.commands.pushing import DEFAULT_PARTITION
from holtmq.broker.partitioned.extras.timers import Timed, TimedChange
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.bodies import ID_MAX
from holtmq.broker.partitioned.log.identifiers import promised_id
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.http.engine.endpoints import LOOK_AT_QUEUE, WRITE, WRITE_QUEUE, Call, Endpoint
from holtmq.http.engine.wire import iso_ms
from holtmq.http.extras.keyed import KvRefused
from holtmq.http.queues.push import NAME_MAX, check_text

_MOST: Final = 256
_KEY_MAX: Final = 512
_PAYLOAD_MAX: Final = 1 << 20
_FARTHEST_MS: Final = 366 * 86_400_000
_SERVERS_OWN: Final = frozenset(
    {
        *("deliverAt", "producerSub", "messageId", "createdAt", "status"),
        *("tenant", "tenantId", "delaySeconds", "attempts", "claimToken", "claimedUntil"),
    }
)


class TimerIn(msgspec.Struct, rename="camel"):
    op: str
    queue: str = ""
    timer_key: str = ""
    payload: str | None = None
    delay_ms: float | None = None
    txn: str | None = None
    partition: str | None = None
    payload_zstd: object = None


class TimersIn(msgspec.Struct):
    operations: list[dict[str, object]]


class TimerOperations:
    """The timer operations of one call; ``change`` is what to write to the journal for all of them."""

    def __init__(self, service: PartitionedService, subject: str | None, now: float) -> None:
        self._service = service
        self._subject = subject
        self._now_us = micros(now)
        self._named: set[tuple[str, str]] = set()
        self._put: list[Timed] = []
        self._ended: list[tuple[str, str]] = []
        self.results: list[dict[str, object]] = []

    def check_rights(self, sender: Identity) -> None:
        """Raise 403 unless the sender may write to every queue that was named."""
        for queue, _ in self._named:
            sender.require(Action.WRITE, queue)

    def add(self, document: object) -> None:
        """Add one operation; raises KvRefused."""
        asked = _read(document)
        where = (asked.queue, asked.timer_key)
        if where in self._named:
            raise KvRefused(f"timer {asked.timer_key!r} is named twice in one call", "duplicate_key")
        self._named.add(where)
        known = self._service.timed.get(*where)
        if asked.op == "cancel":
            self.results.append(self._cancel(asked, known))
            return
        due_us = self._now_us + int(max(asked.delay_ms or 0, 0) * 1000)
        timer = Timed(
            asked.queue,
            asked.timer_key,
            asked.partition or DEFAULT_PARTITION,
            asked.txn or str(uuid4()),
            _payload(asked),
            due_us,
            promised_id(due_us, uuid4().int),
            self._subject,
        )
        self._put.append(self._service.timed.seal(timer))
        self.results.append(_result("scheduled" if known is None else "rescheduled", timer))

    def _cancel(self, asked: TimerIn, known: Timed | None) -> dict[str, object]:
        """Cancel by key. Without such a timer ``txn`` is echoed: its message may be in the queue already."""
        if known is None:
            return {
                "ok": False,
                "status": "absent",
                "queue": asked.queue,
                "timerKey": asked.timer_key,
                "txn": asked.txn,
                "messageId": None,
                "deliverAt": None,
            }
        self._ended.append((asked.queue, asked.timer_key))
        return _result("cancelled", known)

    @property
    def queues(self) -> set[str]:
        """The queues that messages were scheduled for."""
        return {timer.queue for timer in self._put}

    @property
    def change(self) -> TimedChange:
        return TimedChange(self._put, self._ended)


def _read(document: object) -> TimerIn:
    if isinstance(document, dict):
        for name in document:
            if name in _SERVERS_OWN or name.startswith("_"):
                raise KvRefused(f"{name} is the server's to set", "timers_server_owned_field")
    try:
        asked = msgspec.convert(document, TimerIn)
    except msgspec.MsgspecError as error:
        raise KvRefused(str(error), "json") from None
    if asked.op not in ("schedule", "reschedule", "cancel"):
        raise KvRefused(f"unknown operation {asked.op!r}", "op")
    if not asked.queue or not asked.timer_key:
        raise KvRefused("queue and timerKey are required", "timerKey" if asked.queue else "queue")
    if len(asked.timer_key.encode()) > _KEY_MAX:
        raise KvRefused(f"timerKey is longer than {_KEY_MAX} bytes", "timerKey")
    if asked.op == "cancel":
        return asked
    # Refuse what a push would refuse: the timer would fail when it is due, and all others due with it.
    if max(len(asked.queue), len(asked.partition or "")) > NAME_MAX:
        raise KvRefused(f"a name is longer than {NAME_MAX} characters", "queue")
    if len((asked.txn or "").encode()) > ID_MAX:
        raise KvRefused(f"txn is longer than {ID_MAX} bytes", "txn")
    if asked.delay_ms is None:
        raise KvRefused("delayMs is required", "timers_delay_required")
    if not asked.delay_ms <= _FARTHEST_MS:
        raise KvRefused(f"delayMs is more than {_FARTHEST_MS}, which is 366 days", "timers_horizon", 403)
    return asked


def _payload(asked: TimerIn) -> bytes:
    if asked.payload_zstd:
        raise KvRefused("compressed payloads are not supported", "payloadZstd")
    try:
        payload = b64decode(asked.payload or "bnVsbA==", validate=True)
    except (binascii.Error, ValueError) as error:
        raise KvRefused(f"payload is not base64: {error}", "timers_payload_not_base64") from None
    try:
        payload.decode()
        msgspec.json.decode(payload)
    except (UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise KvRefused(f"payload is not base64 of JSON: {error}", "payload") from None
    if len(payload) > _PAYLOAD_MAX:
        raise KvRefused(f"payload is larger than {_PAYLOAD_MAX} bytes", "payload", 413)
    return payload


def _result(status: str, timer: Timed) -> dict[str, object]:
    return {
        "ok": True,
        "status": status,
        "queue": timer.queue,
        "timerKey": timer.key,
        "txn": timer.transaction_id,
        "messageId": timer.message_id,
        "deliverAt": iso_ms(timer.due_us),
    }


async def run_timers(call: Call) -> object:
    timer_operations = TimerOperations(call.service, call.subject, call.now)
    try:
        for operation in _operations(call.body):
            timer_operations.add(operation)
    except KvRefused as refused:
        return refused.reply("timers_bad_request")
    timer_operations.check_rights(call.identity)
    if timer_operations.queues:
        call.context.check_alarm()
    for name in timer_operations.queues:
        call.context.check_partitioned(name)
    await _commit(call, timer_operations)
    return {"results": timer_operations.results}


def _operations(body: bytes) -> list[dict[str, object]]:
    """The operations of a body: an object with ``operations``, or a bare array, as for ``/kv``."""
    try:
        check_text(body)
        if body.lstrip().startswith(b"["):
            operations = msgspec.json.decode(body, type=list[dict[str, object]])
        else:
            operations = msgspec.json.decode(body, type=TimersIn).operations
    except msgspec.MsgspecError as error:
        raise KvRefused(str(error), "json") from None
    if len(operations) > _MOST:
        raise KvRefused(f"more than {_MOST} operations", "operations")
    return operations


async def _commit(call: Call, timer_operations: TimerOperations) -> None:
    state_records = call.service.timed.record(timer_operations.change)
    if state_records:
        call.service.store.commit_state(state_records)
        call.service.plan_timed()
        await call.durable()


async def cancel_timer(call: Call) -> object:
    timer_operations = TimerOperations(call.service, call.subject, call.now)
    asked = {"op": "cancel", "queue": call.path["queue"], "timerKey": call.path["key"]}
    try:
        timer_operations.add({**asked, "txn": call.query.optional("txn")})
    except KvRefused as refused:
        return refused.reply("timers_bad_request")
    await _commit(call, timer_operations)
    return timer_operations.results[0]


async def peek_timer(call: Call) -> object:
    timer = call.service.timed.get(call.path["queue"], call.path["key"])
    if timer is None:
        return {"found": False}
    payload = call.service.timed.payload(timer)
    return {"found": True, **_row(timer), "payload": b64encode(payload).decode()}


async def list_timers(call: Call) -> object:
    """Without payloads, which could add up to a gigabyte; ``peek_timer`` shows one."""
    limit = call.query.number("limit", 100, 1, 1000)
    rows, more = call.service.timed.page(call.path["queue"], call.query.text("after"), limit)
    after = rows[-1].key if more and rows else None
    return {"rows": [_row(timer) for timer in rows], "truncated": more, "nextAfter": after}


def _row(timer: Timed) -> dict[str, object]:
    return {
        "queue": timer.queue,
        "timerKey": timer.key,
        "partition": timer.partition,
        "txn": timer.transaction_id,
        "messageId": timer.message_id,
        "deliverAt": iso_ms(timer.due_us),
        "payloadZstd": False,
        "encrypted": False,
        "producerSub": timer.producer,
        "attempts": 0,  # always: it fires once, and is removed in the commit that adds its message
        "lastError": None,
        "claimed": False,
    }


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/v1/timers",
        WRITE,
        "timers",
        "Schedule, move, cancel",
        run_timers,
        body=TimersIn,
        statuses=(200, 400, 503),
    ),
    Endpoint(
        "DELETE",
        "/api/v1/timers/{queue}/{key:path}",
        WRITE_QUEUE,
        "timers",
        "Cancel one timer",
        cancel_timer,
        query=("txn",),
    ),
    Endpoint(
        "GET", "/api/v1/timers/{queue}/{key:path}", LOOK_AT_QUEUE, "timers", "Get one timer", peek_timer
    ),
    Endpoint(
        "GET",
        "/api/v1/timers/{queue}",
        LOOK_AT_QUEUE,
        "timers",
        "A queue's timers by key",
        list_timers,
        query=("after", "limit"),
    ),
)
