"""Reading partitions by offset, without a group: fetch records, and find partitions that changed.

Owns: the wire form, and how a fetch waits for ``minBytes``. Must not touch: groups and leases.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Generator
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.identifiers import partition_id
from holtmq.broker.partitioned.log.message_log import NO_PARTITION, Partition
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.http.engine import paging
from holtmq.http.engine.endpoints import READ, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.lasting_requests import sender_now
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import iso_ms, moment_us, raw
from holtmq.http.queues.push import NAME_MAX

_MOST: Final = 1024
_PAGE: Final = 1000
_MAX_BYTES: Final = 8 << 20
_RECORD_COST: Final = 150  # bytes of JSON around a payload
_READ_AT_ONCE: Final = 256
_MOST_LOOKED_AT: Final = 100_000  # partitions in one call
_LEAST_LOOKED_AT: Final = 100  # partitions per entry, so that each one makes progress


class FetchEntry(msgspec.Struct, rename="camel"):
    queue: str
    partition: str = "Default"
    offset: int = 0
    max_bytes: int | None = None


class FetchIn(msgspec.Struct, rename="camel"):
    entries: list[FetchEntry]
    max_bytes: int | None = None
    max_wait_ms: float | None = None
    min_bytes: int | None = None


class ChangedEntry(msgspec.Struct):
    queue: str
    since: str | None = None
    after: str | None = None
    limit: int | None = None


class ChangedIn(msgspec.Struct):
    entries: list[ChangedEntry]


async def fetch(call: Call) -> object:
    asked = call.json(FetchIn)
    if len(asked.entries) > _MOST:
        raise Refusal(400, f"more than {_MOST} entries")
    wanted = max(asked.min_bytes or 1, 1)
    if any(max(len(entry.queue), len(entry.partition)) > NAME_MAX for entry in asked.entries):
        raise Refusal(400, f"a name is longer than {NAME_MAX} characters")
    call.forget_body()
    queues = {entry.queue for entry in asked.entries}
    for name in queues:
        call.require(Action.READ, name)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(asked.max_wait_ms or 0, call.context.config.http.max_wait_ms) / 1000
    while True:
        answer, size, failed = await _read_all(call, asked)
        left = deadline - loop.time()
        if size >= wanted or failed or left <= 0:
            return {"entries": answer}
        await _pushed(call, queues, left)
        sender = await sender_now(call.request)
        for name in queues:
            sender.require(Action.READ, name)


async def _pushed(call: Call, queues: set[str], seconds: float) -> None:
    """Wait until a push to one of the queues is visible, or the time is up."""
    arrived = asyncio.Event()
    line = call.service.line
    line.watch(queues, arrived.set)
    try:
        async with asyncio.timeout(seconds):
            await arrived.wait()
    except TimeoutError:
        pass
    finally:
        line.unwatch(queues, arrived.set)


async def _read_all(call: Call, asked: FetchIn) -> tuple[list[dict[str, object]], int, bool]:
    left = min(asked.max_bytes or _MAX_BYTES, _MAX_BYTES)
    answer: list[dict[str, object]] = []
    total, failed, stepwise = 0, False, Stepwise()
    for entry in asked.entries:
        # Each entry gets at least one record, whatever its size; but a thousand huge ones must not add up.
        row, size = await stepwise.run(_read_entry(call, entry, left, full=total >= paging.MOST_BYTES))
        left -= size
        total += size
        failed = failed or "error" in row
        answer.append(row)
        await stepwise.between()
    return answer, total, failed


def _read_entry(
    call: Call, entry: FetchEntry, left: int, *, full: bool
) -> Generator[None, None, tuple[dict[str, object], int]]:
    queue = call.service.store.queues.get(entry.queue)
    head: dict[str, object] = {"queue": entry.queue, "partition": entry.partition}
    index = queue.indexes.get(entry.partition) if queue is not None else None
    if queue is None or index is None:
        empty = {**head, "records": [], "highWatermark": 0, "logStartOffset": 0}
        if queue is None:
            return {**empty, "error": "UNKNOWN_TOPIC_OR_PARTITION"}, 0
        return ({**empty, "error": "OFFSET_OUT_OF_RANGE"} if entry.offset else empty), 0
    where = queue.partitions[index]
    # Only durable records: a reader remembers its offset. If it read a message that a power cut removes, the
    # next message would get the same offset, and the reader would skip it.
    end = where.position_of(queue.log.durable_end)
    head |= {"highWatermark": end, "logStartOffset": where.first}
    if not where.first <= entry.offset <= end:
        return {**head, "records": [], "error": "OFFSET_OUT_OF_RANGE"}, 0
    if full:
        return {**head, "records": []}, 0
    most = min(entry.max_bytes or left, left)
    records, size = yield from _records(call, queue, where, entry.offset, end, most)
    return {**head, "records": records}, size


def _records(
    call: Call, queue: PartitionedQueue, where: Partition, start: int, end: int, most_bytes: int
) -> Generator[None, None, tuple[list[dict[str, object]], int]]:
    """Records from an offset on, at least one whatever its size. In steps: what follows may be gone then."""
    records: list[dict[str, object]] = []
    size, at = 0, start
    while at < end and (size < most_bytes or not records):
        if at < where.first or call.service.store.by_number.get(queue.number) is not queue:
            break
        stop = min(at + _READ_AT_ONCE, end)
        holes = where.holes_in(at, stop)
        positions = [position for position in range(at, stop) if position not in holes]
        rows = queue.log.refs([where.offsets[position - where.first] for position in positions])
        places = [row[1] for row in rows]
        if places and places[-1] - places[0] > most_bytes - size:
            # Journal positions bound the sizes: read only the messages that can fit, plus one.
            fitting = bisect_right(places, places[0] + max(most_bytes - size, 0))
            if fitting < len(places):
                stop = positions[fitting]
                del places[fitting:]
        for position, row, body in zip(positions, rows, call.service.store.bodies(places), strict=False):
            cost = len(body.payload) + _RECORD_COST
            if records and size + cost > most_bytes:
                return records, size
            size += cost
            records.append(
                {
                    "offset": position,
                    "transactionId": body.transaction_id,
                    "payload": raw(body.payload),
                    "ts": iso_ms(row[2]),
                }
            )
        at = stop
        yield
    return records, size


async def changed(call: Call) -> object:
    asked = call.json(ChangedIn)
    if len(asked.entries) > _MOST:
        raise Refusal(400, f"more than {_MOST} entries")
    for name in {entry.queue for entry in asked.entries}:
        call.require(Action.READ, name)
    # Creation times rise strictly and are assigned on this loop: every message up to now is included below.
    safe_us = micros(call.now)
    left, stepwise = _MOST_LOOKED_AT, Stepwise()
    entries: list[dict[str, object]] = []
    for entry in asked.entries:
        row, looked_at = await stepwise.run(_changed(call, entry, max(left, _LEAST_LOOKED_AT)))
        left -= looked_at
        entries.append(row)
    # Readers store these offsets, so they must be durable. They are read before the wait: safeTime promises
    # that everything up to it is included.
    await call.durable()
    return {"safeTime": iso_ms(safe_us), "entries": entries}


def _changed(
    call: Call, entry: ChangedEntry, most: int
) -> Generator[None, None, tuple[dict[str, object], int]]:
    """The entry's answer, and how many partitions were examined; beyond ``most``, ``next`` continues."""
    head: dict[str, object] = {"queue": entry.queue}
    queue = call.service.store.queues.get(entry.queue)
    if queue is None:
        return {**head, "partitions": [], "next": None, "error": "UNKNOWN_TOPIC_OR_PARTITION"}, 0
    since_us = moment_us(entry.since, "since") if entry.since else 0
    limit = min(max(entry.limit or _PAGE, 1), _PAGE)
    start = int(entry.after) + 1 if entry.after and entry.after.isdigit() and len(entry.after) < 12 else 0
    rows: list[dict[str, object]] = []
    last = start
    stop = min(len(queue.partitions), start + most)
    for index in range(start, stop):
        if not index % _LEAST_LOOKED_AT:
            yield
        where = queue.partitions[index]
        if where is NO_PARTITION:
            continue
        written_us = queue.log.created_us(where.offsets[-1]) if where.offsets else where.created_us
        if written_us < since_us:
            continue
        if len(rows) == limit:
            return {**head, "partitions": rows, "next": str(last)}, index - start
        last = index
        rows.append(
            {
                "name": where.name,
                "id": partition_id(queue.number, index),
                "lastOffset": where.end - 1,
                "logStart": where.first,
                "lastWriteAt": iso_ms(written_us),
            }
        )
    further = str(stop - 1) if stop < len(queue.partitions) else None
    return {**head, "partitions": rows, "next": further}, max(stop - start, 0)


ENDPOINTS: Final = (
    Endpoint("POST", "/api/v1/fetch", READ, "reads", "Read partitions by offset", fetch, body=FetchIn),
    Endpoint(
        "POST",
        "/api/v1/partitions/changed",
        READ,
        "reads",
        "Partitions written since a time",
        changed,
        body=ChangedIn,
    ),
)
