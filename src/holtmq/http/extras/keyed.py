"""Keyed rows over HTTP, alone and as parts of a transaction.

Owns: reading operations and the wire form of results and refusals. Must not touch: conditions and expiry.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.auth.rights import Identity
from holtmq.broker.partitioned.extras.keyed import FOREVER, KeyDecision, KeyOp, KeyResult, Row, Verb
from holtmq.broker.partitioned.extras.locks import NAMESPACE as LOCKS
from holtmq.broker.partitioned.groups.group import micros
from holtmq.http.engine import paging
from holtmq.http.engine.endpoints import LOOK, READ_OR_WRITE, WRITE, Call, Endpoint, Reply
from holtmq.http.engine.wire import iso_ms, raw
from holtmq.http.queues.push import check_text

MOST_OPERATIONS: Final = 256
MOST_KEYS: Final = 5_000  # that the operations of one call read by getMany: about 30 ms with their answer
VALUE_MAX: Final = 64 << 10
KEY_MAX: Final = 512
_PAGE_MAX: Final = 1000
_US: Final = 1_000_000
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}\Z")
_STORES: Final = (Verb.PUT, Verb.PUT_IF_ABSENT, Verb.INCR)
_LOOKS: Final = (Verb.GET, Verb.GET_MANY, Verb.GET_PREFIX, Verb.CHECK)
_CODES: Final = {403: "timer_horizon_exceeded", 413: "payload_too_large"}


class OperationIn(msgspec.Struct, rename="camel"):
    """One operation as it comes."""

    op: str
    ns: str = ""
    key: str | None = None
    keys: list[str] | None = None
    prefix: str | None = None
    after: str | None = None
    limit: int | None = None
    keys_only: bool | None = None
    value: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    ttl_seconds: float | None = None
    forever: bool | None = None
    expect: int | None = None
    required: bool | None = None
    delta: int | float | None = None
    min: int | float | None = None
    max: int | float | None = None


class BatchIn(msgspec.Struct):
    operations: list[OperationIn]


class KvRefused(Exception):
    """A refused request for keyed rows, locks or timers, which have their own form of errors."""

    def __init__(self, detail: str, reason: str = "invalid", status: int = 400) -> None:
        super().__init__(detail)
        self.reason = reason
        self.status = status

    def reply(self, code: str = "kv_bad_request") -> Reply:
        code = _CODES.get(self.status, code)
        return Reply(self.status, {"error": code, "code": code, "reason": self.reason, "detail": str(self)})


def read_operations(asked: Sequence[OperationIn]) -> list[KeyOp]:
    """The operations of a call, with their fields checked; raises KvRefused."""
    ops = [read_operation(operation) for operation in asked]
    keys = sum([len(op.keys) for op in ops])
    if keys > MOST_KEYS:
        raise KvRefused(f"getMany asks for {keys} keys, more than {MOST_KEYS} in one call", "keys", 413)
    return ops


def read_operation(asked: OperationIn) -> KeyOp:
    """The operation, with its fields checked; raises KvRefused."""
    try:
        verb = Verb(asked.op)
    except ValueError:
        raise KvRefused(f"unknown operation {asked.op!r}", "op") from None
    if not _NAMESPACE.match(asked.ns):
        raise KvRefused(f"{asked.ns!r} is not a namespace", "ns")
    if verb is Verb.GET_MANY:
        if not asked.keys:
            raise KvRefused("keys is required", "keys")
        return KeyOp(verb, asked.ns, keys=tuple(asked.keys))
    if verb is Verb.GET_PREFIX:
        if not asked.prefix:
            raise KvRefused("prefix must not be empty", "kv_prefix_required")
        limit = min(max(asked.limit or 100, 1), _PAGE_MAX)
        return KeyOp(verb, asked.ns, prefix=asked.prefix, after=asked.after or "", limit=limit)
    key = asked.key
    if not key:
        raise KvRefused("key is required", "key")
    if len(key.encode()) > KEY_MAX:
        raise KvRefused(f"the key is longer than {KEY_MAX} bytes", "key")
    if verb is Verb.GET:
        return KeyOp(verb, asked.ns, key)
    if asked.expect is not None and asked.expect < 0:
        raise KvRefused("expect must not be negative", "expect")
    if verb is Verb.CHECK and asked.expect is None:
        raise KvRefused("expect is required", "expect")
    if verb in (Verb.DELETE, Verb.CHECK):
        return KeyOp(verb, asked.ns, key, expect=asked.expect, required=bool(asked.required))
    if verb is Verb.INCR and asked.expect is not None:
        raise KvRefused("incr takes no expect: it adds to whatever is there", "expect")
    value = bytes(asked.value)
    if len(value) > VALUE_MAX:
        raise KvRefused(f"the value is larger than {VALUE_MAX} bytes", "value", 413)
    delta = 1 if asked.delta is None else asked.delta
    return KeyOp(
        verb,
        asked.ns,
        key,
        value,
        _lifetime_us(asked),
        None if verb is Verb.PUT_IF_ABSENT else asked.expect,
        bool(asked.required),
        delta,
        asked.min,
        asked.max,
    )


def check_rights(sender: Identity, ops: Sequence[KeyOp]) -> None:
    """Raise 403 unless the sender may read or write the namespace of each operation. For rows of locks, the
    lock's name counts instead."""
    for op in ops:
        action = Action.READ if op.verb in _LOOKS else Action.WRITE
        if op.namespace != LOCKS:
            sender.require(action, op.namespace)
        elif op.key:
            sender.require(action, op.key.rpartition("#")[0])
        else:
            for name in op.keys or (op.prefix,):
                sender.require(action, name.rpartition("#")[0] or name)


