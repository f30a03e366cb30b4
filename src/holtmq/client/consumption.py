"""``consume(handler)``: what it returns, and how it is started, watched and stopped.

Owns: the life of one set of workers. Must not touch: what workers do.
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
U = TypeVar("U")  # what a handler gets: a message under ``each``, else a list of them


class Home(Protocol):
    """Who stops what is running when it stops itself."""

    @property
    def api(self) -> Api: ...
    def register(self, running: "Stoppable") -> None: ...
    def unregister(self, running: "Stoppable") -> None: ...


class Stoppable(Protocol):
    async def stop(self, timeout: float | None = None) -> None: ...


class Running(Generic[D]):
    """Workers in the background, for either face."""

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
                return self.done  # ``stop`` ran out of patience; whoever waits here was not cancelled
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
        """Run after a handler that came back. What it leaves unsettled is acknowledged then."""
        self._hooks.succeeded = lambda unit: callback(self._unit(unit))
        return self

    def on_error(self, callback: Callable[[U, Exception], Awaitable[object]]) -> Self:
        """Run after a handler (or ``on_success``) that raised. What it leaves unsettled is nacked then."""
        self._hooks.failed = lambda unit, error: callback(self._unit(unit), error)
        return self

    def __await__(self) -> Generator[object, None, Consumed]:
        return self.run().__await__()

    async def run(self) -> Consumed:
        """Consume until a stop, ``limit`` or ``idle``; how much was done."""
        return await self.start().wait()

    def start(self) -> Self:
        """Consume in the background."""
        self._running.start()
        return self

    async def wait(self) -> Consumed:
        """Until it has ended by itself or by a stop. Cancelling this stops it at once."""
        return await self._running.wait()

    async def stop(self, timeout: float | None = None) -> None:
        """Pop no more, let handlers finish, give back what was not started.

        After ``timeout`` seconds handlers are cancelled, and their messages given back too. Errors of the
        consuming itself are left to ``wait``.
        """
        await self._running.stop(timeout)

    @property
    def done(self) -> Consumed:
        """What has been done so far."""
        return self._running.done

    def _unit(self, messages: Sequence[Message]) -> U:
        # The fluent words tie U to ``each``; the type checker cannot see that from here.
        return cast(U, messages[0] if self._each else messages)
