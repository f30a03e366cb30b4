"""Deciding what a queue drops: by age, by age once all groups have settled it, by waiting too long.

Owns: the three limits and their order. Works in bounded steps: each call continues where the last one
stopped, so that no call visits too many partitions. Must not touch: clocks, bodies.
"""

from array import array
from dataclasses import dataclass, field
from typing import Final

from holtmq.broker.partitioned.events import Acked, Filed, GroupStarted, QueueEvent, Trimmed
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, Group, micros
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import US

WAITED_TOO_LONG: Final = "Maximum wait time exceeded"
STEP_PARTITIONS: Final = 5_000  # about 5 ms of walking
STEP_MESSAGES: Final = 10_000


@dataclass(slots=True)
class _Step:
    """One step's limits (queue-wide offsets: everything below is too old) and its results."""

    queue: PartitionedQueue
    now: float
    aged: int
    finished: int
    overdue: int
    left: int
    finished_count: int = 0
    overdue_count: int = 0
    events: list[QueueEvent] = field(default_factory=list)
    trimmed: "array[int]" = field(default_factory=lambda: array("I"))
    firsts: "array[int]" = field(default_factory=lambda: array("Q"))


def decide_retention(
    queue: PartitionedQueue,
    now: float,
    most_partitions: int = STEP_PARTITIONS,
    most: int = STEP_MESSAGES,
    *,
    floor: int = 0,
) -> tuple[QueueEvent, ...]:
    """The next step of retention and eviction; empty when there is nothing to do.

    Messages below the offset ``floor`` are dropped whatever the options say.
    """
    config, log = queue.config, queue.log
    kept = config.retention_enabled

    def below(seconds: float, on: bool) -> int:
        # Only durable messages: a dead letter would make a message visible before it is durable.
        return (
            min(log.offset_at(micros(now) - int(seconds * US)), log.durable_end) if on and seconds > 0 else 0
        )

    step = _Step(
        queue,
        now,
        max(floor, below(config.retention_seconds, kept)),
        below(config.completed_retention_seconds, kept),
        below(config.max_wait_seconds, True),
        most,
    )
    if max(step.aged, step.finished, step.overdue) <= log.first_offset:
        return ()
    count = len(queue.partitions)
    for _ in range(min(count, most_partitions)):
        if step.left <= 0:
            break
        queue.trim_hand = (queue.trim_hand + 1) % count
        _visit(step, queue.trim_hand)
    if step.trimmed:
        step.events.append(Trimmed(step.trimmed, step.firsts, step.finished_count, step.overdue_count))
    return tuple(step.events)


def _visit(step: _Step, index: int) -> None:
    where = step.queue.partitions[index]
    if not where.offsets or where.offsets[0] >= max(step.aged, step.finished, step.overdue):
        return
    readers = [g for g in step.queue.groups.values() if g.cursor(index) is not None]
    cursors = [c for g in readers if (c := g.cursor(index)) is not None]
    aged = first = where.position_of(step.aged)
    if cursors:
        first = max(first, min(where.position_of(step.finished), min(cursors)))
    finished = first
    overdue = where.position_of(step.overdue)
    if overdue > first:
        untouched = max(cursors, default=where.first) <= where.first
        held = any(g.leases.lease(index, step.now) for g in readers)
        if untouched and not held and not step.queue.config.files_evicted:
            first = overdue  # no group has read any of it: drop it at once
        else:
            _evict(step, index, overdue, readers)
    first = min(first, where.first + step.left)
    if first > where.first:
        step.left -= first - where.first
        step.finished_count += where.count(min(aged, first), min(finished, first))
        step.overdue_count += where.count(min(finished, first), first)
        step.trimmed.append(index)
        step.firsts.append(first)


def _evict(step: _Step, index: int, overdue: int, readers: list[Group]) -> None:
    """Move every group past messages that waited too long; dead-letter them if the queue is set to.

    The messages remain stored until retention removes them.
    """
    at_us, files = micros(step.now), step.queue.config.files_evicted
    positions: list[tuple[int, int]] = [
        (g.number, c)
        for g in readers
        # Leased messages are being processed, not waiting.
        if (c := g.cursor(index)) is not None and g.leases.lease(index, step.now) is None
    ]
    if not readers and files:
        number = step.queue.next_group
        if not any(isinstance(event, GroupStarted) for event in step.events):
            step.events.append(GroupStarted(QUEUE_MODE, number, 0))
        positions = [(number, step.queue.partitions[index].first)]
    for number, cursor in positions:
        end = min(overdue, cursor + step.left)
        if end > cursor:
            holes = set(step.queue.partitions[index].holes_in(cursor, end))
            waited = [p for p in range(cursor, end) if p not in holes] if files else ()
            letters = tuple(Filed(p, 0, WAITED_TOO_LONG) for p in waited)
            step.events.append(Acked(number, index, end, 0, at_us, 0, True, letters))
            step.left -= end - cursor


def ends_of(queue: PartitionedQueue, partition: str | None = None) -> dict[int, int]:
    """The end of each partition with messages, of one or of all, by index; hidden messages are behind it."""
    chosen = list(queue.partitions) if partition is None else []
    if partition is not None and partition in queue.indexes:
        chosen = [queue.partitions[queue.indexes[partition]]]
    end = queue.log.visible_end
    return {
        queue.indexes[where.name]: where.end if where.offsets[-1] < end else where.position_of(end)
        for where in chosen
        if where.offsets
    }


def decide_clear(queue: PartitionedQueue, ends: dict[int, int], most: int) -> tuple[Trimmed | None, int]:
    """Delete messages before these positions, ``most`` at most; (event, how many).

    A partition that is done is removed from ``ends``.
    """
    indexes, firsts = array("I"), array("Q")
    count = 0
    for index, end in list(ends.items()):
        if most <= 0:
            break
        where = queue.partitions[index]
        first = min(end, where.end, where.first + most)
        if first == min(end, where.end):
            del ends[index]
        most -= 1  # a partition costs as much as a message
        if first > where.first:
            most -= first - where.first
            count += where.count(where.first, first)
            indexes.append(index)
            firsts.append(first)
    return (Trimmed(indexes, firsts), count) if indexes else (None, 0)
