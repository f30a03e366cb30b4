"""One batch of a consumer group's dead letters: pushed again or deleted, as one record.

Owns: what a batch does. Must not touch: which letters are meant, clocks, work queues.
"""

from collections.abc import Sequence

from holtmq.broker.errors import Conflict
from holtmq.broker.jobs.job import Target
from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.events import DeadLettersRemoved
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.identifiers import dead_letter_id
from holtmq.broker.partitioned.pending_commit import PendingCommit
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.service import PartitionedService


def redrive_letters(
    service: PartitionedService,
    queue: PartitionedQueue,
    letters: Sequence[DeadLetter],
    to: Target | None,
    now: float,
    beside: Sequence[StateRecord],
) -> None:
    """Push dead letters as messages again, to their own queue or to ``to``, and remove them.

    Raises LimitReached when the queue has no room for all of them, and then changes nothing.
    """
    if service.spool.holds:
        # The spool can hold a push, but not the removal of a dead letter.
        raise Conflict("pushes are suspended by maintenance: redrive when it has ended")
    name = queue.name if to is None or to.queue is None else to.queue
    pending = PendingCommit(service.store, work_records=beside)
    items = [
        PushItem(name, queue.partitions[one.partition].name, _again(service, queue, one)) for one in letters
    ]
    decided = service.decide_pushes(items, now, pending)
    pending.add(queue, [_removal(letters)])
    pending.write()
    service.results(items, decided)


def _again(service: PartitionedService, queue: PartitionedQueue, letter: DeadLetter) -> Body:
    old = service.store.body(letter.journal_position)
    # The id derives from the letter: a repeated redrive is a duplicate, not a second message.
    name = f"dlq:{dead_letter_id(queue.number, letter.number)}"
    return Body(name, old.payload, old.trace_id, old.producer, old.metadata)


def discard_letters(
    service: PartitionedService,
    queue: PartitionedQueue,
    letters: Sequence[DeadLetter],
    beside: Sequence[StateRecord],
) -> None:
    """Delete dead letters."""
    service.store.commit([(queue.number, _removal(letters))], work_records=beside)


def _removal(letters: Sequence[DeadLetter]) -> DeadLettersRemoved:
    return DeadLettersRemoved(tuple(letter.number for letter in letters))
