"""What the holder of leases may get besides new ones: further messages in the partitions that it holds.

Owns: which partitions may have some. Must not touch: leases, cursors.
"""

from collections import deque


class Looks:
    """At how many partitions a claim may still look, most of which may have nothing."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Further:
    """A FIFO line of partitions, each once. A partition may turn out to have nothing."""

    __slots__ = ("_line", "_noted", "looks")

    def __init__(self) -> None:
        self._line: deque[int] = deque()
        self._noted: set[int] = set()
        self.looks = Looks(0)  # of the claim that takes them

    def note(self, partition: int) -> None:
        """The partition may have more messages."""
        if partition not in self._noted:
            self._noted.add(partition)
            self._line.append(partition)

    def take(self) -> int | None:
        """Remove and return the first one."""
        if not self._line:
            return None
        partition = self._line.popleft()
        self._noted.remove(partition)
        return partition
