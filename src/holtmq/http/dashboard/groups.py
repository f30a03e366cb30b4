"""Consumer groups: how far behind, and where in each partition; one page at a time.

Owns: the wire form. Must not touch: how a lag is counted. The list is sorted by lags as they were last
counted, since counting all groups takes seconds when there are many; the rows of the page are counted again.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Final

import msgspec

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.groups.group import Group, micros
from holtmq.broker.partitioned.log.message_log import NO_PARTITION
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.statistics import count_group, group_partition
from holtmq.http.dashboard.access_rights import offered
from holtmq.http.dashboard.api import dashboard_of
from holtmq.http.dashboard.ordering import ordered_page
from holtmq.http.engine.endpoints import LOOK, LOOK_AT_QUEUE, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise

_US: Final = 1_000_000
_PAGE: Final = 50
_PAGE_MOST: Final = 500
_COUNTED_AGAIN: Final = 1_000  # partitions: counting one costs about 5 µs


class GroupRow(msgspec.Struct, kw_only=True):
    """A group on one queue. ``seconds``: age of its oldest unread message; None: not counted yet."""

    group: str
    queue: str
    messages: int | None
    seconds: float | None
    leased: int = 0
    partitions: int = 0
    partitions_behind: int | None = None
    consumed: int | None = None


class PlaceRow(msgspec.Struct, kw_only=True):
    """A group's place in one partition."""

    partition: str
    cursor: int
    messages: int
    seconds: float
    retries: int
    consumed: int
    last_consumed: int | None  # milliseconds
    lease: str | None
    lease_size: int
    lease_left: float | None  # seconds


_SORTS: Final = frozenset(GroupRow.__struct_fields__)
_PLACE_SORTS: Final = frozenset(PlaceRow.__struct_fields__)


def _order(sort: str) -> Callable[[GroupRow | PlaceRow], tuple[object, str]]:
    def key(row: GroupRow | PlaceRow) -> tuple[object, str]:
        value = getattr(row, sort)
        unique = f"{row.group} {row.queue}" if isinstance(row, GroupRow) else row.partition
        if isinstance(value, str) or sort == "lease":
            return value or "", unique
        return -1 if value is None else value, unique

    return key


async def list_groups(call: Call) -> object:
    query, stepwise = call.query, Stepwise()
    sort, text = query.text("sort", "seconds"), query.text("text").lower()
    if sort not in _SORTS:
        raise Refusal(400, f"sort: there is no column {sort!r}; one of {', '.join(sorted(_SORTS))}")
    descending = query.flag("descending", sort == "seconds" and not query.has("sort"))
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    lags = await dashboard_of(call.context).watch.refreshed_lags()
    rows: list[GroupRow] = []
    for queue in list(call.service.store.queues.values()):
        if queue.groups and call.may_read(queue.name):
            for name in list(queue.groups):
                if text in name.lower() or text in queue.name.lower():
                    lag = lags.get((queue.name, name))
                    counted = (None, None) if lag is None else (lag.messages, lag.seconds)
                    rows.append(
                        GroupRow(group=name, queue=queue.name, messages=counted[0], seconds=counted[1])
                    )
        await stepwise.between()
    page = await ordered_page(rows, _order(sort), descending, skip, limit)
    now = call.now
    for row in page:
        found = call.service.store.queues.get(row.queue)
        group = found.groups.get(row.group) if found is not None else None
        if found is not None and group is not None:
            await _count(row, found, group, now, stepwise)
    return {
        "rows": page,
        "total": len(rows),
        "can": [offered(call.identity, "/", row.queue) for row in page],
    }


async def _count(
    row: GroupRow, queue: PartitionedQueue, group: Group, now: float, stepwise: Stepwise
) -> None:
    row.leased = sum(1 for _ in group.leases.live(now))
    row.partitions = len(queue.indexes)
    if row.messages is not None and row.partitions > _COUNTED_AGAIN:
        return  # as it was last counted
    counts = await stepwise.run(count_group(queue, group, now))
    row.messages = counts.lag
    oldest = counts.oldest_us
    row.seconds = 0.0 if oldest is None else max(0.0, round((micros(now) - oldest) / _US, 1))
    row.partitions_behind = counts.partitions_lagging
    row.consumed = counts.consumed


