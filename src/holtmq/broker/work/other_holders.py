"""Holders of a queue's messages that are none of its consumers: ``basic.get``, consumers that were cancelled
and keep what they had, workers over HTTP.

Owns: which of them hold messages of which queue, for operators. Must not touch: leases; a session that ends
its leases removes its holders.
"""

from holtmq.broker.work.leases import Holder


class OtherHolders:
    """The holders by the queue's id. One that holds nothing may still be listed, and is left out here."""

    def __init__(self) -> None:
        self._by_queue: dict[int, dict[Holder, None]] = {}

    def add(self, queue_id: int, holder: Holder) -> None:
        """List a holder; a second time changes nothing."""
        self._by_queue.setdefault(queue_id, {})[holder] = None

    def remove(self, queue_id: int, holder: Holder) -> None:
        """Do not list it any more."""
        listed = self._by_queue.get(queue_id)
        if listed is not None and listed.pop(holder, self) is None and not listed:
            del self._by_queue[queue_id]

    def of(self, queue_id: int) -> list[Holder]:
        """Those that hold messages of this queue."""
        return [holder for holder in self._by_queue.get(queue_id, ()) if holder.held]

    def __len__(self) -> int:
        return sum(map(len, self._by_queue.values()))
