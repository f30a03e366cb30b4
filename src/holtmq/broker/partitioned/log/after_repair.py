"""Events that follow a stretch of the log that a repair has dropped.

Owns: how much of each queue is missing, and which numbers in later events can still be trusted. Must not
touch: queues beyond the rows of the gap; events of a log without a repair.

A push names its offset, so a gap in the sequence is seen, and filled with rows of deleted messages. Later
events count positions in a partition, and it is unknown how many of the missing messages were in which. So
that no message is skipped, a position beyond the gap is moved down by all that is missing: some messages are
delivered again. What cannot be related to a message is left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from holtmq.broker.partitioned.events import (
    Acked,
    DeadLettersRemoved,
    HandedOut,
    Leased,
    MessageDeleted,
    Pushed,
    QueueEvent,
    Trimmed,
)
from holtmq.broker.partitioned.log.message_log import NO_PARTITION, Partition

if TYPE_CHECKING:
    from holtmq.broker.partitioned.queue import PartitionedQueue

_NO_GAP: Final = 1 << 63


class AfterRepair:
    """The state of one fold, from the first dropped stretch on."""

    __slots__ = ("_gap_starts", "_letters", "_missing")

    def __init__(self) -> None:
        self._missing: dict[int, int] = {}  # by queue: messages that may be in any of its partitions
        self._gap_starts: dict[tuple[int, int], int] = {}  # by queue and partition: the gap begins here
        self._letters: dict[int, int] = {}  # by queue: dead letters from this number on may have another

    def begin(self, queues: Iterable[PartitionedQueue]) -> None:
        """A stretch is dropped here."""
        for queue in queues:
            self._letters.setdefault(queue.number, queue.dead_letters.next_number)

    def fitted(self, queue: PartitionedQueue, event: QueueEvent) -> QueueEvent | None:
        """The event as it can be applied; None when it cannot."""
        match event:
            case Pushed():
                self._bridge(queue, event)
            case Acked():
                return self._acked(queue, event)
            case Trimmed():
                pairs = zip(event.partitions, event.firsts, strict=True)
                firsts = [self._at_least(queue, index, first) for index, first in pairs]
                return replace(event, firsts=array("Q", firsts))
            case MessageDeleted():
                return event if self._is_before_gap(queue, event.partition, event.position) else None
            case HandedOut():
                rows = [row for row in event.rows if self._is_before_gap(queue, row[0], row[2] - 1)]
                return replace(event, rows=tuple(rows))
            case Leased():
                held = [row for row in event.rows if self._is_before_gap(queue, row.partition, row.end - 1)]
                return replace(event, rows=tuple(held))
            case DeadLettersRemoved():
                numbered_from = self._letters.get(queue.number, 0)
                kept = tuple(number for number in event.numbers if number < numbered_from)
                return DeadLettersRemoved(kept)
        return event

    def _bridge(self, queue: PartitionedQueue, push: Pushed) -> None:
        # Every new partition gets a message at once, so the highest index tells how many there must be.
        known = max(push.partitions) + 1 - len(push.new_partitions)
        for index in range(len(queue.partitions), known):
            name = f"repaired-{index}"  # its own is in a dropped record
            queue.indexes[name] = index
            queue.partitions.append(Partition(name, push.created_us))
            self._gap_starts[queue.number, index] = 0
        gap = push.first_offset - queue.log.next_offset
        if gap <= 0:
            return
        if len(queue.partitions) > 1:
            self._missing[queue.number] = self._missing.get(queue.number, 0) + gap
            for index, where in enumerate(queue.partitions):
                if where is not NO_PARTITION:
                    self._gap_starts.setdefault((queue.number, index), where.end)
        queue.bridge(gap, push.created_us)

    def _acked(self, queue: PartitionedQueue, event: Acked) -> Acked:
        index = event.partition
        letters = tuple(one for one in event.dead_letters if self._is_before_gap(queue, index, one.position))
        # The messages of other dead letters are delivered again: which ones they are is unknown.
        lowest = min([event.cursor, *(one.position for one in event.dead_letters if one not in letters)])
        cursor = self._at_least(queue, index, lowest)
        return msgspec.structs.replace(event, cursor=cursor, dead_letters=letters)

    def _is_before_gap(self, queue: PartitionedQueue, index: int, position: int) -> bool:
        return position < min(
            self._gap_starts.get((queue.number, index), _NO_GAP), queue.partitions[index].end
        )

    def _at_least(self, queue: PartitionedQueue, index: int, position: int) -> int:
        """This position, or the lowest that it can be now."""
        start = self._gap_starts.get((queue.number, index), _NO_GAP)
        if position > start:
            position = max(start, position - self._missing.get(queue.number, 0))
        return min(position, queue.partitions[index].end)
