"""Request-response connections, one request at a time each, on one thread with one selector.

Owns: the scheduling and the response times. Must not touch: the content of requests; HTTP is one of several
protocols that run on it.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable
from time import perf_counter, perf_counter_ns
from typing import Final, Generic, Protocol, TypeVar

from holtmq.load.errors import LoadError

_POLL_SECONDS: Final = 0.05
_TICK_SECONDS: Final = 0.001
_STALL_SECONDS: Final = 30.0

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Asked = TypeVar("Asked", contravariant=True)
Got = TypeVar("Got", covariant=True)
Heard = TypeVar("Heard", contravariant=True)
Next = TypeVar("Next", covariant=True)


class Wire(Protocol[Asked, Got]):
    """A connection with at most one request in flight."""

    def fileno(self) -> int: ...

    def send(self, request: Asked) -> None: ...

    def receive(self) -> Got | None:
        """Read available bytes; return the response once it is complete."""

    def close(self) -> None: ...


class Worker(Protocol[Next, Heard]):
    """Supplies the requests of a connection."""

    def next(self) -> Next | None:
        """The next request; None when none is allowed now, to be asked again later."""

    def take(self, answer: Heard, took_ns: int) -> Next | None:
        """Process a response; then as ``next``."""


class LoadConnection(Generic[Request, Answer]):
    """A connection and the worker that uses it."""

    __slots__ = ("_sent_at", "_wire", "_worker")

    def __init__(self, wire: Wire[Request, Answer], worker: Worker[Request, Answer]) -> None:
        self._wire = wire
        self._worker = worker
        self._sent_at = 0

    def fileno(self) -> int:
        return self._wire.fileno()

    def start(self) -> bool:
        """Send the next request; False when the worker has none now."""
        request = self._worker.next()
        if request is None:
            return False
        self._sent_at = perf_counter_ns()
        self._wire.send(request)
        return True

    def readable(self) -> bool | None:
        """Read. True: the next request was sent; False: there is none; None: still waiting."""
        answer = self._wire.receive()
        if answer is None:
            return None
        request = self._worker.take(answer, perf_counter_ns() - self._sent_at)
        if request is None:
            return False
        self._sent_at = perf_counter_ns()
        self._wire.send(request)
        return True

    def close(self) -> None:
        self._wire.close()


class AnyLoadConnection(Protocol):
    """A connection of any protocol."""

    def fileno(self) -> int: ...

    def start(self) -> bool: ...

    def readable(self) -> bool | None: ...

    def close(self) -> None: ...


class LoadEngine:
    """The connections and their selector."""

    def __init__(self, connections: Iterable[AnyLoadConnection]) -> None:
        self._connections = {connection.fileno(): connection for connection in connections}
        self._idle = list(self._connections.values())
        self._poll = select.epoll()
        self.answers = 0
        for number in self._connections:
            self._poll.register(number, select.EPOLLIN)

    def run(self, done: Callable[[], bool], until: float | None = None, *, paced: bool = False) -> None:
        """Run until ``done`` or until that time. Paced workers are polled every millisecond."""
        connections, poll = self._connections, self._poll.poll
        wait = _TICK_SECONDS if paced else _POLL_SECONDS
        heard = perf_counter()
        self._wake_idle()
        while not done():
            now = perf_counter()
            if until is not None and now >= until:
                return
            events = poll(wait if until is None else min(wait, until - now))
            if not events and not paced and now - heard > _STALL_SECONDS:
                raise LoadError(f"no answer for {_STALL_SECONDS:.0f} s")
            for number, _ in events:
                connection = connections[number]
                went_on = connection.readable()
                if went_on is not None:
                    self.answers += 1
                    heard = now
                    if not went_on:
                        self._idle.append(connection)
            if self._idle:
                self._wake_idle()

    def _wake_idle(self) -> None:
        self._idle = [connection for connection in self._idle if not connection.start()]

    def close(self) -> None:
        self._poll.close()
        for connection in self._connections.values():
            connection.close()
