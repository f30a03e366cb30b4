"""The costly part of deciding a large push, ahead of it and in steps: where items go, what identifies them.

Owns: partition, fingerprint and a first look at duplicates of items that will be pushed together. Must not
touch: state, clocks. The queue may change between two steps: ``holds`` tells whether the addresses are still
true, and ``all_new`` looks again at what came meanwhile.
"""

from array import array
from collections.abc import Sequence

from holtmq.broker.partitioned.queue import PartitionedQueue


class Addresses:
    """Of the items of one push, in order."""

    __slots__ = ("_fresh", "_names", "_queue", "_seen", "_since", "new", "places", "prints")

    def __init__(self, queue: PartitionedQueue) -> None:
        self.places: array[int] = array("I")  # partition index of each item
        self.prints: array[int] = array("Q")
        self.new: dict[str, int] = {}  # partitions that the push will make
        self._queue = queue
        self._names = len(queue.partitions), len(queue.indexes)
        self._since = queue.log.next_offset
        self._seen: set[int] = set()
        self._fresh = True

    def add(self, items: Sequence[tuple[str, str]]) -> None:
        """The next (partition name, transaction id) pairs."""
        places, prints = address(self._queue, items, self.new)
        self.places.extend(array("I", places))
        self.prints.extend(array("Q", prints))
        if self._fresh:
            self._seen.update(prints)
            self._fresh = len(self._seen) == len(self.prints) and self._queue.dedup.knows_none(prints)

    def holds(self, queue: PartitionedQueue | None) -> bool:
        """Whether this is still the queue, with the same partitions. None: it does not exist (yet)."""
        if queue is None:
            return self._names == (0, 0)
        return queue is self._queue and self._names == (len(queue.partitions), len(queue.indexes))

    def all_new(self) -> bool:
        """Whether no item can be a duplicate. Only those pushed since the first step are looked at."""
        log = self._queue.log
        return self._fresh and all(
            self._seen.isdisjoint(prints) for _, prints in log.fingerprint_runs(self._since)
        )


def address(
    queue: PartitionedQueue, items: Sequence[tuple[str, str]], new: dict[str, int]
) -> tuple[list[int], list[int]]:
    """Partition index and fingerprint of each item; partitions that are not there go into ``new``."""
    indexes, print_of, next_index = queue.indexes, queue.fingerprint, len(queue.partitions)
    places: list[int] = []
    prints: list[int] = []
    before, index = "", -1
    for name, transaction_id in items:
        if index < 0 or name != before:
            before = name
            found = indexes.get(name)
            index = new.setdefault(name, next_index + len(new)) if found is None else found
        places.append(index)
        prints.append(print_of(index, transaction_id))
    return places, prints
