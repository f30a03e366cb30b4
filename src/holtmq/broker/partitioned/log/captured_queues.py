"""The partitioned queues of a checkpoint, as they were at its moment, although they are captured in steps.

Owns: which queues are still to be captured. Must not touch: their state, which ``snapshot.py`` copies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from math import inf
from typing import Final

from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.log.snapshot import CapturedQueue
from holtmq.broker.partitioned.queue import PartitionedQueue

_PARTITIONS: Final = 40  # take as long as a queue


class CapturedQueues:
    """Whoever changes a queue must call ``before_change`` first, until ``is_complete``.

    When it is, ``live`` and then ``records`` may be iterated in another thread, once each.
    """

    __slots__ = ("_is_dropped", "_left", "_queues", "is_complete")

    def __init__(self, queues: Mapping[int, PartitionedQueue]) -> None:
        self._queues: dict[int, PartitionedQueue | CapturedQueue] = {**queues}  # by number
        self._left = iter(array("Q", queues))
        self.is_complete = not queues
        self._is_dropped = False

    def before_change(self, number: int) -> None:
        """Capture this queue now, unless it is captured, or was not there at the moment."""
        self._capture(number)

    def capture(self, most: int | None = None) -> None:
        """Capture further queues, at most so many; one with many partitions or groups counts as several."""
        left = inf if most is None else most
        while left > 0:
            number = next(self._left, None)
            if number is None:
                self.is_complete = True
                return
            left -= self._capture(number)

    def _capture(self, number: int) -> int:
        """Capture this queue, if it is still to be; return how many queues take as long."""
        queue = self._queues.get(number)
        if not isinstance(queue, PartitionedQueue):
            return 1
        self._queues[number] = CapturedQueue(queue)
        return 1 + len(queue.partitions) // _PARTITIONS + len(queue.groups)

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
            yield from queue.deliveries()
