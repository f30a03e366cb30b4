"""Time that stands still until a test moves it.

Owns: the present moment of one broker. Must not touch: the broker; whoever runs it says how a step is taken.

Time is kept in whole milliseconds, the broker's own grain.
"""

import time
from collections.abc import Callable
from typing import Final

# Added to every reading. A millisecond divided by 1000 and multiplied again may come out a hair below itself,
# and truncate to the millisecond before. A power of two, so that sums of whole seconds stay exact.
ABOVE: Final = 2.0**-13


class VirtualClock:
    """Frozen, from the moment it is made (or from ``start``, a Unix time)."""

    def __init__(self, start: float | None = None) -> None:
        self._ms = int(time.time() if start is None else start) * 1000
        self._drive: Callable[[int], None] | None = None

    def __call__(self) -> float:
        return self._ms / 1000 + ABOVE

    @property
    def now(self) -> float:
        """The present moment, as a Unix time."""
        return self._ms / 1000

    @property
    def now_ms(self) -> int:
        """The same in milliseconds."""
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
        """Move on, and return when the broker has done everything that fell due on the way, in order.

        What clients had sent before the call is taken in first, at the old time.
        """
        step_ms = round((seconds + 60 * minutes + 3600 * hours + 86_400 * days) * 1000 + milliseconds)
        if step_ms < 0:
            raise ValueError("time does not go back")
        target = self._ms + step_ms
        if self._drive is None:  # the broker is not running: it will find itself later
            self._ms = target
        else:
            self._drive(target)

    def attach(self, drive: Callable[[int], None] | None) -> None:
        """For the broker: ``drive`` takes it to a moment, calling ``move_to`` as it goes."""
        self._drive = drive

    def move_to(self, ms: int) -> None:
        """For the broker: it is this late now. Never earlier than before."""
        self._ms = max(self._ms, ms)


class RealClock:
    """The wall clock, for ``TestBroker(clock="real")``: here only waiting makes time pass."""

    def __call__(self) -> float:
        return time.time()

    @property
    def now(self) -> float:
        """The present moment, as a Unix time."""
        return time.time()

    def advance(self, *args: float, **units: float) -> None:
        """Refuse: nobody can move this one."""
        raise TypeError('this broker runs on the real clock; leave clock="real" away to move time by hand')
