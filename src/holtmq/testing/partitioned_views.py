"""Views of partitioned queues for tests: stored messages, groups, leases, dead letters.

Owns: the view types, and reading them from a broker. The functions run on the broker's own thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.streams.envelopes import message_of
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.testing.views import StoredMessage, stored_message
from holtmq.wire.tables import FieldTable


@dataclass(frozen=True, slots=True)
class GroupView:
    """A consumer group on one partitioned queue."""

    name: str
    queue: str
    lag: int  # messages it has not settled
    lags: dict[str, int]  # the same by partition, where it is not zero
    cursors: dict[str, int]  # by partition: the next position to deliver
    retries: dict[str, int]  # by partition: failures counted against the retry limit
    waiting: int  # pops waiting for a message of this queue, of any group


@dataclass(frozen=True, slots=True)
class PartitionLeaseView:
    """Messages of one partition leased to one worker."""

    id: str
    queue: str
    group: str
    partition: str
    messages: tuple[StoredMessage, ...]  # not settled yet
    attempt: int
    expires_at: float  # a Unix time on the broker's clock


def messages(service: PartitionedService, stream: StreamQueue) -> list[StoredMessage]:
    """Everything stored, oldest first."""
    log = stream.log
    return (
        []
        if log is None
        else _stored(service, stream, log, list(log.log.live_offsets(0, log.log.next_offset)))
    )


def groups(service: PartitionedService, stream: StreamQueue) -> list[GroupView]:
    """Every group, in order of first appearance."""
    log = stream.log
    if log is None:
        return []
    names = [partition.name for partition in log.partitions]
    views: list[GroupView] = []
    for group in log.groups.values():
        lags = {names[index]: lag for index, lag in group.lagging()}
        cursors = {
            name: cursor for index, name in enumerate(names) if (cursor := group.cursor(index)) is not None
        }
        retries = {names[index]: count for index, count in group.leases.retries.items()}
        waiting = service.line.waiting_on(log.name)
        views.append(GroupView(group.name, stream.name, sum(lags.values()), lags, cursors, retries, waiting))
    return views


def leases(service: PartitionedService, stream: StreamQueue, now: float) -> list[PartitionLeaseView]:
    """Every lease that has not expired."""
    log = stream.log
    if log is None:
        return []
    return [
        PartitionLeaseView(
            lease.id,
            stream.name,
            group.name,
            where.name,
            tuple(
                _stored(
                    service, stream, log, where.offsets[lease.first - where.first : lease.end - where.first]
                )
            ),
            lease.attempt,
            lease.expires_at,
        )
        for group in log.groups.values()
        for lease in group.leases.live(now)
        for where in [log.partitions[lease.partition]]
    ]


def dead_letters(service: PartitionedService, stream: StreamQueue) -> list[StoredMessage]:
    """Messages that groups failed on, oldest failure first, each with one death."""
    log = stream.log
    if log is None:
        return []
    found: list[StoredMessage] = []
    for letter in log.dead_letters:
        partition = log.partitions[letter.partition].name
        body = service.store.body(letter.journal_position)
        message = message_of(stream.name, partition, letter.offset, letter.created_us, body)
        stored = stored_message(stream, message)
        death: FieldTable = {
            "queue": stream.name,
            "reason": "failed",
            "count": letter.retry_count + 1,
            "group": letter.group,
            "partition": partition,
            "error": letter.error,
        }
        properties = replace(stored.properties, headers={**stored.headers, "x-death": [death]})
        found.append(replace(stored, properties=properties))
    return found


def _stored(
    service: PartitionedService, stream: StreamQueue, log: PartitionedQueue, offsets: Sequence[int]
) -> list[StoredMessage]:
    rows = log.log.refs(offsets)
    bodies = service.store.bodies([position for _, position, _ in rows])
    return [
        stored_message(
            stream,
            message_of(stream.name, log.partitions[log.log.partition(offset)].name, offset, created_us, body),
        )
        for (offset, _, created_us), body in zip(rows, bodies, strict=True)
    ]
