"""Deciding which partitions to delete: empty ones that were not used for a long time.

Owns: what idle means, and the pass over all queues in bounded steps. Must not touch: clocks, state (the
queue applies the event). A later push to the same name creates a new partition: new id, positions from 0.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from holtmq.broker.partitioned.events import PartitionsDeleted
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.message_log import NO_PARTITION
from holtmq.broker.partitioned.queue import PartitionedQueue

STEP_PARTITIONS: Final = 20_000  # about 5 ms of walking


class IdleSweep:
    """One pass over the partitions of all queues; each ``step`` continues where the last one stopped."""

    def __init__(self, queues: Iterable[PartitionedQueue]) -> None:
        self._places: Iterator[tuple[PartitionedQueue, int]] = (
            (queue, start) for queue in queues for start in range(0, len(queue.partitions), STEP_PARTITIONS)
        )

    def step(self, now: float, idle_us: int) -> tuple[PartitionedQueue, PartitionsDeleted | None] | None:
        """The next queue and what to delete in it; None when the pass is over."""
        for queue, start in self._places:
            return queue, decide_idle(queue, now, idle_us, range(start, start + STEP_PARTITIONS))
        return None


def decide_idle(
    queue: PartitionedQueue, now: float, idle_us: int, stretch: range | None = None
) -> PartitionsDeleted | None:
    """Partitions without messages, dead letters and leases that were not used for ``idle_us``."""
    partitions = queue.partitions
    stretch = range(len(partitions)) if stretch is None else stretch
    # Within the dedup window a repeated id must match its original, and the fingerprint covers the partition.
    before_us = micros(now) - max(idle_us, queue.config.dedup_window_us)
    empty = [
        index
        for index in range(stretch.start, min(stretch.stop, len(partitions)))
        if not partitions[index].offsets and partitions[index] is not NO_PARTITION
    ]
    if not empty:
        return None
    kept = _lettered(queue.dead_letters)
    idle = tuple(index for index in empty if index not in kept and _used_us(queue, index, now) < before_us)
    return PartitionsDeleted(idle) if idle else None


def _lettered(letters: Iterable[DeadLetter]) -> set[int]:
    return {letter.partition for letter in letters}


def _used_us(queue: PartitionedQueue, index: int, now: float) -> int:
    """When the partition was last used; now, if it is leased."""
    where = queue.partitions[index]
    used = max(where.created_us, where.last_us)
    for group in queue.groups.values():
        if group.leases.lease(index, now) is not None:
            return micros(now)
        if index < len(group.leases.settled_at):
            used = max(used, group.leases.settled_at[index])
    return used
