"""Transactions: acknowledge and push atomically.

Owns: collecting the operations, for both APIs. Must not touch: the call; the subclasses commit.
"""

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from holtmq.client.api import WireItem, wire_items
from holtmq.client.errors import ClientError
from holtmq.client.records import Ack, MessageKey, Status, TransactionResult

if TYPE_CHECKING:
    from holtmq.client.client import Client


class TransactionWords:
    """The operations of a transaction."""

    def __init__(self) -> None:
        self._items: list[WireItem] = []
        self._acks: list[Ack] = []
        self._committed = False

    def ack(self, message: MessageKey) -> Self:
        """Acknowledge a message as part of the transaction."""
        self._acks.append(Ack(message))
        return self

    def nack(self, message: MessageKey, error: str | None = None) -> Self:
        """Count a failure as part of the transaction."""
        self._acks.append(Ack(message, Status.FAILED, error))
        return self

    def queue(self, name: str) -> "Target[Self]":
        """Select the queue of the next ``push``."""
        return Target(self, name)

    def add(self, items: list[WireItem]) -> None:
        self._items += items

    def share(self, other: "TransactionWords") -> None:
        """Take over another transaction's operations; from then on only this one can be committed."""
        self._items, self._acks = other._items, other._acks
        self._committed, other._committed = other._committed, True

    def _once(self) -> None:
        if self._committed:
            raise ClientError("this transaction was committed before")
        if not self._items and not self._acks:
            raise ValueError("an empty transaction cannot be committed")
        self._committed = True


W = TypeVar("W", bound=TransactionWords)


class Target(Generic[W]):
    """A queue, and optionally a partition, inside a transaction."""

    def __init__(self, words: W, queue: str, partition: str = "") -> None:
        self._words = words
        self._queue = queue
        self._partition = partition

    def partition(self, name: str) -> "Target[W]":
        return Target(self._words, self._queue, name)

    def push(self, payloads: object) -> W:
        """Add one payload, or a list of payloads and ``Item``s; return the transaction."""
        self._words.add(wire_items(self._queue, self._partition, payloads))
        return self._words


class Transaction(TransactionWords):
    """The transaction of the async API."""

    def __init__(self, client: "Client") -> None:
        super().__init__()
        self._client = client

    async def commit(self) -> TransactionResult:
        """Apply everything. Raises ``TransactionFailed`` when nothing was applied."""
        self._once()
        return await self._client.api.commit(self._items, self._acks)
