"""The messages of one queue while the journal is folded.

Owns: what is ready and what is settled so far. Must not touch: other records.
"""

from __future__ import annotations

from array import array
from typing import Final

from holtmq.broker.records.queue_contents import QueueState
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.work_queue import WorkQueue

_TRIM: Final = 4096  # settled positions at a queue's head before the rest is copied


class RecoveredQueue:
    """A queue while the journal is read: 8 bytes per message; settled ones are removed as they come."""

    __slots__ = (
        "bytes",
        "delivered_upto",
        "expiring",
        "gone",
        "has_levels",
        "heads",
        "levels",
        "queue",
        "returned",
    )

    def __init__(self, queue: WorkQueue) -> None:
        self.queue = queue
        self.has_levels = isinstance(queue.store, Levels)
        self.levels: dict[int, array[int]] = {}
        self.heads: dict[int, int] = {}
        self.gone: set[int] = set()  # settled, but not at the head of a level
        self.bytes = 0
        self.expiring = False
        self.delivered_upto = 0
        self.returned: dict[int, int] = {}

    def restore(self, state: QueueState) -> None:
        self.bytes, self.expiring = state.size, state.expiring
        self.delivered_upto = state.delivered_upto
        self.returned = state.returned
        for level, packed in state.levels.items():
            positions = array("Q")
            positions.frombytes(packed)
            level = self._level(level)  # the broker may be configured with fewer levels than before
            if level in self.levels:
                positions = array("Q", sorted([*self.levels[level], *positions]))
            self.levels[level] = positions
            self.heads[level] = 0

    def _level(self, priority: int) -> int:
        store = self.queue.store
        return store.level_of(priority) if isinstance(store, Levels) else 0

    def add(self, position: int, priority: int, expires_ms: int, body_size: int) -> None:
        level = self._level(priority) if self.has_levels else 0
        positions = self.levels.get(level)
        if positions is None:
            positions = self.levels[level] = array("Q")
            self.heads[level] = 0
        positions.append(position)
        self.bytes += body_size
        if expires_ms:
            self.expiring = True

    def settle(self, settled: array[int], size: int) -> None:
        self.bytes -= size
        gone = self.gone
        for position in settled:
            for level, positions in self.levels.items():
                head = self.heads[level]
                if head < len(positions) and positions[head] == position:
                    head += 1
                    while gone and head < len(positions) and positions[head] in gone:
                        gone.remove(positions[head])
                        head += 1
                    if head >= _TRIM and head * 2 >= len(positions):  # a standby reads for days
                        del positions[:head]
                        head = 0
                    self.heads[level] = head
                    break
            else:
                gone.add(position)

    def keep_only(self, survivors: array[int], size: int) -> None:
        kept = set(survivors)
        for level, positions in self.levels.items():
            self.levels[level] = array("Q", [p for p in positions[self.heads[level] :] if p in kept])
            self.heads[level] = 0
        self.gone.clear()
        self.bytes = size

    def finish(self) -> None:
        queue = self.queue
        for level, positions in self.levels.items():
            rest = positions[self.heads[level] :]
            if self.gone:
                rest = array("Q", [p for p in rest if p not in self.gone])
            if not rest:
                continue
            if isinstance(queue.store, Levels):
                queue.store.adopt(level, rest)
            else:
                queue.store.adopt(rest)
        queue.bytes = max(self.bytes, 0)
        queue.expiring = queue.expiring or self.expiring
        queue.returned = self.returned if len(queue) else {}
        queue.redelivered_upto = queue.delivered_upto = queue.delivered_recorded = self.delivered_upto
