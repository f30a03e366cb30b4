"""A value that costs much to build, shared by all requests for a short time.

Owns: how old it may be, and that only one request builds it. Must not touch: what is built.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Generic, TypeVar

T = TypeVar("T")


class Fresh(Generic[T]):
    """The result of ``build``, at most ``seconds`` old by the node's clock and by the machine's."""

    __slots__ = ("_build", "_built", "_clock", "_made", "_seconds", "_value")

    def __init__(
        self, build: Callable[[float], Awaitable[T]], clock: Callable[[], float], seconds: float
    ) -> None:
        self._build = build  # gets the node's time
        self._clock = clock
        self._seconds = seconds
        self._made: tuple[float, float] | None = None  # both clocks when the build began
        self._value: T | None = None
        self._built: asyncio.Event | None = None  # set when the running build has ended

    def expire(self) -> None:
        """Build again at the next request."""
        self._made = None

    async def get(self) -> T:
        """The value; requests that come while it is built wait for that build."""
        while not self._is_fresh():
            if self._built is None:
                await self._make()
                break
            await self._built.wait()  # if that build was cancelled, this request builds
        value = self._value
        assert value is not None
        return value

    def _is_fresh(self) -> bool:
        if self._made is None:
            return False
        now, real = self._clock(), perf_counter()
        return 0 <= now - self._made[0] < self._seconds and real - self._made[1] < self._seconds

    async def _make(self) -> None:
        built = self._built = asyncio.Event()
        began = (self._clock(), perf_counter())
        try:
            self._value = await self._build(began[0])
            # From the end of the build on: a build that takes longer than ``seconds`` must not run endlessly.
            self._made = (self._clock(), perf_counter())
        finally:
            self._built = None
            built.set()
