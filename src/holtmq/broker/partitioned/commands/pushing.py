"""Deciding a push: which items are new, which are duplicates, and whether there is room.

Owns: deduplication within and across calls, creation times, the size limit. Must not touch: state (the
queue applies the event), bodies, clocks.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.commands.addressing import Addresses, address
from holtmq.broker.partitioned.events import Pushed
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.log.message_log import GONE
from holtmq.broker.partitioned.queue import PartitionedQueue

DEFAULT_PARTITION: Final = "Default"


@dataclass(frozen=True, slots=True)
class PushDecision:
    """``offsets[i]`` is item i's offset, or that of the original if i is in ``duplicates``."""

    event: Pushed | None  # None: every item was a duplicate, nothing to write
    offsets: list[int]
    duplicates: frozenset[int]


def decide_push(
    queue: PartitionedQueue,
    items: Sequence[tuple[str, str]],
    now: float,
    limited: bool = True,
    apart: bool = False,
    ahead: Addresses | None = None,
) -> PushDecision:
    """Decide (partition name, transaction id) pairs, in order. All are stored, or the push is refused.

    ``limited`` False: skip the size limit, because the caller has checked it and can no longer refuse.
    ``ahead``: addresses that were computed in advance.
    ``apart``: start at a new millisecond, for messages whose ids were assigned before the push.
    """
    now_us = micros(now)
    first = queue.log.next_offset
    oldest_us = now_us - queue.config.dedup_window_us
    places: Sequence[int]
    prints: Sequence[int]
    if ahead is None:
        new: dict[str, int] = {}
        places, prints = address(queue, items, new)
    else:
        places, prints, new = ahead.places, ahead.prints, ahead.new
    if queue.config.dedup_window_us <= 0 or (
        len(set(prints)) == len(prints) and queue.dedup.knows_none(prints)
        if ahead is None
        else ahead.all_new()
    ):
        offsets = list(range(first, first + len(items)))
        duplicates: list[int] = []
    else:
        offsets, duplicates = _deduplicated(queue, items, places, prints, first, oldest_us)
        if duplicates:
            gone = set(duplicates)
            places = [index for place, index in enumerate(places) if place not in gone]
            prints = [print_ for place, print_ in enumerate(prints) if place not in gone]
    if not places:
        return PushDecision(None, offsets, frozenset(duplicates))
    if limited and not has_room(queue, len(places)):
        raise _is_full(queue)
    created_us = max(now_us, queue.log.last_created_us + 1)
    if apart:
        created_us += -created_us % 1000
    event = Pushed(first, created_us, array("I", places), array("Q", prints), tuple(new))
    return PushDecision(event, offsets, frozenset(duplicates))


def _deduplicated(
    queue: PartitionedQueue,
    items: Sequence[tuple[str, str]],
    indexes: Sequence[int],
    prints: Sequence[int],
    next_offset: int,
    oldest_us: int,
) -> tuple[list[int], list[int]]:
    """The offset of each item (of the original, for a duplicate), and the indexes of the duplicates."""
    known = queue.dedup.knows
    fresh: dict[int, int] = {}  # fingerprint -> index in this call
    twins: dict[int, list[int]] = {}  # later indexes whose fingerprint collides with one in fresh
    offsets: list[int] = []
    duplicates: list[int] = []
    for place, (index, print_) in enumerate(zip(indexes, prints, strict=True)):
        if print_ in fresh or known(print_):
            earlier = [fresh[print_], *twins.get(print_, ())] if print_ in fresh else []
            original = _within(items, earlier, place, offsets)
            if original is None:
                original = _stored(queue, index, print_, items[place][1], oldest_us)
            if original is not None:
                offsets.append(original)
                duplicates.append(place)
                continue
            if earlier:
                twins.setdefault(print_, []).append(place)
        fresh.setdefault(print_, place)
        offsets.append(next_offset)
        next_offset += 1
    return offsets, duplicates


def _within(
    items: Sequence[tuple[str, str]], places: Sequence[int], place: int, offsets: list[int]
) -> int | None:
    """An earlier item of the same call with the same key."""
    for earlier in places:
        if tuple(items[earlier][:2]) == tuple(items[place][:2]):
            return offsets[earlier]
    return None


def _stored(
    queue: PartitionedQueue, index: int, print_: int, transaction_id: str, oldest_us: int
) -> int | None:
    for offset in queue.dedup.candidates(print_):
        if queue.log.created_us(offset) < oldest_us:
            return None  # newest first: the others are older
        if _same_partition(queue, index, offset) and (
            queue.was_found(index, transaction_id, offset) or queue.carries(offset, transaction_id)
        ):
            return offset
    return None


def _same_partition(queue: PartitionedQueue, index: int, offset: int) -> bool:
    # A removed row has lost its partition, but its fingerprint covers the partition.
    stored = queue.log.partition(offset)
    return stored in (index, GONE)


def check_room(queue: PartitionedQueue, count: int) -> None:
    """Raise LimitReached if ``max_size`` does not allow ``count`` more."""
    if not has_room(queue, count):
        raise _is_full(queue)


def _is_full(queue: PartitionedQueue) -> LimitReached:
    most = queue.config.max_size
    return LimitReached(f"queue {queue.name} is full: it may hold {most} waiting messages")


def has_room(queue: PartitionedQueue, count: int) -> bool:
    """Whether ``max_size`` allows ``count`` more."""
    room = queue.room
    return room is None or room.fits(queue, count)


def room_left(queue: PartitionedQueue) -> int:
    """A lower bound of how many messages fit; ``has_room`` may allow more after that."""
    room = queue.room
    return sys.maxsize if room is None else room.left(queue)
