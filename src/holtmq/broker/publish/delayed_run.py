"""Delayed messages of one large transaction: everything but their positions is made ahead.

Owns: their timers, which are started at one moment. Must not touch: the messages that wait (``delays.py``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial

from holtmq.broker.timer_wheel import ActionTimer, TimerRun, TimerWheel


class DelayedRun:
    """Messages by their offsets in one record. While it has timers, it is in ``runs``."""

    __slots__ = ("_base", "_left", "_offsets", "_on_end", "_run", "_runs", "_timers", "_waiting")

    def __init__(
        self,
        timers: TimerWheel[Callable[[], object]],
        on_end: Callable[[int], object],
        runs: set[DelayedRun],
    ) -> None:
        self._run = TimerRun(timers)
        self._on_end = on_end  # called with the position of a message that is due
        self._runs = runs
        self._base = 0  # position of the record
        self._offsets = array("I")  # rising
        self._waiting: list[tuple[bool, int]] = []
        self._timers: list[ActionTimer | None] = []  # None: it has ended
        self._left = 0  # how many have not

    def __len__(self) -> int:
        """How many messages wait."""
        return self._left

    def add(self, offset: int, persistent: bool, due_ms: int) -> None:
        """Add a message."""
        ended = partial(self._ended, len(self._timers))
        self._offsets.append(offset)
        self._waiting.append((persistent, due_ms))
        self._timers.append(self._run.add(due_ms / 1000, ended))
        self._left += 1

    def start(self, base: int) -> Iterator[tuple[int, tuple[bool, int]]]:
        """The record was written at this position: start the timers.

        Returns the position of each message, and whether it is persistent and when it is due.
        """
        self._base = base
        waiting, self._waiting = self._waiting, []
        self._runs.add(self)
        self._run.start()
        return zip(map(base.__add__, self._offsets), waiting, strict=True)

    def _ended(self, place: int) -> None:
        self._forget(place)
        self._on_end(self._base + self._offsets[place])

    def stop(self, position: int) -> bool:
        """Stop the timer of a message, if it is one of these."""
        offset = position - self._base
        place = bisect_left(self._offsets, offset)
        if place == len(self._offsets) or self._offsets[place] != offset:
            return False
        timer = self._timers[place]
        if timer is not None:
            timer.cancel()
            self._forget(place)
        return True

    def _forget(self, place: int) -> None:
        self._timers[place] = None
        self._left -= 1
        if not self._left:
            self._runs.discard(self)
