"""Dead letters of both kinds of queue: grouped by what went wrong, redriven, discarded, exported.

Owns: the wire form and the selection. Must not touch: when a message is dead-lettered, the jobs that
move them.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.jobs import job as words
from holtmq.broker.jobs.filters import Filter, parse_filter
from holtmq.broker.jobs.job import Chosen, Request, Source, Target
from holtmq.broker.jobs.letter_walk import PARTITIONED, WORK, Found, exists, sources, walk
from holtmq.broker.jobs.letters import FAILED
from holtmq.broker.work.outcasts import Reason
from holtmq.http.engine.endpoints import LOOK, READ, Call, Endpoint, Reply, Stream
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.engine.wire import text
from holtmq.http.management.messages import shown_properties
from holtmq.http.operator.jobs import require_target, started
from holtmq.http.operator.letter_times import LetterTimes
from holtmq.http.operator.transfers import PurgeIn, checked

_BASE: Final = "/api/v1/operator/dead-letters"
_SCANNED_MOST: Final = 50_000  # messages that one list reads
_SIGNATURES_MOST: Final = 1_000
_PAGE: Final = 50
_PAGE_MOST: Final = 500
_PAGE_BYTES: Final = 4 << 20
_SELECTION: Final = ("kind", "vhost", "queue", "in", "group", "reason", "signature", "id", "filter")
_REASONS: Final = (*[reason.value for reason in Reason], FAILED)
_encode: Final = msgspec.json.Encoder().encode


class Selection(PurgeIn, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters, as fields of a body."""

    kind: str | None = None
    vhost: str | None = None
    queue: str | None = None
    lies_in: str | None = msgspec.field(name="in", default=None)
    group: str | None = None
    reason: str | None = None
    signature: str | None = None
    ids: tuple[str, ...] = ()

    @property
    def chosen(self) -> Chosen:
        return Chosen(self.queue, self.group, self.reason, self.signature, frozenset(self.ids))


