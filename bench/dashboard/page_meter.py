"""The CPU time of requests alone, apart from the messages that the broker handles meanwhile.

Owns: the meter in the measured process. Must not touch: what requests do. A request runs in two kinds of turn
of the loop: ``HttpConnection.data_received``, which reads it, and the steps of its task. Both are timed on
the loop's thread. Not in it: the loop's own writing to the client's socket after the turn.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Coroutine, Generator
from typing import Any

from holtmq.http.dashboard.fresh import Fresh
from holtmq.http.engine.engine import Engine
from holtmq.http.engine.protocol import HttpConnection


class PageMeter:
    """Times the turns of all requests. Made once in a process, before its first connection."""

    def __init__(self) -> None:
        self.total = self.longest = 0.0  # seconds
        self.collecting = 0.0  # of the total: the garbage collector, which counts the objects of all work
        self._tables: list[Fresh[Any]] = []  # what pages share
        self._began: float | None = None  # a turn of a request is running since
        self._collects_since = 0.0
        gc.callbacks.append(self._collected)
        self._time_requests()

    def start(self) -> None:
        """Begin, as if no page had been opened for a while: the next one builds the shared tables."""
        self.total = self.longest = self.collecting = 0.0
        for table in self._tables:
            table.expire()

    def begin(self) -> None:
        """A turn of a request begins."""
        self._began = time.thread_time()

    def end(self) -> None:
        """The turn ends."""
        assert self._began is not None
        spent = time.thread_time() - self._began
        self._began = None
        self.total += spent
        self.longest = max(self.longest, spent)

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collects_since = time.thread_time()
        elif self._began is not None:
            self.collecting += time.thread_time() - self._collects_since

    def _time_requests(self) -> None:
        meter, read, run, init = self, HttpConnection.data_received, Engine.run, Fresh.__init__

        def data_received(self: HttpConnection, data: bytes) -> None:
            meter.begin()
            read(self, data)
            meter.end()

        def run_timed(self: Engine, work: Coroutine[Any, Any, None], name: str) -> None:
            run(self, _TimedSteps(work, meter), name)

        def noted(self: Fresh[Any], *args: Any) -> None:
            init(self, *args)
            meter._tables.append(self)

        HttpConnection.data_received = data_received  # type: ignore[method-assign]
        Engine.run = run_timed  # type: ignore[method-assign]
        Fresh.__init__ = noted  # type: ignore[assignment,method-assign]


class _TimedSteps(Coroutine[Any, Any, None]):
    """A coroutine whose steps are timed."""

    def __init__(self, work: Coroutine[Any, Any, None], meter: PageMeter) -> None:
        self._work = work
        self._meter = meter

    def send(self, value: Any) -> Any:
        self._meter.begin()
        try:
            return self._work.send(value)
        finally:
            self._meter.end()

    def throw(self, *error: Any) -> Any:
        self._meter.begin()
        try:
            return self._work.throw(*error)
        finally:
            self._meter.end()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()
