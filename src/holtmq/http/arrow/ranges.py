"""Reading queues by range of offsets, for any program: list ranges, read rows, mirror a cursor.

Owns: the wire form of ``/api/v1/ranges``. Must not touch: the rules of ranges, Arrow's layout. Rows are sent
one bounded batch at a time, as fast as the client reads.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from itertools import pairwise
from types import ModuleType
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.partitioned.log import range_reads
from holtmq.broker.partitioned.log.range_reads import Chosen, RangeInfo, Relation
from holtmq.http.engine.context import RangeWatch
from holtmq.http.engine.encoded_rows import EncodedRows
from holtmq.http.engine.endpoints import LOOK, READ, Call, Endpoint, Stream
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.open_streams import OpenStreams
from holtmq.http.engine.stepwise import Stepwise

ARROW: Final = "application/vnd.apache.arrow.stream"
_BOUNDS_MAX: Final = 100_001


class CountsIn(msgspec.Struct):
    """Rising offsets; the answer counts between each two."""

    bounds: list[int]


class MirrorIn(msgspec.Struct):
    """The next offset the outside reader will read."""

    offset: int


async def arrow() -> ModuleType:
    """The Arrow module; raises 501 when pyarrow is not installed.

    Imported in a thread: the first time takes 0.4 s, and seconds from a cold disk.
    """
    try:
        return await asyncio.to_thread(_import)
    except ImportError as error:
        text = f"rows need pyarrow and numpy on the broker: pip install 'holtmq[arrow]' ({error})"
        raise Refusal(501, text, "not_installed") from None


def _import() -> ModuleType:
    import pyarrow as pa

    from holtmq.http.arrow import stream as arrow_stream

    pa.repeat("", 1)  # with the first array pyarrow imports pandas, if that is installed
    return arrow_stream


async def list_ranges(call: Call) -> object:
    """Queues with their offsets; ``bytes=true`` adds their sizes."""
    store, stepwise = call.service.store, Stepwise()
    names = [name for name in call.query.text("names").split(",") if name]
    if names:
        infos = [_readable(call, range_reads.find(store, name)) for name in names]
    else:
        query = call.query
        infos = await stepwise.run(
            range_reads.matching(store, query.text("pattern"), query.text("namespace"), query.text("task"))
        )
    rows = EncodedRows()
    for info in infos:
        await stepwise.between()
        if not names and not call.may_read(info.queue.name):
            continue
        row = _info(info)
        if call.query.flag("bytes") and info.relation is Relation.MESSAGES:
            _, row["bytes"] = await _fit(call, info, info.first, info.next, 1 << 62)
        rows.append(row)
    await call.durable()  # readers store these offsets: a crash must not undo them
    return {"queues": rows}


def _info(info: RangeInfo) -> dict[str, object]:
    queue = info.queue
    return {
        "name": info.name,
        "id": queue.number,
        "namespace": queue.namespace,
        "task": queue.task,
        "firstOffset": info.first,
        "nextOffset": info.next,
        "messages": info.live,
        "partitions": len(queue.indexes),
        "lastCreatedUs": queue.log.last_created_us,
    }


async def offsets_at(call: Call) -> object:
    """For each queue, the first offset at or after a time."""
    at_us = call.query.number("us", -1)
    if at_us < 0:
        given = call.query.time_us("at")
        if given is None:
            raise Refusal(400, "say when: at (ISO-8601) or us (epoch microseconds)")
        at_us = given
    store = call.service.store
    names = [name for name in call.query.text("names").split(",") if name]
    infos = {name: _readable(call, range_reads.find(store, name)) for name in names}
    found = {name: range_reads.offset_at(info, at_us) for name, info in infos.items()}
    await call.durable()
    return {"offsets": found}


async def counts(call: Call) -> object:
    """How many messages are stored between each two consecutive bounds."""
    info = _find(call)
    bounds = call.json(CountsIn).bounds
    if not 1 < len(bounds) <= _BOUNDS_MAX or any(a > b for a, b in pairwise(bounds)):
        raise Refusal(400, f"bounds must be 2 to {_BOUNDS_MAX} rising offsets")
    between = [range_reads.count(info, a, b) for a, b in pairwise(bounds)]
    await call.durable()
    return {"id": info.queue.number, "firstOffset": info.first, "nextOffset": info.next, "counts": between}


async def fit(call: Call) -> object:
    """The offset that a range starting at ``from`` reaches within ``maxBytes``, exactly."""
    info = _find(call)
    if info.relation is not Relation.MESSAGES:
        raise Refusal(400, "only messages have a size")
    first, stop = _range(call, info)
    to, size = await _fit(call, info, first, stop, call.query.number("maxBytes", 0))
    await call.durable()
    return {"to": to, "bytes": size}


async def _fit(call: Call, info: RangeInfo, first: int, stop: int, most: int) -> tuple[int, int]:
    for found in range_reads.fit_bytes(call.service.store, info.queue, first, stop, most):
        if found is not None:
            return found
        await asyncio.sleep(0)  # let other requests run: measuring ten million messages takes a while
    return stop, 0


async def rows(call: Call) -> object:
    """The rows of a range as an Arrow IPC stream."""
    speaks = await arrow()
    info = _find(call)
    query = call.query
    columns = [name for name in query.text("columns").split(",") if name]
    schema = speaks.schema_of(info.relation, columns)
    first, stop = _range(call, info)
    chosen = Chosen(query.text("partition"), query.time_us("fromTime"), query.time_us("toTime"))
    await call.durable()
    streams = call.context.range_streams
    watch = None
    if call.context.watch_range is not None and info.relation is Relation.MESSAGES:
        watch = call.context.watch_range(info.name, first, stop, call.request.header(b"traceparent"))
    bodies = speaks.stream(
        call.service.store,
        info,
        first,
        stop,
        schema,
        chosen,
        streams.piece_bytes,
        None if watch is None else watch.saw,
    )
    headers = {"x-holt-queue-id": str(info.queue.number), "x-holt-first-offset": str(info.first)}
    return Stream(_pump(bodies, streams, watch), ARROW, headers)


async def _pump(
    bodies: Iterator[bytes], streams: OpenStreams, watch: RangeWatch | None
) -> AsyncGenerator[bytes, None]:
    with streams.another():
        try:
            for body in bodies:
                yield body
                del body  # only the connection keeps it: a slow client holds one copy, not two
                await asyncio.sleep(0)  # a fast client must not monopolize the loop
        finally:
            if watch is not None:
                watch.ended()


async def mirror(call: Call) -> object:
    """Show an outside reader's progress as the cursor of a consumer group."""
    info = _find(call)
    if info.relation is not Relation.MESSAGES:
        raise Refusal(400, "groups read queues, not their relations")
    group, offset = call.path["group"], call.json(MirrorIn).offset
    events = range_reads.decide_mirror(info.queue, group, offset, call.now)
    call.service.store.commit([(info.queue.number, event) for event in events])
    call.context.wake()
    await call.durable()
    return {"queue": info.name, "group": group, "offset": offset}


