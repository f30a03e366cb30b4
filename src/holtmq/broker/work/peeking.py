"""Reading ready messages without taking them: nothing is marked, moved or kept in memory.

Owns: iteration over a queue in delivery order. Must not touch: the queue's state, clocks.
"""

from collections.abc import Iterator
from itertools import islice

from holtmq.broker.message import Message
from holtmq.broker.work.paging import Pager
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.work_queue import WorkQueue


def waiting(queue: WorkQueue, pager: Pager, skip: int = 0) -> Iterator[Message]:
    """The ready messages in delivery order, without the first ``skip``."""
    store = queue.store
    fifos = [found for _, found in store.by_level(True)] if isinstance(store, Levels) else [store]
    return islice((message for fifo in fifos for message in fifo.browse(pager)), skip, None)
