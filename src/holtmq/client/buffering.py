"""Buffered pushes: many messages in few requests, batched by count and time, in order.

Owns: the messages that the program has pushed and the broker does not have yet, and the one task that sends
them. Contract: bounded; the order of pushes is kept; nothing is dropped while no broker can be reached;
the next ``push``, ``flush`` or ``close`` reports what a broker refused. Must not touch: connections.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from holtmq.client.api import Api, WireItem
from holtmq.client.errors import ClientClosed, ClientError, is_passing

_PATIENCE: Final = 0.2  # seconds between rounds of attempts while no broker can be reached


class BufferedPushFailed(ClientError):
    """The broker refused buffered messages; ``count`` of them are not stored."""

    def __init__(self, count: int, reason: ClientError) -> None:
        super().__init__(f"{count} buffered messages were refused: {reason}")
        self.count = count
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BufferOptions:
    """Send when ``count`` messages wait, or one has waited ``seconds``; never buffer more than ``most``."""

    count: int = 100
    seconds: float = 0.05
    most: int = 10_000

    def __post_init__(self) -> None:
        if not 1 <= self.count <= self.most or self.seconds < 0:
            raise ValueError("a buffer needs 1 <= count <= most and seconds >= 0")


class Outbox:
    """The buffer and the background task that sends it."""

    def __init__(self, api: Api, options: BufferOptions) -> None:
        self._api = api
        self._options = options
        self._waiting: deque[WireItem] = deque()
        self._held = 0  # waiting or being sent
        self._refused: list[BufferedPushFailed] = []
        self._moved = asyncio.Condition()
        self._full = asyncio.Event()  # a batch is complete, or a flush was requested
        self._hurry = 0
        self._sender: asyncio.Task[None] | None = None
        self.closed = False

    def __len__(self) -> int:
        """Messages the broker has not confirmed yet."""
        return self._held

    async def put(self, items: list[WireItem]) -> None:
        """Buffer the items; waits while the buffer is full."""
        self._raise_refusals()
        for item in items:
            if self._held >= self._options.most:
                async with self._moved:
                    await self._moved.wait_for(lambda: self._held < self._options.most or self.closed)
            if self.closed:
                raise ClientClosed("this buffer is closed")
            self._waiting.append(item)
            self._held += 1
            if len(self._waiting) >= self._options.count:
                self._full.set()
            if self._sender is None or self._sender.done():
                self._sender = asyncio.create_task(self._send(), name="holt-buffer")

    async def flush(self) -> None:
        """Wait until everything buffered so far is stored; raises if the broker refused some of it."""
        self._hurry += 1
        self._full.set()
        try:
            async with self._moved:
                await self._moved.wait_for(lambda: not self._held)
        finally:
            self._hurry -= 1
        self._raise_refusals()

    async def close(self, timeout: float | None = None) -> None:
        """Flush and stop. Raises if messages are left after ``timeout`` seconds; they are dropped."""
        self.closed = True
        try:
            async with asyncio.timeout(timeout):
                await self.flush()
        except TimeoutError:
            if self._sender is not None:
                self._sender.cancel()
                await asyncio.gather(self._sender, return_exceptions=True)
            raise BufferedPushFailed(self._held, ClientError(f"not sent within {timeout} s")) from None

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            due = loop.time() + self._options.seconds
            while len(self._waiting) < self._options.count and not self._hurry and loop.time() < due:
                self._full.clear()
                try:
                    async with asyncio.timeout_at(due):
                        await self._full.wait()
                except TimeoutError:
                    break
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._options.count))]
            await self._store(batch)
            async with self._moved:
                self._held -= len(batch)
                self._moved.notify_all()

    async def _store(self, batch: list[WireItem]) -> None:
        while True:
            try:
                await self._api.push(batch)
                return
            except ClientError as error:
                if not is_passing(error):
                    self._refused.append(BufferedPushFailed(len(batch), error))
                    return
            await asyncio.sleep(_PATIENCE)

    def _raise_refusals(self) -> None:
        if self._refused:
            refused, self._refused = self._refused, []
            if len(refused) == 1:
                raise refused[0]
            raise BufferedPushFailed(sum(error.count for error in refused), refused[0].reason)
