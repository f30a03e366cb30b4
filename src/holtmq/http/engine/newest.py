"""The newest of very many things, found one by one.

Owns: which of them are on the page that was asked for. Must not touch: what they are.
"""

from heapq import heappush, heapreplace
from typing import Generic, TypeVar

T = TypeVar("T")


class Newest(Generic[T]):
    """Keeps at most ``most``, so that few are sorted in the end."""

    __slots__ = ("_heap", "_most", "count")

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[tuple[int, int], int, T]] = []
        self.count = 0  # of all that were added

    def add(self, created: tuple[int, int], item: T) -> None:
        """Add one that was made at this time and place. Of several with the same, the first is the newest."""
        self.count += 1
        entry = (created, -self.count, item)
        if len(self._heap) < self._most:
            heappush(self._heap, entry)
        elif self._heap and entry > self._heap[0]:
            heapreplace(self._heap, entry)

    def page(self, skip: int) -> list[T]:
        """Those behind the ``skip`` newest."""
        return [item for *_, item in sorted(self._heap, reverse=True)[skip:]]