def stores(ops: Sequence[KeyOp]) -> bool:
    """Whether any of these stores a row, which is refused while memory or disk is short."""
    return any(op.verb in _STORES for op in ops)


def check_answer(sender: Identity, ops: Sequence[KeyOp], decision: KeyDecision) -> None:
    """Raises KvRefused when the rows are too large for one answer; called before anything is written.

    Of locks by prefix only those stay that the sender may read: the right was checked for the prefix itself.
    """
    for op, result in zip(ops, decision.results, strict=True):
        if op.namespace == LOCKS and op.verb is Verb.GET_PREFIX:
            names = [row.key.rpartition("#")[0] for row in result.rows]
            rows = zip(names, result.rows, strict=True)
            result.rows = [row for name, row in rows if sender.may(Action.READ, name)]
    found = sum([len(row.value) for result in decision.results for row in result.rows])
    if found > paging.MOST_BYTES:
        text = (
            f"the rows asked for have {found} bytes, more than {paging.MOST_BYTES}: ask for fewer at a time"
        )
        raise KvRefused(text, "answer", 413)


def _lifetime_us(asked: OperationIn) -> int:
    if bool(asked.forever) == (asked.ttl_seconds is not None):
        raise KvRefused("exactly one of ttlSeconds and forever is required", "kv_expiry_not_specified")
    if asked.ttl_seconds is None:
        return FOREVER
    if not 0 < asked.ttl_seconds <= 10 * 365 * 86_400:
        raise KvRefused("ttlSeconds must be above 0 and at most ten years", "expiry")
    return max(1, int(asked.ttl_seconds * _US))


def result_out(index: int, op: KeyOp, result: KeyResult, keys_only: bool = False) -> dict[str, object]:
    """One result in its wire form."""
    head: dict[str, object] = {"index": index, "op": op.verb.value}
    row = result.row
    if op.verb is Verb.GET:
        if row is None:
            return {**head, "found": False, "key": op.key, "value": None, "version": 0, "expiresAt": None}
        return {**head, "found": True, **_row_out(row)}
    if op.verb is Verb.GET_MANY:
        rows = [_row_out(each) for each in result.rows]
        return {**head, "rows": rows, "missing": result.missing, "truncated": False}
    if op.verb is Verb.GET_PREFIX:
        rows = [{"key": each.key} if keys_only else _row_out(each) for each in result.rows]
        after = result.looked_upto if result.truncated else None
        return {**head, "rows": rows, "truncated": result.truncated, "nextAfter": after}
    value: object = raw(row.value) if row is not None else None
    answer = {"key": op.key, "value": value, "version": row.version if row is not None else 0}
    if result.reason is not None:
        return {**head, "applied": False, "reason": result.reason, **answer}
    if op.verb is Verb.CHECK:
        del answer["value"]  # the check passed: the caller knows the row, and a lock's guard does not need it
    return {**head, "applied": result.applied, **answer}


def _row_out(row: Row) -> dict[str, object]:
    return {
        "key": row.key,
        "value": raw(row.value),
        "version": row.version,
        "expiresAt": None if row.expires_us == FOREVER else iso_ms(row.expires_us),
        "updatedAt": iso_ms(row.updated_us),
    }


