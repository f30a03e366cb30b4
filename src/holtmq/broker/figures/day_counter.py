"""How many times something rare happened within the last day, and when that began.

Owns: one count per hour. Must not touch: clocks (the time is an argument), what is counted.
"""

from typing import Final

_HOURS: Final = 24
_HOUR_MS: Final = 3_600_000


class DayCounter:
    """Counts of the last 24 hours, the current one included."""

    __slots__ = ("_hours",)

    def __init__(self) -> None:
        self._hours: dict[int, tuple[int, int]] = {}  # hour -> (how many, the first of them in ms)

    def add(self, now_ms: int, more: int = 1) -> None:
        """Count one more, or several."""
        hour = now_ms // _HOUR_MS
        count, first = self._hours.get(hour, (0, now_ms))
        self._hours[hour] = (count + more, first)
        if len(self._hours) > _HOURS:
            self._forget(hour)

    def within_a_day(self, now_ms: int) -> tuple[int, int | None]:
        """How many, and when the first of them was, in milliseconds."""
        self._forget(now_ms // _HOUR_MS)
        found = self._hours.values()
        return sum(count for count, _ in found), min((first for _, first in found), default=None)

    def _forget(self, hour: int) -> None:
        self._hours = {at: found for at, found in self._hours.items() if at > hour - _HOURS}
