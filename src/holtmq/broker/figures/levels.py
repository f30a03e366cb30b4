"""Recent levels, such as queue lengths: one per second for a minute, one per minute for three hours.

Owns: the fixed-size rings. Must not touch: clocks (the second is an argument), what is measured. A level is
recorded when it may have changed, and counts until the next one: about 2 KiB for two series.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from holtmq.broker.figures.rings import MINUTES, RATE_SECONDS, SECONDS

_MOST: Final = 0xFFFFFFFF


class Levels:
    """Recent values of several series."""

    __slots__ = ("_minute", "_minutes", "_now", "_second", "_seconds", "_series")

    def __init__(self, levels: Sequence[int], second: int) -> None:
        self._series = len(levels)
        self._now = array("I", [min(level, _MOST) for level in levels])
        self._second = second
        self._minute = second // 60
        self._seconds = array("I", bytes(4 * self._series * SECONDS))
        self._minutes = array("I", bytes(4 * self._series * MINUTES))
        self._store()

    def record(self, second: int, levels: Sequence[int]) -> None:
        """The levels at ``second``; they stay until the next call."""
        self._advance(second)
        self._now = array("I", [min(level, _MOST) for level in levels])
        self._store()

    def history(self, second: int, age: int, step: int) -> list[tuple[int, tuple[int, ...]]]:
        """(second, levels) every ``step`` seconds for the last ``age`` seconds, the newest first."""
        self._advance(second)
        if age < SECONDS:
            slots, size, last, unit = self._seconds, SECONDS, self._second, 1
        else:
            slots, size, last, unit = self._minutes, MINUTES, self._minute, 60
        found: list[tuple[int, tuple[int, ...]]] = []
        stride = max(1, -(-step // unit))
        for back in range(0, min(age // unit, size - 1) + 1, stride):
            at = (last - back) % size * self._series
            found.append(((last - back) * unit, tuple(slots[at : at + self._series])))
        return found

    def rates(self, second: int) -> list[float]:
        """The change per second over the last seconds."""
        now, before = self.history(second, RATE_SECONDS, RATE_SECONDS)
        return [(level - earlier) / RATE_SECONDS for level, earlier in zip(now[1], before[1], strict=True)]

    def _advance(self, second: int) -> None:
        minute = second // 60
        for step in range(max(self._second + 1, second - SECONDS + 1), second + 1):
            at = step % SECONDS * self._series
            self._seconds[at : at + self._series] = self._now
        for step in range(max(self._minute + 1, minute - MINUTES + 1), minute + 1):
            at = step % MINUTES * self._series
            self._minutes[at : at + self._series] = self._now
        self._second = max(self._second, second)
        self._minute = max(self._minute, minute)

    def _store(self) -> None:
        at = self._second % SECONDS * self._series
        self._seconds[at : at + self._series] = self._now
        at = self._minute % MINUTES * self._series
        self._minutes[at : at + self._series] = self._now
