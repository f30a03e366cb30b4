"""What a request is measured with: a broker with connections, and the meter.

Owns: both. Must not touch: the broker's insides beyond its loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import httpx
from pika.adapters.blocking_connection import BlockingChannel

from holtmq.node import Node
from holtmq.testing import TestBroker

_IDLE: Final = 25e-6  # seconds: a round with the meter alone takes about 5 µs


class LoopMeter:
    """Notes the CPU time of each round of the running loop. Rounds with nothing but the meter itself are not
    in the total: a request that waits for its client costs nothing."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._running = False
        self._last = 0.0
        self.worst = self.total = 0.0  # seconds

    def start(self) -> None:
        """Begin; on the loop's thread."""
        self._running = True
        self.worst = self.total = 0.0
        self._last = self._clock()
        asyncio.get_running_loop().call_soon(self._beat)

    def stop(self) -> None:
        """End; on the loop's thread."""
        self._beat()
        self._running = False

    def _beat(self) -> None:
        if self._running:
            now = self._clock()
            spent, self._last = now - self._last, now
            self.worst = max(self.worst, spent)
            if spent > _IDLE:
                self.total += spent
            asyncio.get_running_loop().call_soon(self._beat)


class Meter(LoopMeter):
    """The same for a broker in a thread of this process."""

    def __init__(self, broker: TestBroker, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._broker = broker

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure what happens meanwhile."""
        self._broker.call(lambda _: self.start())
        yield
        self._broker.call(lambda _: self.stop())


@dataclass
class Site:
    """A broker with the connections of one request."""

    broker: TestBroker
    channel: BlockingChannel
    http: httpx.Client

    def load_definitions(self, document: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        self.http.post("/api/definitions", content=document, headers=headers).raise_for_status()

    def get(self, path: str) -> None:
        self.http.get(path).raise_for_status()

    def topology(self, work: Callable[[Node], object]) -> None:
        """Set the stage from inside: a hundred thousand requests would take minutes."""
        self.broker.call(work)


Prepare = Callable[[Site, int], Callable[[], object]]