def lost_out(decision: KeyDecision, index: int) -> dict[str, object]:
    """The answer when a required operation's condition did not hold."""
    result = decision.results[-1]
    row = result.row
    return {
        "success": False,
        "ok": False,
        "reason": "kv_precondition",
        "failedIndex": index,
        "kvReason": result.reason,
        "version": row.version if row is not None else 0,
        "value": raw(row.value) if row is not None else None,
    }


async def run_batch(call: Call) -> object:
    try:
        asked = _read_batch(call.body)
        ops = read_operations(asked)
    except KvRefused as refused:
        return refused.reply()
    check_rights(call.identity, ops)
    if stores(ops):
        call.context.check_alarm()
    decision = call.service.keyed.decide(ops, micros(call.now))
    if decision.failed is not None:
        return lost_out(decision, decision.failed)
    try:
        check_answer(call.identity, ops, decision)
    except KvRefused as refused:
        return refused.reply()
    call.service.keyed.commit(decision)
    if decision.writes:
        await call.durable()
    return {"results": _results(asked, ops, decision)}


def _results(asked: Sequence[OperationIn], ops: Sequence[KeyOp], decision: KeyDecision) -> list[object]:
    return [
        result_out(index, op, result, bool(asked[index].keys_only))
        for index, (op, result) in enumerate(zip(ops, decision.results, strict=True))
    ]


def _read_batch(body: bytes) -> list[OperationIn]:
    try:
        check_text(body)
        if body.lstrip().startswith(b"["):
            operations = msgspec.json.decode(body, type=list[OperationIn])
        else:
            operations = msgspec.json.decode(body, type=BatchIn).operations
    except msgspec.MsgspecError as error:
        raise KvRefused(str(error), "json") from None
    if len(operations) > MOST_OPERATIONS:
        raise KvRefused(f"more than {MOST_OPERATIONS} operations", "operations")
    return operations


class PutIn(msgspec.Struct, rename="camel"):
    """What the path does not say."""

    value: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    ttl_seconds: float | None = None
    forever: bool | None = None
    expect: int | None = None
    required: bool | None = None


async def get_row(call: Call) -> object:
    """One row; its version is also the ETag."""
    answer = await _one(call, OperationIn("get", call.path["ns"], call.path["key"]))
    if isinstance(answer, Reply) or not answer["found"]:
        return answer
    return Reply(200, answer, headers={"ETag": f'"{answer["version"]}"'})


async def put_row(call: Call) -> object:
    return await _write(call, "put")


async def delete_row(call: Call) -> object:
    return await _write(call, "delete")


async def _write(call: Call, verb: str) -> object:
    body = call.body or b"{}"
    try:
        check_text(body)
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        asked = msgspec.json.decode(body, type=PutIn)
    except msgspec.MsgspecError as error:
        return KvRefused(str(error), "json").reply()
    for name in ("op", "ns", "key"):
        if name in given:  # it could contradict the path
            return KvRefused(f"{name} is in the path", "kv_field_in_path").reply()
    operation = OperationIn(verb, call.path["ns"], call.path["key"])
    operation.value = asked.value
    operation.ttl_seconds, operation.forever = asked.ttl_seconds, asked.forever
    operation.expect, operation.required = asked.expect, asked.required
    return await _one(call, operation)


async def _one(call: Call, operation: OperationIn) -> Reply | dict[str, object]:
    try:
        op = read_operation(operation)
    except KvRefused as refused:
        return refused.reply()
    check_rights(call.identity, [op])
    if stores([op]):
        call.context.check_alarm()
    decision = call.service.keyed.decide([op], micros(call.now))
    if decision.failed is not None:
        return lost_out(decision, decision.failed)
    call.service.keyed.commit(decision)
    if decision.writes:
        await call.durable()
    return result_out(0, op, decision.results[0])


_ROW: Final = "/api/v1/kv/{ns}/{key:path}"
ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/v1/kv",
        READ_OR_WRITE,
        "keyed rows",
        "Several operations in one atomic step",
        run_batch,
        body=BatchIn,
    ),
    Endpoint("GET", _ROW, LOOK, "keyed rows", "One row", get_row),
    Endpoint("PUT", _ROW, WRITE, "keyed rows", "Put one row", put_row, body=PutIn),
    Endpoint("DELETE", _ROW, WRITE, "keyed rows", "Delete one row", delete_row),
)
