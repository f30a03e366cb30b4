"""The expensive part of deciding a large push, done in advance and in steps: partitions and fingerprints.

Owns: partition, fingerprint and a first duplicate check of items that will be pushed together. Must not
touch: state, clocks. The queue may change between two steps: ``holds`` tells whether the addresses are still
valid, and ``all_new`` also checks messages pushed in the meantime.
"""

from array import array
from collections.abc import Sequence

from holtmq.broker.partitioned.queue import PartitionedQueue


class Addresses:
    """Partition index and fingerprint of each item of one push, in order."""

    __slots__ = ("_fresh", "_names", "_queue", "_seen", "_since", "new", "places", "prints")

    def __init__(self, queue: PartitionedQueue) -> None:
        self.places: array[int] = array("I")  # partition index of each item
        self.prints: array[int] = array("Q")
        self.new: dict[str, int] = {}  # partitions that the push will create
        self._queue = queue
        self._names = len(queue.partitions), len(queue.indexes)
        self._since = queue.log.next_offset
        self._seen: dict[int, int] = {}  # fingerprint -> place
        self._fresh = True

    def add(self, items: Sequence[tuple[str, str]]) -> None:
        """Add the next (partition name, transaction id) pairs."""
        places, prints = address(self._queue, items, self.new)
        self.places.extend(array("I", places))
        self.prints.extend(array("Q", prints))
        if self._fresh:
            self._seen.update(
                zip(prints, range(len(self.prints) - len(prints), len(self.prints)), strict=True)
            )
            self._fresh = len(self._seen) == len(self.prints) and self._queue.dedup.knows_none(prints)

    def holds(self, queue: PartitionedQueue | None) -> bool:
        """Whether the addresses are valid for ``queue`` as it is now. None: it does not exist (yet)."""
        if queue is None:
            return self._names == (0, 0)
        return queue is self._queue and self._names == (len(queue.partitions), len(queue.indexes))

    @property
    def by_print(self) -> dict[int, int]:
        """The place of each fingerprint, if ``all_new``."""
        return self._seen

    def all_new(self) -> bool:
        """Whether no item can be a duplicate. Only messages pushed since the first step are checked."""
        log = self._queue.log
        return self._fresh and all(
            self._seen.keys().isdisjoint(prints) for _, prints in log.fingerprint_runs(self._since)
        )


def address(
    queue: PartitionedQueue, items: Sequence[tuple[str, str]], new: dict[str, int]
) -> tuple[list[int], list[int]]:
    """Partition index and fingerprint of each item; missing partitions are added to ``new``."""
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
