"""The partitioned queues of a checkpoint, as they were at its moment, although they are captured in steps.

Owns: which queues are still to be captured. Must not touch: their state, which ``snapshot.py`` copies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import islice

from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.log.snapshot import CapturedQueue
from holtmq.broker.partitioned.queue import PartitionedQueue


class CapturedQueues:
    """Whoever changes a queue must call ``before_change`` first, until ``is_complete``.

    When it is, ``live`` and then ``records`` may be iterated in another thread, once each.
    """

    __slots__ = ("_is_dropped", "_left", "_queues", "is_complete")

    def __init__(self, queues: Mapping[int, PartitionedQueue]) -> None:
        self._queues: dict[int, PartitionedQueue | CapturedQueue] = {**queues}  # by number
        self._left = iter(list(queues))
        self.is_complete = not queues
        self._is_dropped = False

    def before_change(self, number: int) -> None:
        """Capture this queue now, unless it is captured, or was not there at the moment."""
        self._capture(number)

    def capture(self, most: int | None = None) -> None:
        """Capture further queues, at most so many."""
        numbers = list(islice(self._left, most))
        for number in numbers:
            self._capture(number)
        self.is_complete = most is None or len(numbers) < most

    def _capture(self, number: int) -> None:
        queue = self._queues.get(number)
        if isinstance(queue, PartitionedQueue):
            self._queues[number] = CapturedQueue(queue)

    def live(self) -> Iterator[array[int]]:
        """The journal positions that the queues refer to."""
        assert self.is_complete
        assert not self._is_dropped, "live positions are asked for after the records"
        for queue in self._queues.values():
            assert isinstance(queue, CapturedQueue)
            yield from queue.live()

    def records(self) -> Iterator[StateRecord]:
        """The records of the queues. Each copy is dropped behind them: it takes long to free many at once."""
        assert self.is_complete
        self._is_dropped = True
        for number in list(self._queues):
            queue = self._queues.pop(number)
            assert isinstance(queue, CapturedQueue)
            yield from queue.records()
