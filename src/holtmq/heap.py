"""Makes the C library keep freed memory for the next large buffers, and return it when it is not needed.

Owns: the settings of the allocator and of the garbage collector, and how much freed memory stays with the
process. Must not touch: anything else. Without glibc it does nothing.
"""

import ctypes
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Final

log = logging.getLogger(__name__)

# For gc.set_threshold. Each object is looked at once in each generation, so small collections cost as much
# in all. One looks at up to 5,000 objects, of the middle generation at 10,000, a full one at 30,000 and what
# the one before it has left: 1, 4 and 17 ms if they are not in the processor's caches.
_COLLECT_AFTER: Final = (5_000, 1, 1)
_LONG: Final = 0.003  # seconds of CPU for a full collection

_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3
_MAPPED_FROM: Final = 32 << 20  # the most that glibc allows
_KEPT_MIN: Final = 64 << 20
_GROWN_BY: Final = 1 << 20  # at least; by default the heap grows by two bodies of 64 KiB at a time
_HELD_SAMPLES: Final = 30  # seconds before the memory of a peak is returned: backlogs come and go
_STEP: Final = 32 << 20  # returned at once: about 10 ms; all of 256 MiB took 90


def collect_in_portions() -> None:
    """Let each garbage collection look at little, however many objects there are, in this process.

    A collection of 1.4 million objects (100,000 queues) takes 0.4 s. So what a full one has looked at for
    long is not looked at again: no object of ours needs the collector when it is dropped.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    if _full_collections.seen not in gc.callbacks:
        gc.callbacks.append(_full_collections.seen)


class _FullCollections:
    """Freezes what is left after a long one."""

    _began = 0.0

    def seen(self, phase: str, info: dict[str, int]) -> None:
        """A collection begins or ends, in this thread."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = thread_time()
        elif thread_time() - self._began > _LONG:
            gc.freeze()


_full_collections: Final = _FullCollections()


@contextmanager
def lasting() -> Iterator[None]:
    """What is made meanwhile lasts: after ``collect_in_portions`` it is never looked at."""
    if _full_collections.seen not in gc.callbacks:
        yield
        return
    with uncollected():
        try:
            yield
        finally:
            gc.freeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection meanwhile: for code that makes very many objects and drops none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class FreedMemory:
    """Freed memory of this process.

    By default the allocator returns each large buffer to the system and maps a new one, page by page, for the
    next. With bodies of 64 KiB that was a quarter of the time per message (35 instead of 27 µs), and with a
    backlog of 256 MiB that grows and shrinks, another quarter.
    """

    def __init__(self, most: int, trim: Callable[[int], object] | None = None) -> None:
        self._peak = 0
        self._since_peak = 0  # samples
        self._trim = trim or _keep(max(most, _KEPT_MIN))

    def sample(self, used: int) -> None:
        """Return in steps what a peak has left; called once a second with the memory that queues use."""
        self._since_peak += 1
        if used >= self._peak - _STEP:
            self._peak = max(used, self._peak)
            self._since_peak = 0
        elif self._peak > _KEPT_MIN and self._since_peak > _HELD_SAMPLES:
            self._peak -= _STEP
            self.give_back(max(self._peak - used, _KEPT_MIN))

    def give_back(self, kept: int = 0) -> None:
        """Return freed memory to the system, but for ``kept`` bytes."""
        if self._trim is not None:
            self._trim(kept)


def _keep(most: int) -> Callable[[int], object] | None:
    """Let the allocator keep this many freed bytes; return its function to trim them."""
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (AttributeError, OSError):
        return None
    settings = (
        (_M_MMAP_THRESHOLD, _MAPPED_FROM),
        (_M_TRIM_THRESHOLD, min(most, 1 << 30)),
        (_M_TOP_PAD, _GROWN_BY),
    )
    if not all(mallopt(*setting) for setting in settings):
        log.debug("the allocator keeps its defaults")
    trim.argtypes = (ctypes.c_size_t,)
    return trim