async def show_group(call: Call) -> object:
    """A group's place in each partition: the largest lag first."""
    query, now, stepwise = call.query, call.now, Stepwise()
    queue = call.service.store.queues.get(call.path["queue"])
    group = queue.groups.get(call.path["group"]) if queue is not None else None
    if queue is None or group is None:
        raise NotFound(f"no group '{call.path['group']}' on queue '{call.path['queue']}'")
    sort = query.text("sort", "messages")
    if sort not in _PLACE_SORTS:
        raise Refusal(400, f"sort: there is no column {sort!r}; one of {', '.join(sorted(_PLACE_SORTS))}")
    descending = query.flag("descending", not query.has("sort"))
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    text = query.text("text").lower()
    lags: list[tuple[int, int]] = []  # lag and index of each partition that the group reads
    for index in list(queue.indexes.values()):
        if queue.partitions[index] is not NO_PARTITION and group.cursor(index) is not None:
            lags.append((group.lag(index), index))
        await stepwise.between()
    row = GroupRow(group=group.name, queue=queue.name, messages=sum(lag for lag, _ in lags), seconds=None)
    row.partitions_behind = sum(lag > 0 for lag, _ in lags)
    row.partitions = len(queue.indexes)
    row.leased = sum(1 for _ in group.leases.live(now))
    row.consumed = sum(group.leases.consumed)
    known = (await dashboard_of(call.context).watch.refreshed_lags()).get((queue.name, group.name))
    row.seconds = None if known is None else known.seconds
    total = len(lags)
    if sort == "messages" and not text:
        # Rows are made for one page only: a group may read 100,000 partitions.
        lags = await ordered_page(lags, itemgetter(0, 1), descending, skip, limit)
        page: list[PlaceRow | None] = [_place(queue, group, index, now) for _, index in lags]
    else:
        places: list[PlaceRow] = []
        for _, index in lags:
            place = _place(queue, group, index, now)
            if place is not None and text in place.partition.lower():
                places.append(place)
            await stepwise.between()
        total = len(places)
        page = [*await ordered_page(places, _order(sort), descending, skip, limit)]
    return {
        "row": row,
        "partitions": [place for place in page if place is not None],
        "total": total,
        "can": offered(call.identity, "/", queue.name),
    }


def _place(queue: PartitionedQueue, group: Group, index: int, now: float) -> PlaceRow | None:
    where = queue.partitions[index]
    place = None if where is NO_PARTITION else group_partition(queue, group, index, now)
    if place is None:
        return None
    behind = 0.0 if place.oldest_us is None else (micros(now) - place.oldest_us) / _US
    until = place.lease_expires_at
    return PlaceRow(
        partition=where.name,
        cursor=place.cursor,
        messages=place.lag,
        seconds=max(0.0, round(behind, 1)),
        retries=place.retry_count,
        consumed=place.consumed,
        last_consumed=place.last_consumed_us // 1000 or None,
        lease=place.lease_id,
        lease_size=place.lease_size,
        lease_left=None if until is None else round(until - now, 1),
    )


_BASE: Final = "/api/v1/dashboard/groups"
ENDPOINTS: Final = (
    Endpoint(
        "GET",
        _BASE,
        LOOK,
        "dashboard",
        "Consumer groups: one page, filtered and sorted",
        list_groups,
        query=("text", "sort", "descending", "offset", "limit"),
        statuses=(200, 400),
    ),
    Endpoint(
        "GET",
        f"{_BASE}/{{queue}}/{{group}}",
        LOOK_AT_QUEUE,
        "dashboard",
        "A group's place in each partition",
        show_group,
        query=("text", "sort", "descending", "offset", "limit"),
        statuses=(200, 400, 404),
    ),
)
