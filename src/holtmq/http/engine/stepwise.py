"""Long work for one answer, in steps: other requests run between them.

Owns: how long a step is. Must not touch: the data. It may change between two steps: callers must not iterate
over a live dict, and must look entries up again after each step.
"""

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

STEP = 0.003  # seconds: statistics over 100,000 partitions take 1-2 s, too long for other requests to wait


class Stepwise:
    """The steps of one request."""

    def __init__(self) -> None:
        self._until = perf_counter() + STEP

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
