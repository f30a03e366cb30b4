"""Messages that a request settles are looked up by their ids before it settles them, in steps.

Owns: which ids are looked up, and that the results are dropped afterwards. Must not touch: how a message is
found (``id_search.py``), what is settled.

Most requests need nothing: the lease knows the ids that were delivered under it.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from holtmq.broker.partitioned.groups.acknowledgment import Ack
from holtmq.broker.partitioned.id_search import IdSearch
from holtmq.broker.partitioned.queue import PartitionedQueue

LookUp = Callable[[PartitionedQueue, str, Sequence[Ack], float], Generator[None, None, None]]


@contextmanager
def looking_up() -> Iterator[LookUp]:
    """Gives a function whose steps look up what a group acknowledges.

    The queue's ``find`` knows it then, until the context ends.
    """
    kept: list[tuple[PartitionedQueue, tuple[int, str]]] = []

    def look_up(
        queue: PartitionedQueue, group: str, acks: Sequence[Ack], now: float
    ) -> Generator[None, None, None]:
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
                position = search.find(transaction_id)
                if queue.looked_up is None:
                    queue.looked_up = {}
                queue.looked_up[partition, transaction_id] = position
                kept.append((queue, (partition, transaction_id)))
                yield

    try:
        yield look_up
    finally:
        for queue, place in kept:
            if queue.looked_up is not None:
                queue.looked_up.pop(place, None)
                if not queue.looked_up:
                    queue.looked_up = None
