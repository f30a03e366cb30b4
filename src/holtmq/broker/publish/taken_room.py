"""Room in queues that refuse messages when they are full, taken by a large transaction before its commit.

Owns: how much it has taken. Must not touch: queues; whether one is full (``publishing.py``). That counts
this room as used, so nobody else gets it meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holtmq.broker.topology.destinations import Queue


class TakenRoom:
    """Messages and bytes by queue.

    Messages return to a queue whether it is full or not. In one go they do so after the publishes have been
    accepted and before the dead letters are, so they count for the latter only.
    """

    __slots__ = ("_letters", "_published", "_returning")

    def __init__(self) -> None:
        self._published: dict[Queue, list[int]] = {}  # messages, bytes, bytes of the last one
        self._letters: dict[Queue, list[int]] = {}  # likewise
        self._returning: dict[Queue, tuple[int, int]] = {}

    def of(self, queue: Queue) -> tuple[int, int]:
        """Messages and bytes on their way to a queue."""
        count, size = self._returning.get(queue, (0, 0))
        for taken in (self._published, self._letters):
            if queue in taken:
                count += taken[queue][0]
                size += taken[queue][1]
        return count, size

    def publish(self, queue: Queue, size: int) -> None:
        """Take room for a message."""
        _add(self._published, queue, size)

    def dead_letter(self, queue: Queue, size: int) -> None:
        """Take room for a dead letter."""
        _add(self._letters, queue, size)

    def give_back(self, queue: Queue, count: int, size: int) -> None:
        """These messages return to a queue. Dead letters must not have taken room yet."""
        assert not self._letters
        self._returning[queue] = count, size

    def is_there(self) -> bool:
        """Whether all queues still have room for what was accepted."""
        for queue, (count, size, last) in self._published.items():
            if queue.refuses_when_full and queue.is_full(last, count - 1, size - last):
                return False
        for queue, (_, _, last) in self._letters.items():
            count, size = self.of(queue)
            if queue.refuses_when_full and queue.is_full(last, count - 1, size - last):
                return False
        return True


def _add(taken: dict[Queue, list[int]], queue: Queue, size: int) -> None:
    found = taken.get(queue)
    if found is None:
        found = taken[queue] = [0, 0, 0]
    found[0] += 1
    found[1] += size
    found[2] = size
