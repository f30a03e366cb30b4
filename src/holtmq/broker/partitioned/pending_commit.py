"""What one commit will write: events, message bodies and other records, collected until all is decided.

Owns: the order in which they are written: the bodies are those of the ``Pushed`` events, in the same order.
Must not touch: decisions, counters, the journal itself (``store.py`` writes).
"""

from collections.abc import Sequence

from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.events import Pushed, QueueEvent
from holtmq.broker.partitioned.log.bodies import Body, encode_bodies
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.store import Change, PartitionedStore


class PendingCommit:
    """Changes of partitioned queues that take effect together."""

    __slots__ = ("_bodies", "_created", "_records", "_store", "changes", "state_records", "work_records")

    def __init__(
        self,
        store: PartitionedStore,
        state_records: Sequence[StateRecord] = (),
        work_records: Sequence[StateRecord] = (),
    ) -> None:
        self._store = store
        self.changes: list[Change] = []
        self.state_records = state_records
        self.work_records = work_records  # of work queues, which apply them
        self._created: dict[str, PartitionedQueue] = {}
        self._records: list[bytes] = []
        self._bodies: list[Body] = []

    def home(self, name: str, now: float, *, refuses: bool = True) -> PartitionedQueue:
        """The queue of this name. A missing one is created by this commit; LimitReached if it is too many."""
        store = self._store
        queue = store.queues.get(name)
        if queue is None:
            queue = self._created.get(name)
        if queue is None:
            if refuses:
                store.check_new(name, len(self._created))
            queue, configured = store.draft(name, now, len(self._created))
            self._created[name] = queue
            self.changes.append((queue.number, configured))
        return queue

    def add(self, queue: PartitionedQueue, events: Sequence[QueueEvent]) -> None:
        """Add events of one queue that store no messages."""
        number = queue.number
        self.changes += [(number, event) for event in events]

    def push(self, queue: PartitionedQueue, event: Pushed, bodies: Sequence[Body]) -> None:
        """Add the event of a push and the bodies of its new messages, encrypted if the queue asks for it."""
        self.changes.append((queue.number, event))
        self._records += encode_bodies(
            bodies, self._store.cipher if queue.config.encryption_enabled else None
        )
        self._bodies += bodies

    def write(self) -> list[int]:
        """Write everything, if there is anything, as one record, and apply it; return the positions of
        ``work_records``."""
        if not (self.changes or self.state_records or self.work_records):
            return []
        return self._store.commit(
            self.changes, self._records, self._bodies, self.state_records, self.work_records
        )
