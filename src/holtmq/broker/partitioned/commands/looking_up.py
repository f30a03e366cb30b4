"""Messages that a request names by their ids are looked up before it takes effect, in steps.

Owns: which ids are looked up, and that the results are dropped afterwards. Must not touch: how a message is
found (``id_search.py``), what is settled or pushed.

Most requests need nothing: a lease knows the ids that were delivered under it, and new messages have new ids.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from holtmq.broker.partitioned.groups.acknowledgment import Ack
from holtmq.broker.partitioned.id_search import IdSearch
from holtmq.broker.partitioned.queue import PartitionedQueue

Steps = Generator[None, None, None]


class LookUp:
    """What one request has looked up. The queues know it, until ``forget``."""

    def __init__(self) -> None:
        self._kept: list[tuple[PartitionedQueue, tuple[int, str]]] = []

    def acknowledged(self, queue: PartitionedQueue, group: str, acks: Sequence[Ack], now: float) -> Steps:
        """The messages that a group acknowledges, one in each step."""
        by_partition: dict[int, dict[str, None]] = {}
        for ack in acks:
            by_partition.setdefault(ack[0], {})[ack[1]] = None
        reader = queue.groups.get(group)
        for partition, ids in by_partition.items():
            if not 0 <= partition < len(queue.partitions):
                continue
            lease = None if reader is None else reader.leases.lease(partition, now)
            if lease is not None and lease.ids_unread:
                yield from queue.read_ids(partition, lease)
            unknown = [one for one in ids if lease is None or one not in lease.transactions]
            near = None if reader is None else reader.cursor(partition)
            search = IdSearch(queue, partition, queue.partitions[partition].first if near is None else near)
            for transaction_id in unknown:
                self._keep(queue, partition, transaction_id, search.find(transaction_id))
                yield

    def pushed_before(self, queue: PartitionedQueue, items: Iterable[tuple[str, str]]) -> Steps:
        """Those of these messages, by partition and id, that may be duplicates; one item in each step."""
        for name, transaction_id in items:
            index = queue.indexes.get(name)
            if index is not None and queue.dedup.knows(queue.fingerprint(index, transaction_id)):
                position = IdSearch(queue, index).find_recent(transaction_id)
                self._keep(queue, index, transaction_id, position)
            yield

    def _keep(self, queue: PartitionedQueue, partition: int, transaction_id: str, found: int | None) -> None:
        if queue.looked_up is None:
            queue.looked_up = {}
        queue.looked_up[partition, transaction_id] = found
        self._kept.append((queue, (partition, transaction_id)))

    def forget(self) -> None:
        """The request is done."""
        for queue, place in self._kept:
            if queue.looked_up is not None:
                queue.looked_up.pop(place, None)
                if not queue.looked_up:
                    queue.looked_up = None


@contextmanager
def looking_up() -> Iterator[LookUp]:
    """Forgets at the end what was looked up."""
    look_up = LookUp()
    try:
        yield look_up
    finally:
        look_up.forget()
