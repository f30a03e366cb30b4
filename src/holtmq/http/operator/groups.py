"""Consumer groups over HTTP: list, show, delete, move their start, seek.

Owns: their wire form. Must not touch: the rules of starting and seeking.
"""

from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.partitioned.commands.admin import delete_group, move_subscription, queue_named, seek
from holtmq.broker.partitioned.groups.group import Group, micros
from holtmq.broker.partitioned.groups.joining import count_seek, decide_seek
from holtmq.broker.partitioned.groups.subscriptions import Scope
from holtmq.broker.partitioned.log.identifiers import partition_id
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.statistics import GroupCounts, GroupPartition, count_group, group_partitions
from holtmq.http.engine.encoded_rows import EncodedObject, EncodedRows
from holtmq.http.engine.endpoints import DESTROY, DESTROY_QUEUE, LOOK, READ, READ_QUEUE, Call, Endpoint
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.stepwise import Stepwise, in_order
from holtmq.http.engine.wire import iso_ms, moment_us

_US: Final = 1_000_000
_LAGGING_AFTER: Final = 300.0
_MOST: Final = 10_000  # rows in a list of lagging groups


class SubscriptionIn(msgspec.Struct, rename="camel"):
    subscription_timestamp: str | None = None


class SeekIn(msgspec.Struct, rename="camel"):
    to_end: bool | None = None
    timestamp: str | None = None
    to_start: bool | None = None
    offset: int | None = None  # of the queue
    dry_run: bool = False  # count only


async def list_groups(call: Call) -> object:
    now, stepwise = call.now, Stepwise()
    rows = EncodedRows()
    for queue in list(call.service.store.queues.values()):
        await stepwise.between()
        if call.may_read(queue.name):
            for group in list(queue.groups.values()):
                counts = await stepwise.run(count_group(queue, group, now))
                rows.append(_group_out(call, queue, group, counts, now))
    return rows


def _group_out(
    call: Call, queue: PartitionedQueue, group: Group, counts: GroupCounts, now: float
) -> dict[str, object]:
    behind = _age(counts.oldest_us, now)
    record = call.service.store.subscriptions.lookup(
        group.name, Scope(queue.name, "", queue.namespace, queue.task)
    )
    state = "Lagging" if behind > _LAGGING_AFTER else "Stable" if counts.consumed else "Dead"
    return {
        "name": group.name,
        "queueName": queue.name,
        "topics": [queue.name],
        "members": counts.members,
        "partitionsWithLag": counts.partitions_lagging,
        "totalLag": counts.lag,
        "maxTimeLag": behind,
        "state": state,
        "subscriptionMode": None if record is None else record.mode.value,
        "subscriptionTimestamp": None if record is None else iso_ms(record.timestamp_us),
        "subscriptionCreatedAt": None if record is None else iso_ms(record.created_us),
    }


def _age(at_us: int | None, now: float) -> float:
    return 0.0 if at_us is None else max(0.0, round((micros(now) - at_us) / _US, 3))


async def show_group(call: Call) -> object:
    """The group, by queue. An unknown group gives an empty object, as old clients expect."""
    now, stepwise = call.now, Stepwise()
    answer = EncodedObject()
    for queue in list(call.service.store.queues.values()):
        await stepwise.between()
        group = queue.groups.get(call.path["group"])
        if group is None or not call.may_read(queue.name):
            continue
        rows = EncodedRows()
        for place in group_partitions(queue, group, now):
            rows.append(
                {
                    "partition": queue.partitions[place.partition].name,
                    "workerId": place.lease_id,
                    "lastConsumedAt": iso_ms(place.last_consumed_us) if place.last_consumed_us else None,
                    "totalConsumed": place.consumed,
                    "offsetLag": place.lag,
                    "timeLagSeconds": _age(place.oldest_us, now),
                    "leaseActive": place.lease_id is not None,
                }
            )
            await stepwise.between()
        answer.put(queue.name, {"partitions": rows})
    return answer


async def lagging_groups(call: Call) -> object:
    now, stepwise = call.now, Stepwise()
    least = call.query.number("minLagSeconds", 3600)
    limit, skip = call.query.number("limit", _MOST, 0, _MOST), call.query.number("offset", 0)
    rows: list[dict[str, object]] = []
    for queue in list(call.service.store.queues.values()):
        await stepwise.between()
        if not call.may_read(queue.name):
            continue
        for group in list(queue.groups.values()):
            for place in group_partitions(queue, group, now):
                behind = _age(place.oldest_us, now)
                if place.oldest_us is not None and behind >= least:
                    if skip:
                        skip -= 1
                    elif len(rows) == limit:
                        return rows
                    else:
                        rows.append(_lagging_out(queue, group, place, behind))
                await stepwise.between()
    return rows


