"""Changes that affect very many objects, made in steps so that other work can run in between.

Owns: the changes in progress, and how much of each is done at once. Must not touch: what they change;
clocks: the broker's timers call the next step.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

STEP: Final = 2_000  # simple items (such as removed bindings) per step: about 5 ms
_FREED: Final = 2_000  # consumers, of which one may be made of ten objects


class LongChanges:
    """Iterators that do a little work per item; the oldest runs first."""

    __slots__ = ("_planned", "_waiting", "later")

    def __init__(self) -> None:
        self._waiting: deque[tuple[Iterator[object], int]] = deque()
        self._planned = False
        self.later: Callable[[Callable[[], None]], object] | None = None  # calls back soon, never at once

    def __len__(self) -> int:
        """How many changes are in progress."""
        return len(self._waiting)

    def add(self, change: Iterator[object], step: int = STEP) -> None:
        """Add a change and run its first step: a short change is complete when this returns."""
        if _advance(change, step):
            self._waiting.append((change, step))
            self._plan()

    def step(self) -> None:
        """Run one step of the oldest change."""
        self._planned = False
        try:
            if self._waiting and not _advance(*self._waiting[0]):
                self._waiting.popleft()
        finally:
            if self._waiting:  # an error in one change must not stop the others
                self._plan()

    def then(self, action: Callable[[], None]) -> None:
        """Run an action after the changes that are in progress; at once if there are none."""
        if self._waiting:
            self._waiting.append((_once(action), 1))
        else:
            action()

    def free(self, objects: list[Any]) -> None:
        """Drop these, of which the caller keeps none: to free very many at once takes long."""
        if len(objects) > _FREED:
            self.add(_dropping(objects), step=1)

    def complete(self) -> None:
        """Run what is left of all changes: the node stops."""
        while self._waiting:
            self.step()

    def abandon(self) -> None:
        """Drop all changes: what they change is being discarded."""
        self._waiting.clear()

    def _plan(self) -> None:
        if not self._planned and self.later is not None:
            self._planned = True
            self.later(self.step)


def _once(action: Callable[[], None]) -> Iterator[None]:
    action()
    yield from ()


def _dropping(objects: list[Any]) -> Iterator[None]:
    while objects:
        del objects[-_FREED:]
        yield


def _advance(change: Iterator[object], step: int) -> bool:
    """Run one step; return whether there may be more to do."""
    return sum(1 for _ in islice(change, step)) == step
