"""Move, copy and purge messages of a work queue, over HTTP.

Owns: the wire form of the request. Must not touch: the job that carries it out.
"""

from typing import Final

import msgspec

from holtmq.broker.errors import NotFound
from holtmq.broker.jobs import job as words
from holtmq.broker.jobs.job import Request, Source, Target
from holtmq.http.engine.endpoints import READ_QUEUE, Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.operator.jobs import require_target, started


class PurgeIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which messages."""

    filter: tuple[str, ...] = ()
    count: int | None = None
    rate: float | None = None
    dry_run: bool = False


class TransferIn(PurgeIn, forbid_unknown_fields=True, kw_only=True):
    """Which messages, and where to."""

    to: Target


def checked(given: PurgeIn) -> PurgeIn:
    """Raises 400 for numbers that cannot be meant."""
    if given.count is not None and given.count < 1:
        raise Refusal(400, f"count: {given.count} is not a number of messages; leave it out for all of them")
    if given.rate is not None and not 0.1 <= given.rate <= 1e6:
        raise Refusal(400, f"rate: {given.rate} is not from 0.1 to 1000000 messages a second")
    return given


async def move(call: Call) -> Reply:
    return await _transfer(call, words.MOVE)


async def copy(call: Call) -> Reply:
    return await _transfer(call, words.COPY)


async def _transfer(call: Call, verb: str) -> Reply:
    source, given = _source(call), call.json(TransferIn)
    to = given.to
    require_target(call, source.vhost, to)
    return await started(call, _request(call, verb, source, given, to))


async def purge(call: Call) -> Reply:
    source, given = _source(call), call.json_or(PurgeIn, PurgeIn())
    return await started(call, _request(call, words.PURGE, source, given, None))


def _source(call: Call) -> Source:
    vhost, name = call.path["vhost"], call.path["queue"]
    home = call.broker.vhosts.get(vhost)
    queue = home.queues.get(name) if home is not None else None
    if queue is None:
        raise NotFound(f"no queue '{name}' in vhost '{vhost}'")
    if queue.is_stream:
        raise Refusal(400, f"{name} is a partitioned queue: its messages stay for all groups until retention")
    return Source(vhost, name)


def _request(call: Call, verb: str, source: Source, given: PurgeIn, to: Target | None) -> Request:
    given = checked(given)
    return Request(
        verb=verb,
        sources=(source,),
        to=to,
        filter=given.filter,
        count=given.count,
        rate=given.rate,
        dry_run=given.dry_run,
        by=call.identity.name,
    )


_QUEUE: Final = "/api/v1/operator/queues/{vhost}/{queue}"
_STATUSES: Final = (202, 400, 404)
ENDPOINTS: Final = (
    Endpoint(
        "POST",
        f"{_QUEUE}/move",
        READ_QUEUE,
        "operator",
        "Move messages to another queue or an exchange",
        move,
        query=("wait",),
        body=TransferIn,
        statuses=_STATUSES,
    ),
    Endpoint(
        "POST",
        f"{_QUEUE}/copy",
        READ_QUEUE,
        "operator",
        "Copy messages to another queue or an exchange",
        copy,
        query=("wait",),
        body=TransferIn,
        statuses=_STATUSES,
    ),
    Endpoint(
        "POST",
        f"{_QUEUE}/purge",
        READ_QUEUE,
        "operator",
        "Delete messages by a filter",
        purge,
        query=("wait",),
        body=PurgeIn,
        statuses=_STATUSES,
    ),
)
