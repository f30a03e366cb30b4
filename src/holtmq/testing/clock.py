"""A virtual clock that stands still until a test advances it.

Owns: the current time of one broker. Must not touch: the broker; its owner says how a step is made.

Time is kept in whole milliseconds, the broker's own resolution.
"""

import time
from collections.abc import Callable
from typing import Final

# Added to every reading. A millisecond divided by 1000 and multiplied again may be slightly too small and
# truncate to the millisecond before. A power of two, so that sums of whole seconds stay exact.
ABOVE: Final = 2.0**-13


class VirtualClock:
    """Frozen at the moment it is created (or at ``start``, a Unix time)."""

    def __init__(self, start: float | None = None) -> None:
        self._ms = int(time.time() if start is None else start) * 1000
        self._drive: Callable[[int], None] | None = None

    def __call__(self) -> float:
        return self._ms / 1000 + ABOVE

    @property
    def now(self) -> float:
        """The current Unix time."""
        return self._ms / 1000

    @property
    def now_ms(self) -> int:
        """The current Unix time in milliseconds."""
        return self._ms

    def advance(
        self,
        seconds: float = 0,
        *,
        milliseconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> None:
        """Advance, and return when the broker has done everything that became due, in order.

        What clients sent before the call is processed first, at the old time.
        """
        step_ms = round((seconds + 60 * minutes + 3600 * hours + 86_400 * days) * 1000 + milliseconds)
        if step_ms < 0:
            raise ValueError("time does not go back")
        target = self._ms + step_ms
        if self._drive is None:  # the broker is not running: it sees the new time when it starts
            self._ms = target
        else:
            self._drive(target)

    def attach(self, drive: Callable[[int], None] | None) -> None:
        """For the broker: ``drive`` takes it to a time, calling ``move_to`` on the way."""
        self._drive = drive

    def move_to(self, ms: int) -> None:
        """For the broker: set the time. It never goes back."""
        self._ms = max(self._ms, ms)


class RealClock:
    """The wall clock, for ``TestBroker(clock="real")``: time passes only by waiting."""

    def __call__(self) -> float:
        return time.time()

    @property
    def now(self) -> float:
        """The current Unix time."""
        return time.time()

    def advance(self, *args: float, **units: float) -> None:
        """Refuse: a test cannot move the wall clock."""
        raise TypeError('this broker runs on the real clock; leave clock="real" away to move time by hand')
