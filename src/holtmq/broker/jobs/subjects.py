"""Messages of both kinds of queue as filters see them.

Owns: that conversion. Must not touch: state, clocks.
"""

from holtmq.broker.jobs.filters import Subject
from holtmq.broker.message import Message
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.spilling_fifo import SpillingFifo
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.wire.properties import PROPERTIES_AT


def levels(queue: WorkQueue) -> list[tuple[int, SpillingFifo]]:
    """The priority levels of a queue, highest first; one level if it has no priorities."""
    store = queue.store
    return store.by_level(highest_first=True) if isinstance(store, Levels) else [(0, store)]


def work_subject(queue: WorkQueue, message: Message, now_ms: int) -> Subject:
    """A message of a work queue."""
    return Subject(
        message.body,
        message.header,
        message.exchange,
        message.routing_key,
        (now_ms - message.arrived_ms) / 1000,
        queue.returned.get(message.seq, 0),
    )


def letter_subject(
    service: PartitionedService, queue: PartitionedQueue, letter: DeadLetter, now_ms: int
) -> Subject:
    """A consumer group's dead letter."""
    body = service.store.letter_body(queue, letter)
    metadata = body.metadata
    return Subject(
        body.payload,
        b"" if metadata is None else bytes(PROPERTIES_AT) + metadata.header,
        "" if metadata is None else metadata.exchange,
        "" if metadata is None else metadata.routing_key,
        (now_ms - letter.failed_us // 1000) / 1000,
        letter.retry_count,
    )
