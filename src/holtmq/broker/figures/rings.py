"""Recent rates: counts per second for a minute, per minute for three hours.

Owns: the fixed-size rings and the rates derived from them. Must not touch: clocks (the second is an
argument), what is counted. A ring always has the same size: about 3 KiB for three series, 1 KiB for a level.
"""

from array import array
from collections.abc import Sequence
from typing import Final

SECONDS: Final = 60
MINUTES: Final = 180
RATE_SECONDS: Final = 5  # a rate is the mean over this many complete seconds
_MOST: Final = 0xFFFFFFFF


class Ring:
    """Recent counts of several series that only go up."""

    __slots__ = ("_last", "_minute", "_minutes", "_second", "_seconds", "_series", "counted_at")

    def __init__(self, totals: Sequence[int], second: int) -> None:
        """``totals`` are the current values: only increases from there are counted."""
        self._series = len(totals)
        self._last = list(totals)
        self.counted_at = second  # the last second with an increase
        self._second = second
        self._minute = second // 60
        self._seconds = array("I", bytes(4 * self._series * SECONDS))
        self._minutes = array("I", bytes(4 * self._series * MINUTES))

    def record(self, second: int, totals: Sequence[int]) -> None:
        """Add the increase since the last call to the count of ``second``."""
        self._advance(second)
        at = self._second % SECONDS * self._series
        minute_at = self._minute % MINUTES * self._series
        for series, total in enumerate(totals):
            added = min(max(total - self._last[series], 0), _MOST - self._minutes[minute_at + series])
            if added:
                self.counted_at = second
                self._seconds[at + series] += added
                self._minutes[minute_at + series] += added
            self._last[series] = total

    def rates(self, second: int) -> list[float]:
        """Rates per second, over the last complete seconds before ``second``."""
        return [self.rate(second, series) for series in range(self._series)]

    def rate(self, second: int, series: int) -> float:
        """The rate of one series."""
        if second - self.counted_at > RATE_SECONDS:  # most queues of a large broker
            return 0.0
        self._advance(second)
        width, places = self._series, range(self._second - RATE_SECONDS, self._second)
        return sum([self._seconds[at % SECONDS * width + series] for at in places]) / RATE_SECONDS

    def by_second(self, second: int) -> list[list[int]]:
        """Counts per series for the last minute, oldest first, without the current second."""
        self._advance(second)
        return self._read(self._seconds, SECONDS, self._second)

    def by_minute(self, second: int) -> list[list[int]]:
        """Counts per series for the last three hours, oldest first, the current minute last."""
        self._advance(second)
        return self._read(self._minutes, MINUTES, self._minute + 1)

    def recent_minutes(self, second: int, count: int) -> list[tuple[int, ...]]:
        """The counts of the last ``count`` complete minutes, oldest first."""
        self._advance(second)
        places = [(self._minute - back) % MINUTES * self._series for back in range(count, 0, -1)]
        return [tuple(self._minutes[at : at + self._series]) for at in places]

    def history(self, second: int, age: int, step: int) -> list[tuple[int, tuple[int, ...]]]:
        """(second, totals) every ``step`` seconds for the last ``age`` seconds, the newest first."""
        self._advance(second)
        if age < SECONDS:
            slots, size, last, unit = self._seconds, SECONDS, self._second, 1
        else:
            slots, size, last, unit = self._minutes, MINUTES, self._minute, 60
        stride = max(1, -(-step // unit))
        totals = list(self._last)
        found = [(self._second, tuple(totals))]
        for back in range(1, min(age // unit, size - 1) + 1):
            at = (last - back + 1) % size * self._series
            totals = [total - slots[at + series] for series, total in enumerate(totals)]
            if not back % stride:
                found.append(((last - back + 1) * unit - 1, tuple(totals)))
        return found

    def is_idle(self, second: int) -> bool:
        """Whether nothing was counted in the time that the ring covers."""
        self._advance(second)
        return not any(self._minutes)

    def _read(self, slots: "array[int]", size: int, end: int) -> list[list[int]]:
        width, stop = self._series, end % size
        start = (end + 1) % size if slots is self._seconds else stop  # the current second is left out
        series = range(width)
        if start < stop:
            return [slots[start * width + one : stop * width : width].tolist() for one in series]
        return [[*slots[start * width + one :: width], *slots[one : stop * width : width]] for one in series]

    def _advance(self, second: int) -> None:
        if second > self._second:
            self._clear(self._seconds, SECONDS, self._second, second)
            self._second = second
        minute = second // 60
        if minute > self._minute:
            self._clear(self._minutes, MINUTES, self._minute, minute)
            self._minute = minute

    def _clear(self, slots: "array[int]", size: int, last: int, now: int) -> None:
        width = self._series
        if now - last >= size:
            slots[:] = array("I", bytes(4 * width * size))
            return
        first, end = (last + 1) % size * width, (now % size + 1) * width
        if first < end:
            slots[first:end] = array("I", bytes(4 * (end - first)))
        else:  # around the end of the ring
            slots[first:] = array("I", bytes(4 * (width * size - first)))
            slots[:end] = array("I", bytes(4 * end))


class LevelRing:
    """Recent values of a level, such as a queue's depth: at the end of each second and of each minute.

    A slot without a reading has the level of the slot before it: the level is recorded when it changes.
    """

    __slots__ = ("_changed_at", "_level", "_minute", "_minutes", "_second", "_seconds")

    def __init__(self, level: int, second: int) -> None:
        self._level = level
        self._changed_at = second - SECONDS
        self._second = second
        self._minute = second // 60
        self._seconds = array("I", [min(level, _MOST)]) * SECONDS
        self._minutes = array("I", [min(level, _MOST)]) * MINUTES

    def record(self, second: int, level: int) -> None:
        """Set the level from ``second`` on."""
        self._advance(second)
        if level != self._level:
            self._level = level
            self._changed_at = second
        self._seconds[self._second % SECONDS] = min(level, _MOST)
        self._minutes[self._minute % MINUTES] = min(level, _MOST)

    def by_second(self, second: int) -> list[int]:
        """The levels of the last minute, oldest first."""
        self._advance(second)
        at = self._second % SECONDS + 1
        return [*self._seconds[at:], *self._seconds[:at]]

    def history(self, second: int, age: int, step: int) -> list[tuple[int, int]]:
        """(second, level) every ``step`` seconds for the last ``age`` seconds, the newest first."""
        if age < SECONDS:
            levels, last, unit = self.by_second(second), self._second, 1
        else:
            levels, last, unit = self.by_minute(second), self._minute, 60
        stride = max(1, -(-step // unit))
        backs = range(0, min(age // unit, len(levels) - 1) + 1, stride)
        return [((last - back) * unit, levels[-1 - back]) for back in backs]

    def rate(self, second: int) -> float:
        """The change per second over the last seconds."""
        if second - self._changed_at > RATE_SECONDS:  # most queues of a large broker
            return 0.0
        self._advance(second)
        now, before = self._second % SECONDS, (self._second - RATE_SECONDS) % SECONDS
        return (self._seconds[now] - self._seconds[before]) / RATE_SECONDS

    def by_minute(self, second: int) -> list[int]:
        """The levels of the last three hours, oldest first."""
        self._advance(second)
        at = self._minute % MINUTES + 1
        return [*self._minutes[at:], *self._minutes[:at]]

    def _advance(self, second: int) -> None:
        level = min(self._level, _MOST)
        if second > self._second:
            for step in range(max(self._second + 1, second - SECONDS + 1), second + 1):
                self._seconds[step % SECONDS] = level
            self._second = second
        minute = second // 60
        if minute > self._minute:
            for step in range(max(self._minute + 1, minute - MINUTES + 1), minute + 1):
                self._minutes[step % MINUTES] = level
            self._minute = minute
