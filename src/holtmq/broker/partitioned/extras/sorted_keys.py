"""A sorted set whose changes cost the same with ten entries and with a million.

Owns: the order of its entries. A sorted list would move half of its entries at each change; a heap keeps
outdated entries until they come to its front, or has to be rebuilt at once. Must not touch: what the entries
stand for.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T", str, tuple[int, str, str])

_MOST: Final = 1_000  # entries of a run; a fuller one is split


class SortedKeys(Generic[T]):
    """Entries in runs: each run is sorted, and everything in it comes before the next run."""

    __slots__ = ("_lasts", "_runs", "_size")

    def __init__(self) -> None:
        self._runs: list[list[T]] = []
        self._lasts: list[T] = []  # the last entry of each run
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, entry: T) -> None:
        """Add an entry; nothing changes if it is here."""
        runs, lasts = self._runs, self._lasts
        if not runs:
            runs.append([entry])
            lasts.append(entry)
            self._size = 1
            return
        at = min(bisect_left(lasts, entry), len(runs) - 1)
        run = runs[at]
        if entry > run[-1]:
            run.append(entry)
            lasts[at] = entry
        else:
            place = bisect_left(run, entry)
            if run[place] == entry:
                return
            run.insert(place, entry)
        self._size += 1
        if len(run) > _MOST:
            # The second half stays large if entries arrive in order, so that the runs become full.
            half = _MOST - _MOST // 8 if entry is run[-1] else _MOST // 2
            runs[at : at + 1] = [run[:half], run[half:]]
            lasts.insert(at, run[half - 1])

    def discard(self, entry: T) -> None:
        """Remove an entry, if it is here."""
        at = bisect_left(self._lasts, entry)
        if at == len(self._runs):
            return
        run = self._runs[at]
        place = bisect_left(run, entry)
        if run[place] != entry:
            return
        del run[place]
        self._size -= 1
        if not run:
            del self._runs[at], self._lasts[at]
        else:
            self._lasts[at] = run[-1]

    @property
    def first(self) -> T | None:
        """The smallest entry."""
        return self._runs[0][0] if self._runs else None

    def starting(self, entry: T) -> Iterator[T]:
        """The entries from this one on, in order. The set must not change meanwhile."""
        at = bisect_left(self._lasts, entry)
        if at < len(self._runs):
            run = self._runs[at]
            yield from run[bisect_left(run, entry) :]
            for run in self._runs[at + 1 :]:
                yield from run

    def behind(self, entry: T) -> Iterator[T]:
        """The entries after this one, in order. The set must not change meanwhile."""
        at = bisect_right(self._lasts, entry)
        if at < len(self._runs):
            run = self._runs[at]
            yield from run[bisect_right(run, entry) :]
            for run in self._runs[at + 1 :]:
                yield from run
