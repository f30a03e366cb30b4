"""How much memory the waiting messages of all work queues may take together.

Owns: what each queue holds, about, as of its last turn, and whether that is too much. Must not touch:
queues; one that holds too much is asked to let go by whoever asks here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holtmq.broker.work.work_queue import WorkQueue

DEFAULT_BYTES: Final = 256 << 20
MESSAGE_BYTES: Final = 512  # what a message takes beside its body: header, address, the objects around them
_COUNTED_FROM: Final = 64 << 10  # queues that hold less are not counted


class MemoryBudget:
    """Of one node."""

    __slots__ = ("_held", "_used", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._held: dict[WorkQueue, int] = {}
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes held by all queues that count."""
        return self._used

    @property
    def is_exceeded(self) -> bool:
        """Whether queues must let go of messages."""
        return self._used > (DEFAULT_BYTES if self.limit is None else self.limit)

    def note(self, queue: WorkQueue, held: int) -> None:
        """A queue holds so much now."""
        if held < _COUNTED_FROM:
            if queue in self._held:
                self._used -= self._held.pop(queue)
            return
        self._used += held - self._held.get(queue, 0)
        self._held[queue] = held

    def largest(self) -> WorkQueue | None:
        """The queue that holds most."""
        return max(self._held, key=self._held.__getitem__, default=None)
