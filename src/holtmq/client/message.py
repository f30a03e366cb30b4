"""A popped message with its own methods.

Owns: ``Message`` of the async API. Must not touch: calls; the client makes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holtmq.client.records import AckResult, Delivery, Renewal

if TYPE_CHECKING:
    from holtmq.client.client import Client


@dataclass(slots=True, eq=False)
class Message(Delivery):
    """A message under a lease."""

    _client: "Client | None" = field(default=None, repr=False)

    @property
    def client(self) -> "Client":
        if self._client is None:
            raise RuntimeError("this message was not popped by a client")
        return self._client

    async def ack(self) -> AckResult:
        """Acknowledge it."""
        return await self.client.ack(self)

    async def nack(self, error: str | Exception | None = None) -> AckResult:
        """Report a failure: redeliver it, or dead-letter it when its retries are used up."""
        return await self.client.nack(self, error)

    async def renew(self, seconds: float | None = None) -> Renewal:
        """Extend its lease."""
        return await self.client.renew(self, seconds)

    async def trace(self, data: object, *, names: str | Sequence[str] = (), event: str = "info") -> bool:
        """Record an event about it. A failure is logged, not raised: tracing must not fail the work."""
        return await self.client.trace(self, data, names=names, event=event)
