"""The positions that a checkpoint's state still refers to: what compaction must keep.

Owns: their order, and the questions compaction asks of them. The caller may hand them over in any order: a
search by halves in an array that does not rise misses positions, and what it misses is deleted. So the arrays
are put in order here, once, and no other form of them reaches the code that deletes.
Must not touch: files, segments.
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
    """Rising arrays of positions; a position may be in several of them."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Iterable[array[int]], end: int) -> None:
        """``end``: every position lies below it, or the whole is refused."""
        self._arrays = [rising(positions) for positions in arrays if positions]
        highest = max((positions[-1] for positions in self._arrays), default=-1)
        if highest >= end:
            raise WrongPosition(f"position {highest} is named as live, and the log ends at {end}")

    def joined(self, other: LivePositions) -> LivePositions:
        """Those of both."""
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
        """Whether one of them lies in [first, stop)."""
        for positions in self._arrays:
            at = bisect_left(positions, first)
            if at < len(positions) and positions[at] < stop:
                return True
        return False

    def slices(self, first: int, stop: int) -> Iterator[tuple[array[int], int, int]]:
        """Of each array that has some in [first, stop): the array, and from where to where they are."""
        for positions in self._arrays:
            start, end = bisect_left(positions, first), bisect_left(positions, stop)
            if start < end:
                yield positions, start, end

    def between(self, first: int, stop: int) -> Iterator[int]:
        """Those in [first, stop), rising, each once."""
        last = -1
        for position in merge(*(islice(*part) for part in self.slices(first, stop))):
            if position != last:
                yield position
                last = position


def rising(positions: array[int]) -> array[int]:
    """The same positions in order; the array itself if they are, which costs about 50 ns each to see."""
    ordered = sorted(positions)
    return positions if positions.tolist() == ordered else array("Q", ordered)


def live_bases(bases: Sequence[int], end: int, live: LivePositions) -> list[int]:
    """The segments that hold a live position, of those that begin at ``bases`` in a log up to ``end``."""
    return [
        base
        for base, stop in zip(bases, [*bases[1:], end], strict=True)
        if base < stop and live.any_between(base, stop)
    ]
