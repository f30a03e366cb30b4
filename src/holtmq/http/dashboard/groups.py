"""Consumer groups: how far behind, and where in each partition; one page at a time.

Owns: the wire form. Must not touch: how a lag is counted. The list is sorted by lags as they were last
counted, since counting all groups takes seconds when there are many; the rows of the page are counted again.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.groups.group import Group, micros
from holtmq.broker.partitioned.log.message_log import NO_PARTITION
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.statistics import count_group
from holtmq.http.dashboard.access_rights import offered
from holtmq.http.dashboard.api import dashboard_of
from holtmq.http.dashboard.group_places import PLACE_COLUMNS, Places
from holtmq.http.dashboard.ordering import ordered_page
from holtmq.http.engine.endpoints import LOOK, LOOK_AT_QUEUE, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise

_US: Final = 1_000_000
_PAGE: Final = 50
_PAGE_MOST: Final = 500
_LOOK_EVERY: Final = 32  # partitions between two looks at the clock
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


_SORTS: Final = frozenset(GroupRow.__struct_fields__)


def _order(sort: str) -> Callable[[GroupRow], tuple[object, str, str]]:
    def key(row: GroupRow) -> tuple[object, str, str]:
        value = getattr(row, sort)
        return -1 if value is None else value, row.group, row.queue

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
    if sort not in PLACE_COLUMNS:
        raise Refusal(400, f"sort: there is no column {sort!r}; one of {', '.join(sorted(PLACE_COLUMNS))}")
    descending = query.flag("descending", not query.has("sort"))
    skip, limit = query.number("offset", 0), query.number("limit", _PAGE, 1, _PAGE_MOST)
    text = query.text("text").lower()
    read: list[int] = []  # partitions that the group reads and the text is in
    messages = behind = 0
    for number, index in enumerate(list(queue.indexes.values())):
        if not number % _LOOK_EVERY:
            await stepwise.between()
        where, cursor = queue.partitions[index], group.cursor(index)
        if where is not NO_PARTITION and cursor is not None:
            lag = where.count(cursor)
            messages += lag
            behind += lag > 0
            if not text or text in where.name.lower():
                read.append(index)
    row = GroupRow(group=group.name, queue=queue.name, messages=messages, seconds=None)
    row.partitions_behind = behind
    row.partitions = len(queue.indexes)
    row.leased = sum(1 for _ in group.leases.live(now))
    row.consumed = sum(group.leases.consumed)
    known = (await dashboard_of(call.context).watch.refreshed_lags()).get((queue.name, group.name))
    row.seconds = None if known is None else known.seconds
    places = Places(queue, group, now)
    page = await ordered_page(read, places.sort_key(sort), descending, skip, limit)
    return {
        "row": row,
        "partitions": [place for index in page if (place := places.row(index)) is not None],
        "total": len(read),
        "can": offered(call.identity, "/", queue.name),
    }


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
