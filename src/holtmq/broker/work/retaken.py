"""Deliveries that were taken back from a client, and that it settles late in a large transaction.

Owns: their messages, taken out of their queues again, until the commit. Must not touch: what then becomes of
them, and the ledger, in which the leases are set aside.

So they are deliveries like any others while the commit is prepared: nobody else gets the messages, and a
checkpoint keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holtmq.broker.work.leases import Holder, Lease
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.flow import Flow


class Retaken:
    """The late settlements of one transaction."""

    __slots__ = ("_flow", "_holder", "_leases")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._holder = Holder()
        self._leases: list[Lease] = []

    def take(self, leases: Sequence[Lease]) -> list[Lease]:
        """Those of these whose message nobody else has; they are leased again."""
        taken: list[Lease] = []
        for lease in leases:
            queue = lease.queue
            if isinstance(queue, WorkQueue) and not queue.deleted and queue.take_out(lease.message):
                queue.unacked += 1
                self._flow.touch(queue)
                lease.holder = self._holder
                taken.append(lease)
        self._leases += taken
        return taken

    def keep(self) -> None:
        """They were settled."""
        self._leases = []

    def give_back(self) -> None:
        """Put the messages back to where they were: nothing was committed."""
        leases, self._leases = self._leases, []
        by_queue: dict[WorkQueue, list[Lease]] = {}
        for lease in leases:
            lease.holder = None
            queue = lease.queue
            if isinstance(queue, WorkQueue) and not queue.deleted:
                by_queue.setdefault(queue, []).append(lease)
        for queue, mine in by_queue.items():
            queue.unacked -= len(mine)
            queue.restore([lease.message for lease in mine], self._flow.pager)
            self._flow.touch(queue)