def _lagging_out(
    queue: PartitionedQueue, group: Group, place: GroupPartition, behind: float
) -> dict[str, object]:
    return {
        "consumer_group": group.name,
        "queue_name": queue.name,
        "partition_name": queue.partitions[place.partition].name,
        "partition_id": partition_id(queue.number, place.partition),
        "worker_id": place.lease_id,
        "offset_lag": place.lag,
        "time_lag_seconds": behind,
        "lag_hours": round(behind / 3600, 2),
        "oldest_unconsumed_at": None if place.oldest_us is None else iso_ms(place.oldest_us),
        "last_consumed_at": iso_ms(place.last_consumed_us) if place.last_consumed_us else None,
    }


class _Rights:
    """Whether the caller may do this to queues; each is asked for once."""

    def __init__(self, call: Call, action: Action) -> None:
        self._call = call
        self._action = action
        self._allowed: set[str] = set()

    def require(self, queue: str) -> None:
        """Raise 403 unless the caller may."""
        if queue not in self._allowed:
            self._call.require(self._action, queue)
            self._allowed.add(queue)


async def _rights_everywhere(call: Call, action: Action, group: str) -> _Rights:
    """Raise 403 unless the caller may do this to every queue that the group reads or has a start for.

    In steps: for queues that join meanwhile it is asked when they are changed.
    """
    store, stepwise, names = call.service.store, Stepwise(), set[str]()
    rights = _Rights(call, action)
    for queue in list(store.queues.values()):
        if group in queue.groups:
            names.add(queue.name)
        await stepwise.between()
    for scope in store.subscriptions.scopes(group):
        if scope.queue:
            names.add(scope.queue)
        await stepwise.between()
    async for part in in_order(names):
        for name in part:
            rights.require(name)
            await stepwise.between()
    return rights


async def remove_group(call: Call) -> object:
    group, queue = call.path["group"], call.path.get("queue")
    if queue is None:
        rights = await _rights_everywhere(call, Action.CONFIGURE, group)
    else:
        rights = _Rights(call, Action.CONFIGURE)
    with_records = call.query.flag("deleteMetadata", True)
    steps = delete_group(call.service, group, queue, with_records=with_records, check=rights.require)
    done = await Stepwise().run(steps)
    await call.durable()
    answer: dict[str, object] = {
        "success": True,
        "consumerGroup": group,
        "deletedPartitions": done.partitions,
        "metadataDeleted": with_records,
        "queues": done.queues,
    }
    if queue is not None:
        answer["queueName"] = queue
    return answer


async def move_start(call: Call) -> object:
    wanted = call.json_or(SubscriptionIn, SubscriptionIn()).subscription_timestamp
    if not wanted:
        raise Refusal(400, "Missing subscriptionTimestamp in request body")
    at_us = moment_us(wanted, "subscriptionTimestamp")
    rights = await _rights_everywhere(call, Action.READ, call.path["group"])
    steps = move_subscription(call.service, call.path["group"], at_us, rights.require)
    count = await Stepwise().run(steps)
    await call.durable()
    return {
        "success": True,
        "consumerGroup": call.path["group"],
        "newTimestamp": iso_ms(at_us),
        "rowsUpdated": count,
    }


def _sought(asked: SeekIn) -> tuple[int | None, int | None]:
    """(time in microseconds, offset); both None: the end."""
    if asked.offset is not None and asked.offset < 0:
        raise Refusal(400, "offset: it counts from 0")
    if asked.to_end:
        return None, None
    if asked.to_start:
        return 0, None
    return moment_us(asked.timestamp, "timestamp") if asked.timestamp else None, asked.offset


async def _seek_effect(call: Call, asked: SeekIn, partition: str | None) -> object:
    """How many messages the seek would skip or deliver again; nothing is changed."""
    at_us, offset = _sought(asked)
    group, queue = call.path["group"], queue_named(call.service, call.path["queue"])
    decision = decide_seek(queue, group, at_us, partition, offset=offset)
    effect = await Stepwise().run(count_seek(queue, group, decision, call.now))
    return {
        "dryRun": True,
        "consumerGroup": group,
        "queueName": queue.name,
        "offset": decision.offset,
        "skipped": effect.skipped,
        "repeated": effect.repeated,
        "partitions": effect.partitions,
        "leases": effect.leases,
    }


