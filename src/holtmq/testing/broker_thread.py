"""The event loop of a test broker, in a thread of its own, and calls into it from any other thread.

Owns: the thread and the loop, from start to a stop that leaves neither behind.
Must not touch: what runs on it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Final, TypeVar

import uvloop

T = TypeVar("T")

CALL_TIMEOUT: Final = 120.0  # a busy machine is slow; an answer ends the wait at once


class BrokerThread:
    """Runs until ``close``. Every call waits for its result."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._stop: asyncio.Event
        # Daemon: a test that did not stop its broker must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def run(self, work: Callable[[], Coroutine[object, object, T]], timeout: float = CALL_TIMEOUT) -> T:
        """Run a coroutine on the loop; return its result or raise its exception."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("this call waits for the broker's own thread and cannot be made from it")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and join the thread; TimeoutError if something on the loop hangs."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CALL_TIMEOUT)
        if self._thread.is_alive():
            raise TimeoutError(f"the broker's thread did not end within {CALL_TIMEOUT:.0f} s")

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()
