"""The consume loop: pop, handle and settle until stopped.

Owns: the workers of one ``consume``. Contract: a message is settled after its handler, never before; after a
failure no further message of that partition is started, so order holds; a stop lets running handlers finish
and returns popped messages that were not started. Must not touch: how handlers run; the APIs wrap them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from holtmq.client.api import Api
from holtmq.client.errors import HungUp
from holtmq.client.http1 import HangUp
from holtmq.client.options import QueueOptions
from holtmq.client.records import Delivery, Popped, Status
from holtmq.client.renewing import kept_alive
from holtmq.client.settling import Settlement

D = TypeVar("D", bound=Delivery)
log = logging.getLogger(__name__)

_ERROR_MAX: Final = 4000  # characters of an error stored with a dead letter


@dataclass(slots=True)
class Consumed:
    """What a ``consume`` has done so far."""

    handled: int = 0  # messages whose handler returned
    failed: int = 0  # messages whose handler raised


@dataclass(slots=True)
class Hooks(Generic[D]):
    """The program's callbacks. With ``each``, ``handle`` gets one message at a time, else a whole pop."""

    handle: Callable[[Sequence[D]], Awaitable[object]]
    succeeded: Callable[[Sequence[D]], Awaitable[object]] | None = None
    failed: Callable[[Sequence[D], Exception], Awaitable[object]] | None = None


class Workers(Generic[D]):
    """The concurrent workers of one ``consume``."""

    def __init__(
        self, api: Api, options: QueueOptions, adopt: Callable[[Popped], D], hooks: Hooks[D]
    ) -> None:
        self._api = api
        self._options = options
        self._adopt = adopt
        self._hooks = hooks
        self._hang_up = HangUp()
        self._left = options.limit  # messages that may still be requested; None: unlimited
        self._asked = 0  # messages requested by pops in progress
        self._refund = asyncio.Event()
        self._busy = 0
        self._active_at = 0.0
        self.done = Consumed()

    @property
    def stopping(self) -> bool:
        return self._hang_up.asked.is_set()

    def stop(self) -> None:
        """Pop no more; finish the running handlers."""
        self._hang_up.ask()
        self._refund.set()

    async def run(self) -> Consumed:
        """Run until a stop, the limit, the idle time, or an error that a retry cannot fix."""
        self._active_at = asyncio.get_running_loop().time()
        workers = [
            asyncio.create_task(self._work(), name=f"holt-worker-{number}")
            for number in range(self._options.concurrency)
        ]
        try:
            finished, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            if any(task.exception() for task in finished):
                self.stop()  # the other workers finish their batches
            await asyncio.gather(*workers)
        except asyncio.CancelledError:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            raise
        finally:
            await asyncio.gather(*workers, return_exceptions=True)
        return self.done

    async def _work(self) -> None:
        popped: list[Popped] | None = None  # None: no pop yet
        while not self.stopping:
            wanted = await self._reserve()
            if not wanted:
                return
            wait = self._wait_seconds()
            # A suspended process lets time pass without popping: only an empty response counts as idle.
            idle = wait is None and popped == []
            popped = []
            try:
                if idle:
                    return
                query = replace(self._options.pop, batch=wanted)
                popped = await self._api.pop(query, wait or 0.0, hang_up=self._hang_up, forever=True)
            except HungUp:
                return
            finally:
                self._account(wanted, len(popped))
            if popped:
                self._busy += 1
                try:
                    await self._deliver([self._adopt(message) for message in popped])
                finally:
                    self._busy -= 1
                    self._active_at = asyncio.get_running_loop().time()

    async def _reserve(self) -> int:
        """How many messages to request; 0 when the limit is reached."""
        batch = self._options.pop.batch
        if self._left is None:
            return batch
        while self._left <= 0:
            if not self._asked or self.stopping:
                return 0
            self._refund.clear()
            await self._refund.wait()  # another worker may get fewer than it requested
        wanted = min(batch, self._left)
        self._left -= wanted
        self._asked += wanted
        return wanted

    def _account(self, wanted: int, got: int) -> None:
        if self._left is not None:
            self._left += wanted - got
            self._asked -= wanted
            self._refund.set()

    def _wait_seconds(self) -> float | None:
        """How long the next pop may wait; None when the idle time is over."""
        idle = self._options.idle_seconds
        if idle is None:
            return self._options.poll_seconds
        left = self._active_at + idle - asyncio.get_running_loop().time()
        if self._busy:
            left = idle  # a handler is running: not idle
        return None if left <= 0 else min(self._options.poll_seconds, left)

    async def _deliver(self, messages: list[D]) -> None:
        settlement: Settlement[D] = Settlement(self._api)

        def lease_over() -> None:
            open_ones = [message.partition_id for message in messages if settlement.is_open(message)]
            if open_ones:
                log.warning("a lease ended before its messages were handled", extra={"count": len(open_ones)})
                settlement.lose(open_ones)

        options = self._options
        lease_id = messages[0].lease_id
        async with kept_alive(self._api, lease_id, options.renew_every, options.renew_seconds, lease_over):
            units = [[message] for message in messages] if options.each else [messages]
            try:
                await self._handle_all(units, settlement)
            finally:
                # Not started, or interrupted: releasing the first of each partition releases the rest.
                for message in messages:
                    if settlement.is_open(message):
                        settlement.settle(message, Status.RETRY)
                await settlement.finish()

    async def _handle_all(self, units: list[list[D]], settlement: Settlement[D]) -> None:
        for unit in units:
            if self.stopping and unit[0].lease_id:  # without a lease nothing can be released
                return
            if not any(message.partition_id in settlement.ended for message in unit):
                await self._handle(unit, settlement)

    async def _handle(self, unit: list[D], settlement: Settlement[D]) -> None:
        hooks = self._hooks
        try:
            await hooks.handle(unit)
            if hooks.succeeded is not None:
                await hooks.succeeded(unit)
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            # Not our cancellation: something the handler awaited was cancelled. Treat it as a failure.
            await self._fail(
                unit, RuntimeError(f"the handler was cancelled from inside: {error}"), settlement
            )
        except Exception as error:
            await self._fail(unit, error, settlement)
        else:
            self.done.handled += len(unit)
            for message in unit:
                settlement.settle(message, Status.COMPLETED)

    async def _fail(self, unit: list[D], error: Exception, settlement: Settlement[D]) -> None:
        self.done.failed += len(unit)
        await self._tell_failure(unit, error)
        text = f"{type(error).__name__}: {error}"[:_ERROR_MAX]
        for message in unit:
            settlement.settle(message, Status.FAILED, text)

    async def _tell_failure(self, unit: list[D], error: Exception) -> None:
        if self._hooks.failed is None:
            log.warning("a handler failed", extra={"count": len(unit)}, exc_info=error)
            return
        try:
            await self._hooks.failed(unit, error)
        except Exception as second:
            log.error("on_error failed", extra={"count": len(unit)}, exc_info=second)
