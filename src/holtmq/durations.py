"""How long something took, many times: a histogram of fixed size.

Owns: the buckets and their counts. Must not touch: clocks; durations come in as seconds.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

# Half a microsecond of CPU to add one: used per commit and per timer, never per message.
BOUNDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)


class Durations:
    """Counts per bucket, their sum and the longest."""

    __slots__ = ("_counts", "longest", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds
        if seconds > self.longest:
            self.longest = seconds

    @property
    def count(self) -> int:
        """How many were added."""
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bucket's upper bound (the last is infinite), and how many durations were not above it."""
        return zip((*BOUNDS, float("inf")), accumulate(self._counts), strict=True)

    def quantile(self, share: float) -> float | None:
        """The upper bound of the bucket in which this share of all durations ends; None without any."""
        wanted = share * self.count
        if not wanted:
            return None
        return min(self.longest, next(bound for bound, below in self.cumulative() if below >= wanted))
