"""Locks and semaphores over HTTP.

Owns: the wire form. Must not touch: who gets a permit.
"""

from typing import Final
from uuid import uuid4

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.partitioned.extras.locks import NAMESPACE, Held, LockAnswer, row_key
from holtmq.broker.partitioned.groups.group import micros
from holtmq.http.engine.endpoints import READ_OR_WRITE, Call, Endpoint
from holtmq.http.engine.wire import iso_ms
from holtmq.http.extras.keyed import KvRefused

_MOST: Final = 64
_SLOTS_MAX: Final = 1024
_NAME_MAX: Final = 256
_US: Final = 1_000_000


class LockIn(msgspec.Struct, rename="camel"):
    op: str
    name: str = ""
    ttl_seconds: float | None = None
    owner: str | None = None
    limit: int | None = None
    token: int | None = None
    slot: int | None = None


class LocksIn(msgspec.Struct):
    operations: list[LockIn]


async def run_locks(call: Call) -> object:
    try:
        operations = _read(call.body)
        for asked in operations:
            _check(asked)
    except KvRefused as refused:
        return refused.reply("locks_bad_request")
    for asked in operations:
        call.require(Action.READ if asked.op == "get" else Action.WRITE, asked.name)
    results = [_run(call, index, asked) for index, asked in enumerate(operations)]
    await call.durable()
    return {"results": results}


def _read(body: bytes) -> list[LockIn]:
    try:
        operations = msgspec.json.decode(body, type=LocksIn).operations
    except msgspec.MsgspecError as error:
        raise KvRefused(str(error), "json") from None
    if len(operations) > _MOST:
        raise KvRefused(f"more than {_MOST} operations", "operations")
    return operations


def _check(asked: LockIn) -> None:
    if not asked.name or "#" in asked.name or len(asked.name.encode()) > _NAME_MAX:
        raise KvRefused(f"a name has 1 to {_NAME_MAX} bytes and no #", "name")
    if asked.op in ("acquire", "renew") and not 0 < (asked.ttl_seconds or 0) <= 86_400 * 365:
        raise KvRefused("ttlSeconds must be above 0 and at most a year", "ttlSeconds")
    if asked.op in ("renew", "release") and asked.token is None:
        raise KvRefused("token is required", "token")
    if asked.limit is not None and not 1 <= asked.limit <= _SLOTS_MAX:
        raise KvRefused(f"limit must be 1 to {_SLOTS_MAX}", "limit")
    if asked.op not in ("acquire", "renew", "release", "get"):
        raise KvRefused(f"unknown operation {asked.op!r}", "op")


def _run(call: Call, index: int, asked: LockIn) -> dict[str, object]:
    locks, now_us = call.service.locks, micros(call.now)
    head: dict[str, object] = {"index": index, "op": asked.op, "name": asked.name}
    ttl_us = int((asked.ttl_seconds or 0) * _US)
    if asked.op == "acquire":
        answer = locks.acquire(asked.name, asked.owner or str(uuid4()), asked.limit or 1, ttl_us, now_us)
        return {**head, **_granted("acquired", asked.name, answer, "held")}
    if asked.op == "renew":
        answer = locks.renew(asked.name, asked.token or 0, asked.owner, asked.slot, ttl_us, now_us)
        return {**head, **_granted("renewed", asked.name, answer, "lost")}
    if asked.op == "release":
        done = locks.release(asked.name, asked.token or 0, asked.slot, now_us)
        return {**head, "released": True} if done else {**head, "released": False, "reason": "lost"}
    holders = locks.holders(asked.name, _SLOTS_MAX, now_us)
    return {**head, "held": bool(holders), "holders": [_holder(held) for held in holders]}


def _granted(word: str, name: str, answer: LockAnswer, refusal: str) -> dict[str, object]:
    held = answer.held
    if held is None:
        return {word: False, "reason": refusal, "holders": [_holder(each) for each in answer.holders]}
    guard = {
        "op": "check",
        "ns": NAMESPACE,
        "key": row_key(name, held.slot),
        "expect": held.token,
        "required": True,
    }
    granted: dict[str, object] = {word: True, "slot": held.slot, "token": held.token, "owner": held.owner}
    granted["guard"] = guard
    granted["expiresAt"] = iso_ms(held.expires_us)
    if answer.already:
        granted["already"] = True
    return granted


def _holder(held: Held) -> dict[str, object]:
    return {
        "slot": held.slot,
        "owner": held.owner,
        "token": held.token,
        "since": iso_ms(held.since_us),
        "expiresAt": iso_ms(held.expires_us),
        "renewedAt": iso_ms(held.renewed_us),
    }


ENDPOINTS: Final = (
    Endpoint(
        "POST", "/api/v1/locks", READ_OR_WRITE, "locks", "Locks and semaphores", run_locks, body=LocksIn
    ),
)
