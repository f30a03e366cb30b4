"""Acknowledges handled messages while the consumer handles the next ones.

Owns: the pending acknowledgments of one popped batch. They are sent one request at a time; messages handled
meanwhile go into the next request, so a slow broker gets larger batches, not more requests.
Must not touch: handlers, lease clocks.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Generic, TypeVar

from holtmq.client.api import Api
from holtmq.client.errors import ClientError
from holtmq.client.records import Ack, Delivery, Status

D = TypeVar("D", bound=Delivery)
log = logging.getLogger(__name__)


class Settlement(Generic[D]):
    """The acknowledgments of one batch. Nothing more of an ``ended`` partition may be started."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._waiting: list[Ack] = []
        self._sender: asyncio.Task[None] | None = None
        self._decided: set[D] = set()
        self._lost: set[str] = set()  # partition ids; a subset of the ended ones
        self.ended: set[str] = set()

    def settle(self, message: D, status: Status, error: str | None = None) -> None:
        """Queue an acknowledgment, unless the program has settled the message itself."""
        if not message.lease_id:  # settled on delivery
            return
        self._decided.add(message)
        if message.settled is not None:
            status = message.settled
        elif message.partition_id not in self.ended or status is Status.FAILED:
            self._waiting.append(Ack(message, status, error))
            if self._sender is None or self._sender.done():
                self._sender = asyncio.create_task(self._send(), name="holt-acks")
        if status is not Status.COMPLETED:
            self.ended.add(message.partition_id)

    def is_open(self, message: D) -> bool:
        """Whether the message is unsettled and its lease still held."""
        return (
            message not in self._decided
            and message.settled is None
            and message.partition_id not in self.ended
        )

    async def finish(self) -> None:
        """Wait until every acknowledgment was sent or has failed."""
        if self._sender is not None:
            await asyncio.shield(self._sender)

    def lose(self, partition_ids: Iterable[str]) -> None:
        """Mark the leases of these partitions as lost, by timeout or because the broker said so."""
        for partition_id in partition_ids:
            self._lost.add(partition_id)
            self.ended.add(partition_id)

    async def _send(self) -> None:
        while self._waiting:
            acks, self._waiting = self._waiting, []
            if self._lost:  # the broker would refuse all of them
                acks = [ack for ack in acks if ack.message.partition_id not in self._lost]
            try:
                results = await self._api.ack_batch(acks)
            except ClientError as error:
                # Not settled: the lease expires and the messages are redelivered. Better twice than never.
                log.warning("acknowledgments failed", extra={"count": len(acks), "reason": str(error)})
                self.lose(ack.message.partition_id for ack in acks)
                continue
            for ack, result in zip(acks, results, strict=True):
                if not result.success:
                    self.lose((ack.message.partition_id,))
                    log.warning(
                        "acknowledgment refused",
                        extra={"partition": ack.message.partition_id, "reason": result.error},
                    )
