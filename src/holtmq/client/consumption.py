"""``consume(handler)``: the object it returns, and how it is started, awaited and stopped.

Owns: the life cycle of one set of workers. Must not touch: what workers do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar, cast

from holtmq.client.api import Api
from holtmq.client.consuming import Consumed, Hooks, Workers
from holtmq.client.message import Message
from holtmq.client.options import QueueOptions
from holtmq.client.records import Delivery, Popped

if TYPE_CHECKING:
    from holtmq.client.client import Client

log = logging.getLogger(__name__)

D = TypeVar("D", bound=Delivery)
U = TypeVar("U")  # what a handler gets: a message with ``each``, else a list of them


class Home(Protocol):
    """The client that tracks running consumers and stops them when it closes."""

    @property
    def api(self) -> Api: ...
    def register(self, running: "Stoppable") -> None: ...
    def unregister(self, running: "Stoppable") -> None: ...


class Stoppable(Protocol):
    async def stop(self, timeout: float | None = None) -> None: ...


class Running(Generic[D]):
    """Workers in the background, for both APIs."""

    def __init__(
        self, home: Home, options: QueueOptions, adopt: Callable[[Popped], D], hooks: Hooks[D]
    ) -> None:
        self._home = home
        self._queue = options.pop.queue
        self._workers = Workers(home.api, options, adopt, hooks)
        self._task: asyncio.Task[Consumed] | None = None

    @property
    def done(self) -> Consumed:
        return self._workers.done

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._workers.run(), name="holt-consume")
            self._home.register(self)
            self._task.add_done_callback(self._ended)

    async def wait(self) -> Consumed:
        if self._task is None:
            raise RuntimeError("this consume has not been started")
        try:
            return await self._task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._task.cancelled() and not (current and current.cancelling()):
                return self.done  # ``stop`` timed out and cancelled the workers, not this caller
            raise

    async def stop(self, timeout: float | None = None) -> None:
        if self._task is None:
            return
        self._workers.stop()
        await asyncio.wait((self._task,), timeout=timeout)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _ended(self, task: asyncio.Task[Consumed]) -> None:
        self._home.unregister(self)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("consuming ended", extra={"queue": self._queue, "reason": str(error)})


class Consumption(Generic[U]):
    """``await`` it to consume until it ends, or ``start`` it in the background and ``stop`` it later."""

    def __init__(
        self, client: "Client", options: QueueOptions, handler: Callable[[U], Awaitable[object]]
    ) -> None:
        self._each = options.each
        self._hooks: Hooks[Message] = Hooks(lambda unit: handler(self._unit(unit)))
        self._running = Running(client, options, client.adopt, self._hooks)

    def on_success(self, callback: Callable[[U], Awaitable[object]]) -> Self:
        """Called after a handler that returned. Messages left unsettled are then acknowledged."""
        self._hooks.succeeded = lambda unit: callback(self._unit(unit))
        return self

    def on_error(self, callback: Callable[[U, Exception], Awaitable[object]]) -> Self:
        """Called after a handler (or ``on_success``) that raised. Messages left unsettled are then nacked."""
        self._hooks.failed = lambda unit, error: callback(self._unit(unit), error)
        return self

    def __await__(self) -> Generator[object, None, Consumed]:
        return self.run().__await__()

    async def run(self) -> Consumed:
        """Consume until a stop, ``limit`` or ``idle``; return the counts."""
        return await self.start().wait()

    def start(self) -> Self:
        """Consume in the background."""
        self._running.start()
        return self

    async def wait(self) -> Consumed:
        """Wait for the end. Cancelling this call stops the consumer at once."""
        return await self._running.wait()

    async def stop(self, timeout: float | None = None) -> None:
        """Pop no more, let handlers finish, release messages that were not started.

        After ``timeout`` seconds handlers are cancelled and their messages released. ``wait`` raises the
        errors of the consume loop, not this call.
        """
        await self._running.stop(timeout)

    @property
    def done(self) -> Consumed:
        """The counts so far."""
        return self._running.done

    def _unit(self, messages: Sequence[Message]) -> U:
        # The fluent methods tie U to ``each``; the type checker cannot see that from here.
        return cast(U, messages[0] if self._each else messages)
