"""Searching messages of both kinds of queue: ready, unacked, delayed, retained and dead.

Owns: the order of the search, its budget and its cursor. Must not touch: messages, which stay as they are,
and the language of filters. One request looks at a bounded number of messages, in steps of a few
milliseconds; the cursor in its answer continues the search behind them.
"""

from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from holtmq.auth.permissions import DEFAULT_EXCHANGE, Action
from holtmq.broker.errors import BrokerError
from holtmq.broker.jobs.filters import Filter, Subject, parse_filter
from holtmq.http.dashboard.search_sources import Found, Place, Source, sources_of
from holtmq.http.engine.endpoints import LOOK, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise

STATES: Final = ("ready", "unacked", "delayed", "retained", "dead")
_LOOKED_AT: Final = 1_500  # messages in one request
_BYTES: Final = 32 << 20  # of bodies in one request
_FOUND: Final = 50
_FOUND_MOST: Final = 200


class SearchIn(msgspec.Struct, kw_only=True):
    """What is searched for; everything that is given must hold."""

    states: list[str] = []  # none: all
    vhost: str | None = None
    queue: str | None = None
    id: str = ""
    text: str = ""  # in the body
    filter: list[str] = []
    since: int | None = None  # milliseconds
    until: int | None = None
    limit: int = _FOUND
    cursor: str = ""


class Cursor(msgspec.Struct, array_like=True):
    """Where a search stopped: in which source, and behind which of its messages."""

    source: str
    place: Place


async def search(call: Call) -> object:
    asked = call.json(SearchIn)
    for state in asked.states:
        if state not in STATES:
            raise Refusal(400, f"states: there is no state {state!r}; one of {', '.join(STATES)}")
    try:
        wanted = parse_filter(asked.filter)
    except BrokerError as error:
        raise Refusal(400, str(error)) from None
    limit = min(max(asked.limit, 1), _FOUND_MOST)
    cursor = _cursor(asked.cursor)
    found: list[dict[str, object]] = []
    seen, size, stepwise = 0, 0, Stepwise()
    unreadable = 0
    last: Cursor | None = None
    async for source in _sources(call, asked, cursor, stepwise):
        place = cursor.place if cursor is not None and cursor.source == source.name else (0, 0)
        async for one in source.messages(place, stepwise):
            last = Cursor(source.name, one.place)
            seen += 1
            if one.subject is None:
                unreadable += 1
            else:
                size += len(one.subject.body)
                if _may_see(call, one, asked) and _matches(one, one.subject, asked, wanted):
                    found.append(one.row())
            if len(found) >= limit or seen >= _LOOKED_AT or size >= _BYTES:
                return _answer(found, last, seen, unreadable)
            await stepwise.between()
    return _answer(found, None, seen, unreadable)


def _answer(
    found: list[dict[str, object]], cursor: Cursor | None, seen: int, unreadable: int
) -> dict[str, object]:
    following = None if cursor is None else msgspec.json.encode(cursor).decode()
    return {"messages": found, "cursor": following, "seen": seen, "unreadable": unreadable}


def _cursor(text: str) -> Cursor | None:
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Cursor)
    except msgspec.MsgspecError:
        raise Refusal(400, "cursor: it is not the cursor of an earlier answer") from None


def _may_see(call: Call, one: Found, asked: SearchIn) -> bool:
    """A queue's right was checked with its source; a delayed message is in no queue yet."""
    if one.state != "delayed":
        return True
    exchange = one.details["delayed_by"]
    assert isinstance(exchange, str)
    right = call.identity.may_in(one.vhost, Action.READ, exchange or DEFAULT_EXCHANGE)
    return right and asked.vhost in (None, "", one.vhost)


def _matches(one: Found, subject: Subject, asked: SearchIn, wanted: Filter) -> bool:
    if asked.since is not None and one.at_ms < asked.since:
        return False
    if asked.until is not None and one.at_ms > asked.until:
        return False
    if asked.id and asked.id not in one.ids():
        return False
    if asked.text and asked.text.encode() not in subject.body:
        return False
    return wanted(subject)


async def _sources(
    call: Call, asked: SearchIn, cursor: Cursor | None, stepwise: Stepwise
) -> AsyncGenerator[Source, None]:
    """The places to search, in a fixed order, from the cursor's on."""
    states = [state for state in STATES if not asked.states or state in asked.states]
    identity, only = call.identity, asked.queue or None

    def may(vhost: str, queue: str) -> bool:
        return (
            asked.vhost in (None, "", vhost)
            and only in (None, queue)
            and identity.may_in(vhost, Action.READ, queue)
        )

    async for source in sources_of(call.context, states, may, with_delayed=only is None):
        # Names rise, so this also finds the place behind a queue that was deleted meanwhile.
        if cursor is None or source.name >= cursor.source:
            yield source
        await stepwise.between()


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/api/v1/dashboard/messages",
        LOOK,
        "dashboard",
        "Search messages: one bounded step, with a cursor",
        search,
        body=SearchIn,
        statuses=(200, 400),
    ),
)
