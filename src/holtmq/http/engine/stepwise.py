"""Long work for one answer, in steps: other requests run between them.

Owns: how long a step is. Must not touch: the data. It may change between two steps: callers must not iterate
over a live dict, and must look entries up again after each step.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Generator, Iterable
from random import sample
from time import perf_counter
from typing import Final, TypeVar

T = TypeVar("T")

STEP = 0.003  # seconds: statistics over 100,000 partitions take 1-2 s, too long for other requests to wait

_SORTED_AT_ONCE: Final = 2_000  # names: about 1 ms


class Stepwise:
    """The steps of one request."""

    def __init__(self) -> None:
        self._until = perf_counter() + STEP

    @property
    def is_due(self) -> bool:
        """Whether the step was long enough."""
        return perf_counter() >= self._until

    async def between(self) -> None:
        """Call this between iterations of a loop: it yields to other tasks if the step was long enough."""
        if perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = perf_counter() + STEP

    async def rest(self) -> None:
        """Yield now, before work that cannot be divided."""
        await asyncio.sleep(0)
        self._until = perf_counter() + STEP

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Run a generator that yields between steps; return its result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if perf_counter() >= self._until:
                await self.between()


async def in_order(names: Iterable[str]) -> AsyncGenerator[list[str], None]:
    """Names in sorted parts, each after the one before it. Those that exist when the iteration begins."""
    left = list(names)
    if len(left) <= _SORTED_AT_ONCE:
        yield sorted(left)
        return
    stepwise = Stepwise()
    # Random ones: names that were made one after the other may repeat a pattern.
    borders = sorted(sample(left, len(left) * 4 // _SORTED_AT_ONCE))[::4]
    parts: list[list[str]] = [[] for _ in range(len(borders) + 1)]
    for start in range(0, len(left), _SORTED_AT_ONCE):
        for name in left[start : start + _SORTED_AT_ONCE]:
            parts[bisect_right(borders, name)].append(name)
        await stepwise.between()
    for part in parts:
        part.sort()
        yield part
        await stepwise.between()