def _find(call: Call) -> RangeInfo:
    return _readable(call, range_reads.find(call.service.store, call.path["queue"]))


def _readable(call: Call, info: RangeInfo) -> RangeInfo:
    """Require the right to read; for a relation (``$dlq``, ``$deliveries``) the queue's own name counts."""
    call.require(Action.READ, info.queue.name)
    return info


def _range(call: Call, info: RangeInfo) -> tuple[int, int]:
    number = call.query.number("id", info.queue.number)
    if number != info.queue.number:
        raise Refusal(
            410, f"queue {info.name} was deleted and made again; the old one's messages are gone", "gone"
        )
    first = call.query.number("from", info.first)
    stop = min(call.query.number("to", info.next), info.next)
    if first > stop:
        raise Refusal(400, f"from ({first}) lies behind to ({stop}); the queue ends at {info.next}")
    return first, stop


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/api/v1/ranges",
        LOOK,
        "ranges",
        "Queues with first and next offset; names may end in $dlq or $deliveries",
        list_ranges,
        query=("names", "pattern", "namespace", "task", "bytes"),
        statuses=(200, 404),
    ),
    Endpoint(
        "GET",
        "/api/v1/ranges/offsets",
        LOOK,
        "ranges",
        "The first offset at or after a time",
        offsets_at,
        query=("names", "at", "us"),
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "POST",
        "/api/v1/ranges/{queue}/counts",
        LOOK,
        "ranges",
        "How many messages are stored between offsets",
        counts,
        body=CountsIn,
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "GET",
        "/api/v1/ranges/{queue}/fit",
        LOOK,
        "ranges",
        "How far a range reaches within a number of bytes",
        fit,
        query=("from", "to", "maxBytes", "id"),
        statuses=(200, 400, 404, 410),
    ),
    Endpoint(
        "GET",
        "/api/v1/ranges/{queue}/rows",
        LOOK,
        "ranges",
        "The rows of a range as an Arrow IPC stream; each batch's metadata says where to go on",
        rows,
        query=("from", "to", "columns", "partition", "fromTime", "toTime", "id"),
        statuses=(200, 400, 404, 410, 501),
    ),
    Endpoint(
        "PUT",
        "/api/v1/ranges/{queue}/groups/{group}",
        READ,
        "ranges",
        "Mirror an outside reader's progress to a consumer group",
        mirror,
        body=MirrorIn,
        statuses=(200, 400, 404),
    ),
)
