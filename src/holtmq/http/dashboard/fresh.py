"""A value that costs much to build, shared by all requests for a short time.

Owns: how old it may be, and that only one request builds it. Must not touch: what is built. A value that
takes long to build is kept longer, so that open pages cost the broker about a tenth of its time at most.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_KEPT_PER_BUILD: Final = 10  # times as long as the build took
_KEPT_MOST: Final = 10.0  # seconds


class Fresh(Generic[T]):
    """The result of ``build``, at most ``seconds`` old by the node's clock and by the machine's, or older if
    the build takes long."""

    __slots__ = ("_build", "_built", "_clock", "_kept", "_made", "_seconds", "_value")

    def __init__(
        self, build: Callable[[float], Awaitable[T]], clock: Callable[[], float], seconds: float
    ) -> None:
        self._build = build  # gets the node's time
        self._clock = clock
        self._seconds = self._kept = seconds
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
        return 0 <= now - self._made[0] < self._kept and real - self._made[1] < self._kept

    async def _make(self) -> None:
        built = self._built = asyncio.Event()
        try:
            await asyncio.sleep(0)  # the steps of the build come in rounds of their own
            began = perf_counter()
            self._value = await self._build(self._clock())
            took = perf_counter() - began
            self._kept = max(self._seconds, min(_KEPT_PER_BUILD * took, _KEPT_MOST))
            self._made = (self._clock(), perf_counter())
        finally:
            self._built = None
            built.set()
