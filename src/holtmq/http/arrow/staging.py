"""Batches that many tasks write and one commit publishes: ``/api/v1/staging``.

Owns: the wire form. Must not touch: how staging works. A writer is a name under which batches are numbered
upward; Spark uses its query id.
"""

import asyncio
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.auth.rights import Right
from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.commands.staging_records import Committed, PushesSuspended, StagedRow, Winner
from holtmq.http.arrow.ranges import arrow
from holtmq.http.engine.endpoints import READ_ONLY, WRITE, Call, Endpoint
from holtmq.http.engine.errors import Refusal

_NAME_MAX: Final = 255
ROWS_MAX: Final = 20_000  # of a part, which is written at one moment: about 45 ms


class TaskIn(msgspec.Struct):
    """The attempt of a task that counts, and how many rows it staged."""

    task: int
    attempt: int
    rows: int


class CommitIn(msgspec.Struct):
    tasks: list[TaskIn]


async def stage(call: Call) -> object:
    """Stage rows; they become visible with the commit."""
    call.context.check_alarm()
    writer, batch = _batch(call)
    task, attempt = _number(call, "task"), _number(call, "attempt")
    part = call.query.number("part", 0)
    defaults = {name: call.query.text(name) for name in ("queue", "partition")}
    ids = f"{writer}:{batch}:{task}.{attempt}:{part}"
    staged: list[StagedRow] = []
    speaks = await arrow()
    for some in speaks.staged_rows(call.body, defaults, ids):
        staged += some
        if len(staged) > ROWS_MAX:
            raise Refusal(
                413,
                f"a part has at most {ROWS_MAX} rows: stage the others as another part",
                "batch_too_large",
            )
        await asyncio.sleep(0)
    for name in {row.queue for row in staged}:
        call.require(Action.WRITE, name)
        call.context.check_partitioned(name)
    try:
        total = call.service.staging.stage(writer, batch, task, attempt, part, staged, call.now)
    except Conflict as error:
        raise Refusal(409, str(error)) from None
    await call.durable()
    return {"rows": total}


async def commit(call: Call) -> object:
    """Publish a batch once; a second commit answers ``repeated`` and changes nothing."""
    writer, batch = _batch(call)
    winners = [Winner(task.task, task.attempt, task.rows) for task in call.json(CommitIn).tasks]
    _check_rights(call, writer, batch)
    if call.service.spool.holds:
        raise Refusal(503, "Pushes are suspended by maintenance")
    try:
        steps = call.service.staging.commit(writer, batch, winners, call.now)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done: Committed = end.value
                break
            await asyncio.sleep(0)  # let other requests run: a million rows take a second
    except PushesSuspended as error:
        raise Refusal(503, str(error)) from None
    except Conflict as error:
        raise Refusal(409, str(error)) from None
    call.context.wake()
    await call.durable()
    return {"rows": done.rows, "duplicates": done.duplicates, "repeated": done.repeated}


async def abort(call: Call) -> object:
    """Drop the rows staged for a batch."""
    writer, batch = _batch(call)
    _check_rights(call, writer, batch)
    return {"dropped": call.service.staging.abort(writer, batch)}


async def end(call: Call) -> object:
    """Drop all rows that a writer staged, and refuse more from it for at least an hour."""
    writer = _writer(call)
    _check_rights(call, writer, None)
    return {"dropped": call.service.staging.end(writer, call.now)}


def _check_rights(call: Call, writer: str, batch: int | None) -> None:
    """Raise 403 unless the caller may write to every queue with staged rows, whatever client staged them."""
    if not call.identity.writes_everything:
        for name in call.service.staging.queues_of(writer, batch):
            call.require(Action.WRITE, name)


async def writer_state(call: Call) -> object:
    """The last batch of a writer that was published; null when there is none."""
    writer = call.path["writer"]
    last = call.service.staging.last_batch(writer)
    await call.durable()  # a client that sees its batch here does not send it again
    return {"writer": writer, "lastBatch": last}


def _batch(call: Call) -> tuple[str, int]:
    return _writer(call), _number(call, "batch")


def _writer(call: Call) -> str:
    writer = call.path["writer"]
    if len(writer) > _NAME_MAX:
        raise Refusal(400, f"a writer's name has at most {_NAME_MAX} characters")
    return writer


def _number(call: Call, name: str) -> int:
    text = call.path[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise Refusal(400, f"{name} must be a number, not {text[:32]!r}")
    return int(text)


ENDPOINTS: Final = (
    Endpoint(
        "PUT",
        "/api/v1/staging/{writer}/{batch}/{task}/{attempt}",
        WRITE,
        "staging",
        "Stage rows of a batch (Arrow IPC); the same part again replaces it",
        stage,
        query=("part", "queue", "partition"),
        in_steps=True,
        statuses=(200, 400, 409, 413, 429, 501),
    ),
    Endpoint(
        "POST",
        "/api/v1/staging/{writer}/{batch}/commit",
        WRITE,
        "staging",
        "Publish a staged batch in one step, once",
        commit,
        body=CommitIn,
        statuses=(200, 400, 409, 429, 503),
    ),
    Endpoint("DELETE", "/api/v1/staging/{writer}/{batch}", WRITE, "staging", "Discard a staged batch", abort),
    Endpoint(
        "DELETE",
        "/api/v1/staging/{writer}",
        WRITE,
        "staging",
        "Discard everything a writer has staged, and refuse more",
        end,
    ),
    Endpoint(
        "GET",
        "/api/v1/staging/{writer}",
        Right(READ_ONLY),
        "staging",
        "The last published batch of a writer",
        writer_state,
    ),
)
