"""A queue of the async API: the fluent options and the calls that use them.

Owns: turning options into calls. Must not touch: requests.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, Unpack

import msgspec

from holtmq.client.api import segment, wire_items
from holtmq.client.buffering import BufferOptions, Outbox
from holtmq.client.consumption import Consumption
from holtmq.client.dead_letters import DeadLetterFilter, DeadLetters
from holtmq.client.message import Message
from holtmq.client.options import QueueOptions, QueueWords, camel
from holtmq.client.records import Configured, PushResult, QueueConfig

if TYPE_CHECKING:
    from holtmq.client.client import Client

U = TypeVar("U")


class _Deleted(msgspec.Struct):
    existed: bool = True


class Queue(QueueWords, Generic[U]):
    """``U`` is what a handler of ``consume`` gets: a list of messages, or one message after ``each()``."""

    __slots__ = ("_client",)

    def __init__(self, client: "Client", options: QueueOptions) -> None:
        super().__init__(options)
        self._client = client

    def _with(self, options: QueueOptions) -> Self:
        return type(self)(self._client, options)

    def each(self) -> "Queue[Message]":
        """Pass handlers one message at a time."""
        return Queue(self._client, replace(self._options, each=True))

    async def push(self, payloads: object) -> list[PushResult]:
        """Store one payload, or a list of payloads and ``Item``s; durable when this returns.

        A push that is retried after a lost response is stored once: its transaction ids stay the same.
        """
        pop = self._options.pop
        return await self._client.api.push(wire_items(pop.queue, pop.partition, payloads))

    async def pop(self, *, wait: float = 0.0) -> list[Message]:
        """Messages that are ready or arrive within ``wait`` seconds; else an empty list."""
        popped = await self._client.api.pop(self._options.pop, wait)
        return [self._client.adopt(message) for message in popped]

    def consume(self, handler: Callable[[U], Awaitable[object]]) -> Consumption[U]:
        """Handle messages as they arrive: acknowledge when the handler returns, nack when it raises."""
        return Consumption(self._client, self._options, handler)

    async def configure(self, **options: Unpack[QueueConfig]) -> Configured:
        """Create the queue, or change these options."""
        return await self.config(**options).create()

    async def create(self) -> Configured:
        """Create or change the queue with the options set by ``config``, ``namespace`` and ``task``."""
        pop = self._options.pop
        body: dict[str, object] = {
            "queue": pop.queue,
            "options": {camel(name): value for name, value in self._options.config.items()},
        }
        if pop.namespace:
            body["namespace"] = pop.namespace
        if pop.task:
            body["task"] = pop.task
        return await self._client.api.send("POST", "/api/v1/configure", body, Configured)

    async def delete(self) -> bool:
        """Delete the queue and all its messages; return whether it existed."""
        path = f"/api/v1/resources/queues/{segment(self._options.pop.queue)}"
        return (await self._client.api.send("DELETE", path, None, _Deleted)).existed

    async def seek(self, moment: datetime | str) -> int:
        """Move the group's cursors to this time; return how many partitions moved."""
        return await self._seek(moment)

    async def seek_to_end(self) -> int:
        """Move the group's cursors to the end; return how many partitions moved."""
        return await self._seek(None)

    async def _seek(self, moment: datetime | str | None) -> int:
        pop = self._options.pop
        if not pop.group:
            raise ValueError("seek needs a group")
        return await self._client.group(pop.group).seek(pop.queue, moment, partition=pop.partition)

    def dlq(self, group: str = "") -> DeadLetters:
        """The queue's dead letters, of one group or of all."""
        pop = self._options.pop
        return DeadLetters(
            self._client, DeadLetterFilter(pop.queue, group or pop.group, partition=pop.partition)
        )

    def buffer(self, *, count: int = 100, seconds: float = 0.05, most: int = 10_000) -> "Buffer":
        """Push many messages in few requests; the client's ``close`` flushes it."""
        pop = self._options.pop
        outbox = Outbox(self._client.api, BufferOptions(count, seconds, most))
        self._client.register_outbox(outbox)
        return Buffer(outbox, pop.queue, pop.partition)


class Buffer:
    """A queue's buffered push: ``push`` returns when the message is buffered, not when it is stored."""

    def __init__(self, outbox: Outbox, queue: str, partition: str) -> None:
        self._outbox = outbox
        self._queue = queue
        self._partition = partition

    def __len__(self) -> int:
        """Messages not stored yet."""
        return len(self._outbox)

    async def push(self, payloads: object) -> None:
        """Buffer messages; waits while the buffer is full."""
        await self._outbox.put(wire_items(self._queue, self._partition, payloads))

    async def flush(self) -> None:
        """Wait until everything buffered is stored."""
        await self._outbox.flush()

    async def close(self, timeout: float | None = None) -> None:
        await self._outbox.close(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
