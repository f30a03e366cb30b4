"""How much memory the ready messages of all work queues may use together.

Owns: the approximate size of each queue as of its last turn, and whether the sum is too large. Must not
touch: queues; the caller makes a queue page out messages.
"""

from __future__ import annotations

from heapq import nlargest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holtmq.broker.work.work_queue import WorkQueue

DEFAULT_BYTES: Final = 256 << 20
MESSAGE_BYTES: Final = 512  # per message beside its body: header, address, the objects around them
_COUNTED_FROM: Final = 64 << 10  # smaller queues are not counted
_KNOWN: Final = 100  # of the largest queues: to look for them among 10,000 takes 1 ms
_ASKED: Final = 1_000  # times, until they are looked for again: others may have grown


class MemoryBudget:
    """The memory budget of one node."""

    __slots__ = ("_asked", "_held", "_largest", "_used", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._held: dict[WorkQueue, int] = {}
        self._used = 0
        self._largest: list[tuple[WorkQueue, int]] = []  # with their bytes then; the largest is last
        self._asked = 0

    @property
    def used(self) -> int:
        """Bytes held by all counted queues."""
        return self._used

    @property
    def is_exceeded(self) -> bool:
        """Whether queues must page out messages."""
        return self._used > (DEFAULT_BYTES if self.limit is None else self.limit)

    def note(self, queue: WorkQueue, held: int) -> None:
        """Record how many bytes a queue holds now."""
        if held < _COUNTED_FROM:
            if queue in self._held:
                self._used -= self._held.pop(queue)
            return
        self._used += held - self._held.get(queue, 0)
        self._held[queue] = held

    def largest(self) -> WorkQueue | None:
        """The queue that holds the most bytes, or did a short while ago and has paged out less than half."""
        self._asked += 1
        if self._asked > _ASKED:
            self._largest.clear()
        while self._largest:
            queue, held = self._largest[-1]
            if self._held.get(queue, 0) >= held // 2:
                return queue
            self._largest.pop()
        self._asked = 0
        self._largest = nlargest(_KNOWN, self._held.items(), key=itemgetter(1))[::-1]
        return self._largest[-1][0] if self._largest else None
