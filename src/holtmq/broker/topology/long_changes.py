"""Changes that concern very many things, made in steps, so that everything else has its turn meanwhile.

Owns: the changes that are under way, and how much of each is done at once. Must not touch: what they change;
clocks: the broker's timers say when the next step comes.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

STEP: Final = 2_000  # simple things (bindings that go) done at once: about 5 ms


class LongChanges:
    """Iterators that do a little with each item, oldest first."""

    __slots__ = ("_planned", "_waiting", "later")

    def __init__(self) -> None:
        self._waiting: deque[tuple[Iterator[object], int]] = deque()
        self._planned = False
        self.later: Callable[[Callable[[], None]], object] | None = None  # calls back soon, not now

    def __len__(self) -> int:
        """How many changes are under way."""
        return len(self._waiting)

    def add(self, change: Iterator[object], step: int = STEP) -> None:
        """One more. The first step is done at once: what is short is complete when this returns."""
        if _advance(change, step):
            self._waiting.append((change, step))
            self._plan()

    def step(self) -> None:
        """Go on with the oldest."""
        self._planned = False
        if self._waiting and not _advance(*self._waiting[0]):
            self._waiting.popleft()
        if self._waiting:
            self._plan()

    def _plan(self) -> None:
        if not self._planned and self.later is not None:
            self._planned = True
            self.later(self.step)


def _advance(change: Iterator[object], step: int) -> bool:
    """Whether there may be more to do."""
    return sum(1 for _ in islice(change, step)) == step
