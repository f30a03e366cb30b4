"""The positions that a checkpoint's state still refers to: what compaction must keep.

Owns: sorting them, and the queries of compaction. Binary search in an unsorted array misses positions, and
compaction deletes what it misses. So the arrays, which callers may pass unsorted, are sorted here, and the
code that deletes sees only this class. Must not touch: files, segments.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice

from .interface import JournalError


class WrongPosition(JournalError):
    """The caller named a position that cannot be one of its records."""


class LivePositions:
    """Sorted arrays of positions; a position may be in several of them."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Iterable[array[int]], end: int) -> None:
        """``end``: WrongPosition if any position is not below it."""
        self._arrays = [rising(positions) for positions in arrays if positions]
        highest = max((positions[-1] for positions in self._arrays), default=-1)
        if highest >= end:
            raise WrongPosition(f"position {highest} is named as live, and the log ends at {end}")

    def joined(self, other: LivePositions) -> LivePositions:
        """The positions of both."""
        both = LivePositions((), 0)
        both._arrays = [*self._arrays, *other._arrays]
        return both

    def __contains__(self, position: int) -> bool:
        for positions in self._arrays:
            at = bisect_left(positions, position)
            if at < len(positions) and positions[at] == position:
                return True
        return False

    def any_between(self, first: int, stop: int) -> bool:
        """Whether any position is in [first, stop)."""
        for positions in self._arrays:
            at = bisect_left(positions, first)
            if at < len(positions) and positions[at] < stop:
                return True
        return False

    def count_between(self, first: int, stop: int) -> int:
        """How many positions are in [first, stop); one that is in several arrays counts in each."""
        return sum(end - start for _, start, end in self.slices(first, stop))

    def slices(self, first: int, stop: int) -> Iterator[tuple[array[int], int, int]]:
        """For each array with positions in [first, stop): the array, and the range of their indexes."""
        for positions in self._arrays:
            start, end = bisect_left(positions, first), bisect_left(positions, stop)
            if start < end:
                yield positions, start, end

    def between(self, first: int, stop: int) -> Iterator[int]:
        """The positions in [first, stop), ascending, without duplicates."""
        last = -1
        for position in merge(*(islice(*part) for part in self.slices(first, stop))):
            if position != last:
                yield position
                last = position


def times_in(position: int, parts: Iterable[tuple[array[int], int, int]]) -> int:
    """In how many of these parts of arrays a position is; at least 1."""
    found = 0
    for positions, start, end in parts:
        at = bisect_left(positions, position, start, end)
        found += at < end and positions[at] == position
    return max(found, 1)


def rising(positions: array[int]) -> array[int]:
    """The positions sorted; the same array if it is sorted already. The check costs about 50 ns each."""
    ordered = sorted(positions)
    return positions if positions.tolist() == ordered else array("Q", ordered)


def live_bases(bases: Sequence[int], end: int, live: LivePositions) -> list[int]:
    """The bases of the segments that hold a live position; the last segment ends at ``end``."""
    return [
        base
        for base, stop in zip(bases, [*bases[1:], end], strict=True)
        if base < stop and live.any_between(base, stop)
    ]
