"""Removal from a queue: messages at the front, single messages, and empty partitions.

Owns: the effect of a removal on indexes, leases and assigned ids. Must not touch: the reason for it
(retention and the admin commands decide), clocks, bodies.
"""

from collections.abc import Iterable
from typing import Final

from holtmq.broker.partitioned.events import IdsGiven, PartitionsDeleted
from holtmq.broker.partitioned.groups.group import Group
from holtmq.broker.partitioned.groups.partition_leases import UNSET
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetterStore
from holtmq.broker.partitioned.log.message_log import NO_PARTITION, MessageLog, Partition

_EVEN_EXPIRED: Final = float("-inf")


class GivenIds:
    """Ids assigned before their message was pushed. There are few; all other ids are computed."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._ids)

    def get(self, offset: int) -> str | None:
        return self._ids.get(offset)

    def add(self, event: IdsGiven) -> None:
        self._ids.update(event.ids)

    def forget(self, offsets: Iterable[int], letters: DeadLetterStore) -> None:
        """Drop the ids of removed messages, except those that have a dead letter."""
        if self._ids:
            for offset in offsets:
                if offset in self._ids and not letters.of_message(offset):
                    del self._ids[offset]

    def dump(self) -> tuple[tuple[int, str], ...]:
        return tuple(self._ids.items())


def trim(where: Partition, first: int, log: MessageLog) -> list[int]:
    """Remove the messages of a partition before ``first``; return their offsets."""
    gone = where.offsets[: first - where.first].tolist()
    if gone:
        where.last_us = log.created_us(gone[-1])
        log.release([gone[hole - where.first] for hole in where.holes_in(where.first, first)])
        log.forget(gone)
        where.cut(first)
    return gone


def drop_from_lease(group: Group, index: int, position: int, where: Partition) -> bool:
    """Take a deleted message out of the group's lease; return whether the partition may be claimable now."""
    leases = group.leases
    cursor = group.cursor(index)
    held_back = (
        cursor is not None
        and where.live_from(cursor) > position >= cursor
        and forget_head(group, index, where.live_from(cursor))
    )
    lease = leases.lease(index, _EVEN_EXPIRED)
    if lease is None or not lease.first <= position < lease.end:
        return held_back
    lease.deleted(position)
    if not lease.conflated or position < lease.end - 1:
        first = max(lease.first, where.first)
        lease.end = max(first, where.live_end(lease.end))
        if where.count(first, lease.end):
            return held_back
    leases.end(index)  # no message is left that could be acked
    leases.recorded.pop(index, None)
    return True


def forget_head(group: Group, index: int, head: int) -> bool:
    """The group's next message was removed, and the one at ``head`` does not inherit its retries; return
    whether the partition may be claimable now."""
    leases = group.leases
    leases.retries.pop(index, None)
    leases.deleted_head(index, head)
    return leases.holds.pop(index, None) is not None


def forget_partitions(
    event: PartitionsDeleted, partitions: list[Partition], indexes: dict[str, int], groups: Iterable[Group]
) -> None:
    """Free the memory of empty partitions, except for one slot each.

    ``partition_starts`` remain, like the records they come from (see ``subscriptions``): if a partition of
    the same name is created again, a group that once popped it by name still reads it.
    """
    for index in event.partitions:
        del indexes[partitions[index].name]
        partitions[index] = NO_PARTITION
    for group in groups:
        leases = group.leases
        for index in event.partitions:
            leases.end(index)
            leases.forget_attempts(index)
            for sparse in (leases.retries, leases.holds, leases.recorded):
                sparse.pop(index, None)
            if index < len(leases.cursors):
                leases.cursors[index] = UNSET
                leases.consumed[index] = leases.settled_at[index] = 0
