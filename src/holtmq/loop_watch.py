"""Measures how late the event loop is: a timer that says by how much it was missed.

Owns: the timer and the durations. Must not touch: anything that runs on the loop.
A stall shorter than the interval is seen only if the timer was due in it; a longer one always.
"""

import asyncio
from typing import Final

from holtmq.durations import Durations

_INTERVAL: Final = 0.1


class LoopWatch:
    """One timer, again and again until ``stop``."""

    def __init__(self) -> None:
        self.delay = Durations()
        self._handle: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to measure."""
        self._plan(loop)

    def stop(self) -> None:
        """End it."""
        if self._handle is not None:
            self._handle.cancel()

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = loop.call_later(_INTERVAL, self._due, loop, loop.time() + _INTERVAL)

    def _due(self, loop: asyncio.AbstractEventLoop, planned: float) -> None:
        self.delay.add(max(0.0, loop.time() - planned))
        self._plan(loop)
