"""A popped message with verbs of its own.

Owns: ``Message`` of the async face. Must not touch: calls; the client makes them.
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
        """Done with it."""
        return await self.client.ack(self)

    async def nack(self, error: str | Exception | None = None) -> AckResult:
        """It failed: deliver it again, or file it with the dead letters when its retries are spent."""
        return await self.client.nack(self, error)

    async def renew(self, seconds: float | None = None) -> Renewal:
        """Hold its lease longer."""
        return await self.client.renew(self, seconds)

    async def trace(self, data: object, *, names: str | Sequence[str] = (), event: str = "info") -> bool:
        """Note something about it. A failure is logged, never raised: a note must not fail the work."""
        return await self.client.trace(self, data, names=names, event=event)