async def seek_queue(call: Call) -> object:
    asked = call.json_or(SeekIn, SeekIn())
    if not asked.to_end and not asked.to_start and not asked.timestamp and asked.offset is None:
        raise Refusal(400, "Must specify 'toEnd': true, 'toStart': true, 'timestamp' or 'offset'")
    if asked.dry_run:
        return await _seek_effect(call, asked, None)
    at_us, offset = _sought(asked)
    done = seek(call.service, call.path["group"], call.path["queue"], at_us, None, offset=offset)
    await call.durable()
    return {
        "success": True,
        "consumerGroup": call.path["group"],
        "queueName": call.path["queue"],
        "seekToEnd": bool(asked.to_end),
        "targetTimestamp": None if at_us is None else iso_ms(at_us),
        "partitionsUpdated": done.partitions,
    }


async def seek_partition(call: Call) -> object:
    asked = call.json_or(SeekIn, SeekIn())
    group, name, partition = call.path["group"], call.path["queue"], call.path["partition"]
    if asked.dry_run:
        return await _seek_effect(call, asked, partition)
    at_us, offset = _sought(asked)
    seek(call.service, group, name, at_us, partition, offset=offset)
    await call.durable()
    queue = queue_named(call.service, name)
    index = queue.indexes[partition]
    where, cursor = queue.partitions[index], queue.groups[group].cursor(index) or 0
    moved_to: str | None = None
    if cursor > where.first:  # the last message before the cursor
        offset = where.offsets[cursor - where.first - 1]
        moved_to = queue.id_of(offset, queue.log.created_us(offset))
    return {
        "success": True,
        "consumerGroup": group,
        "queueName": name,
        "partitionName": partition,
        "updated": True,
        "cursorMovedTo": moved_to,
    }


async def release_lease(call: Call) -> object:
    """End the lease on a partition: its messages are delivered again, to the next worker that asks."""
    queue, now = queue_named(call.service, call.path["queue"]), call.now
    group, partition = queue.groups.get(call.path["group"]), queue.indexes.get(call.path["partition"])
    lease = None if group is None or partition is None else group.leases.lease(partition, now)
    if group is None or partition is None or lease is None:
        raise Refusal(404, "No worker holds this partition")
    call.service.give_back(queue, group.name, partition, lease.id)
    await call.durable()
    call.context.wake()
    return {
        "success": True,
        "consumerGroup": group.name,
        "queueName": queue.name,
        "partitionName": call.path["partition"],
        "leaseId": lease.id,
        "messages": lease.size,
    }


_GROUP: Final = "/api/v1/consumer-groups/{group}"
ENDPOINTS: Final = (
    Endpoint("GET", "/api/v1/consumer-groups", LOOK, "groups", "List consumer groups", list_groups),
    Endpoint(
        "GET",
        "/api/v1/consumer-groups/lagging",
        LOOK,
        "groups",
        "Partitions a group is behind on",
        lagging_groups,
        query=("minLagSeconds", "limit", "offset"),
    ),
    Endpoint("GET", _GROUP, LOOK, "groups", "A group's place in each partition", show_group),
    Endpoint("DELETE", _GROUP, DESTROY, "groups", "Delete a group", remove_group, query=("deleteMetadata",)),
    Endpoint(
        "DELETE",
        f"{_GROUP}/queues/{{queue}}",
        DESTROY_QUEUE,
        "groups",
        "Delete a group on one queue",
        remove_group,
        query=("deleteMetadata",),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/subscription",
        READ,
        "groups",
        "Change a group's start position",
        move_start,
        body=SubscriptionIn,
        statuses=(200, 400),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/queues/{{queue}}/seek",
        READ_QUEUE,
        "groups",
        "Seek to a time or to the end",
        seek_queue,
        body=SeekIn,
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "POST",
        f"{_GROUP}/queues/{{queue}}/partitions/{{partition}}/seek",
        READ_QUEUE,
        "groups",
        "Seek in one partition",
        seek_partition,
        body=SeekIn,
        statuses=(200, 400, 404),
    ),
    Endpoint(
        "DELETE",
        f"{_GROUP}/queues/{{queue}}/partitions/{{partition}}/lease",
        READ_QUEUE,
        "groups",
        "End the lease on a partition",
        release_lease,
        statuses=(200, 404),
    ),
)
