"""Long work for one answer, in steps: everybody else has a turn between them.

Owns: how long a step is. Must not touch: what is worked on. It may have changed when the next step begins: no
loop runs over a dict itself, and what is looked at is there, or looked for anew.
"""

import asyncio
from collections.abc import Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

STEP = 0.005  # seconds: figures over 100,000 partitions take one or two, and nobody may wait that long


class Stepwise:
    """One request's steps."""

    def __init__(self) -> None:
        self._until = perf_counter() + STEP

    async def between(self) -> None:
        """To be called between two things in a loop: this step ends here if it was long enough."""
        if perf_counter() >= self._until:
            await asyncio.sleep(0)
            self._until = perf_counter() + STEP

    async def run(self, steps: Generator[None, None, T]) -> T:
        """What the steps come to."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if perf_counter() >= self._until:
                await self.between()
