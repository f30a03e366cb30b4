"""Counting values into ranges.

Owns: the ranges' form in answers. Must not touch: what the values mean.
"""

from bisect import bisect_right


class Histogram:
    """Counts by range. ``bounds`` rise; the first range is below the first bound, the last has no end."""

    __slots__ = ("bounds", "counts")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_right(self.bounds, value)] += 1


def spread(histogram: Histogram) -> list[dict[str, float | int | None]]:
    """The ranges in order; ``below`` None: no upper end."""
    ends = [*histogram.bounds, None]
    starts = [0.0, *histogram.bounds]
    return [
        {"from": start, "below": end, "count": count}
        for start, end, count in zip(starts, ends, histogram.counts, strict=True)
    ]
