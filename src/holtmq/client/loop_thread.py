"""An event loop in a thread of its own, for programs that have no loop.

Owns: the thread, and calls into its loop from any other thread. Must not touch: what runs on it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs until ``close``. Every call waits for its result."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._end: asyncio.Event
        self.loop: asyncio.AbstractEventLoop
        # Daemon: a program that did not close its client must still be able to exit.
        self._thread = threading.Thread(target=self._main, name="holt-client", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the loop; return its result or raise its exception. Ctrl-C cancels it there."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("the sync client cannot be called from its own event loop")
        if not self.alive:
            work.close()
            raise RuntimeError("this client is closed")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, work: Callable[[], object]) -> None:
        """Schedule a function on the loop; safe inside a signal handler."""
        self.loop.call_soon_threadsafe(work)

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._ready.set()
        await self._end.wait()