class RedriveIn(Selection, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters, and where to if not home."""

    to: Target | None = None


def _asked(call: Call) -> Selection:
    query = call.query
    return Selection(
        kind=query.optional("kind"),
        vhost=query.optional("vhost"),
        queue=query.optional("queue"),
        lies_in=query.optional("in"),
        group=query.optional("group"),
        reason=query.optional("reason"),
        signature=query.optional("signature"),
        ids=tuple(query.every("id")),
        filter=tuple(query.every("filter")),
    )


async def _sources(call: Call, asked: Selection, *, discard: bool = False) -> list[Source]:
    """The queues in which the letters lie and which the caller may read (to discard a group's: configure)."""
    if asked.kind not in (None, WORK, PARTITIONED):
        raise Refusal(400, f"kind: {asked.kind!r} is none of {WORK}, {PARTITIONED}")
    if asked.reason is not None and asked.reason not in _REASONS:
        raise Refusal(400, f"reason: {asked.reason!r} is none of {', '.join(_REASONS)}")
    broker = call.broker
    broker.flow.now_ms = int(call.now * 1000)
    if asked.vhost is not None:
        broker.vhost(asked.vhost)
    if asked.lies_in is not None and not exists(broker, asked.vhost, asked.lies_in):
        call.identity.require_in(asked.vhost or "/", Action.READ, asked.lies_in)
        raise Refusal(404, f"no queue is named {asked.lies_in!r}")
    stepwise = Stepwise()
    found = await stepwise.run(sources(broker, asked.kind, asked.vhost, asked.lies_in))
    if asked.queue is not None:
        found = [one for one in found if not one.partitioned or one.queue == asked.queue]

    def needed(source: Source) -> Action:
        return Action.CONFIGURE if discard and source.partitioned else Action.READ

    if asked.lies_in is not None:
        for one in found:
            call.identity.require_in(one.vhost, needed(one), one.queue)
    allowed: list[Source] = []
    for one in found:
        if call.identity.may_in(one.vhost, needed(one), one.queue):
            allowed.append(one)
        await stepwise.between()
    return allowed


async def list_signatures(call: Call) -> object:
    asked = _asked(call)
    matches, stepwise = parse_filter(asked.filter), Stepwise()
    groups: dict[str, dict[str, object]] = {}
    counts: dict[str, int] = {}
    times = LetterTimes()
    scanned = 0
    truncated = False
    for source in await _sources(call, asked):
        for found in walk(call.broker, source, asked.chosen, matches):
            scanned += 1
            if scanned > _SCANNED_MOST:
                truncated = True
                break
            if found is not None:
                if _count(groups, counts, found):
                    times.add(found.letter.signature, found.letter.failed_ms)
                else:
                    truncated = True
            await stepwise.between()
    await stepwise.rest()  # 50,000 times are sorted into buckets in about 10 ms
    span, by_signature = times.over_time(int(call.now * 1000))
    rows = [
        {**row, "count": counts[signature], "over_time": by_signature.get(signature)}
        for signature, row in groups.items()
    ]
    rows.sort(key=lambda row: counts[str(row["signature"])], reverse=True)
    return {
        "signatures": rows,
        "total": sum(counts.values()),
        "scanned": min(scanned, _SCANNED_MOST),
        "truncated": truncated,
        "over_time": span,
    }


def _count(groups: dict[str, dict[str, object]], counts: dict[str, int], found: Found) -> bool:
    """Add a letter to its group; False when there are too many groups."""
    letter = found.letter
    signature = letter.signature
    row = groups.get(signature)
    if row is None:
        if len(groups) >= _SIGNATURES_MOST:
            return False
        row = groups[signature] = {
            "signature": signature,
            **_names(found),
            "text": text(letter.text),
            "first": letter.failed_ms,
            "last": letter.failed_ms,
            "example": letter.id,
        }
    counts[signature] = counts.get(signature, 0) + 1
    at = letter.failed_ms
    if at is not None:
        first, last = row["first"], row["last"]
        row["first"] = at if not isinstance(first, int) else min(first, at)
        row["last"] = at if not isinstance(last, int) else max(last, at)
    return True


def _names(found: Found) -> dict[str, object]:
    letter = found.letter
    return {
        "kind": letter.kind,
        "vhost": letter.vhost,
        "queue": text(letter.queue),
        "in": text(letter.lies_in),
        "group": letter.group,
        "reason": text(letter.reason),
    }


def _row(found: Found) -> dict[str, object]:
    letter, subject = found.letter, found.subject
    try:
        payload, encoding = subject.body.decode(), "string"
    except UnicodeDecodeError:
        payload, encoding = b64encode(subject.body).decode(), "base64"
    return {
        "id": letter.id,
        "signature": letter.signature,
        **_names(found),
        "error": text(letter.error),
        "failed": letter.failed_ms,
        "deaths": letter.deaths,
        "exchange": text(subject.exchange),
        "routing_key": text(subject.key),
        "properties": shown_properties(subject.properties),
        "payload": payload,
        "payload_encoding": encoding,
    }


async def list_messages(call: Call) -> object:
    asked, query = _asked(call), call.query
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    matches, stepwise = parse_filter(asked.filter), Stepwise()
    rows: list[dict[str, object]] = []
    scanned = size = seen = 0
    for source in await _sources(call, asked):
        for found in walk(call.broker, source, asked.chosen, matches):
            scanned += 1
            if scanned > _SCANNED_MOST or size > _PAGE_BYTES:
                return {"messages": rows, "truncated": True}
            if found is not None:
                seen += 1
                if seen > skip:
                    rows.append(_row(found))
                    size += len(found.subject.body)
                    if len(rows) == limit:
                        return {"messages": rows, "truncated": False}
            await stepwise.between()
    return {"messages": rows, "truncated": False}


async def export(call: Call) -> object:
    asked = _asked(call)
    matches = parse_filter(asked.filter)  # here, since an answer that has begun cannot be refused
    return Stream(_lines(call, asked, matches, await _sources(call, asked)), "application/x-ndjson")


async def _lines(
    call: Call, asked: Selection, matches: Filter, found_in: list[Source]
) -> AsyncGenerator[bytes, None]:
    stepwise = Stepwise()
    for source in found_in:
        for found in walk(call.broker, source, asked.chosen, matches):
            if found is not None:
                yield _encode(_row(found)) + b"\n"
            await stepwise.between()


async def redrive(call: Call) -> Reply:
    asked = call.json(RedriveIn)
    found, to = await _sources(call, asked), asked.to
    if to is not None:
        home = asked.vhost or "/"
        require_target(call, home, to)
        kinds = {one.partitioned for one in found}
        if True in kinds and (to.exchange is not None or to.vhost is not None):
            raise Refusal(400, "to: dead letters of consumer groups go to a partitioned queue of vhost /")
        if len(kinds) > 1:
            raise Refusal(400, 'to: choose the dead letters by "kind", "queue" or "in" first')
        _check_kind(call, to, partitioned=True in kinds)
    else:
        for one in found:
            if one.partitioned:
                call.identity.require_in(one.vhost, Action.WRITE, one.queue)
    return await started(call, _request(call, words.REDRIVE, asked, found, to))


def _check_kind(call: Call, to: Target, *, partitioned: bool) -> None:
    if partitioned and to.queue is not None and to.queue not in call.service.store.queues:
        raise Refusal(400, f"to: '{to.queue}' is not a partitioned queue, as these dead letters need")


async def discard(call: Call) -> Reply:
    asked = call.json(Selection)
    found = await _sources(call, asked, discard=True)
    return await started(call, _request(call, words.DISCARD, asked, found, None))


def _request(call: Call, verb: str, asked: Selection, found: list[Source], to: Target | None) -> Request:
    checked(asked)
    return Request(
        verb=verb,
        sources=tuple(found),
        to=to,
        filter=asked.filter,
        count=asked.count,
        rate=asked.rate,
        dry_run=asked.dry_run,
        by=call.identity.name,
        letters=asked.chosen,
    )


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        _BASE,
        LOOK,
        "operator",
        "Dead letters of both kinds, grouped by what went wrong",
        list_signatures,
        query=_SELECTION,
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "GET",
        f"{_BASE}/messages",
        LOOK,
        "operator",
        "Single dead letters of both kinds",
        list_messages,
        query=(*_SELECTION, "offset", "limit"),
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "GET",
        f"{_BASE}/export",
        LOOK,
        "operator",
        "Dead letters as JSON lines",
        export,
        query=_SELECTION,
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "POST",
        f"{_BASE}/redrive",
        READ,
        "operator",
        "Bring dead letters back to the queues in which they died",
        redrive,
        query=("wait",),
        body=RedriveIn,
        statuses=(202, 400, 404),
    ),
    Endpoint(
        "POST",
        f"{_BASE}/discard",
        READ,
        "operator",
        "Delete dead letters",
        discard,
        query=("wait",),
        body=Selection,
        statuses=(202, 400, 404),
    ),
)
