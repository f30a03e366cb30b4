"""Pushes that are true and not durable yet: their messages come to sight once the journal has them.

Owns: the order of coming to sight. Nobody is handed a message that a crash could still take back, and nobody
has to wait for the disk with a claim in hand. Must not touch: what a queue does with what it shows.
"""

from collections import deque
from collections.abc import Callable

from holtmq.broker.partitioned.events import Pushed
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.journal.interface import Journal, JournalFailed


class PendingVisibility:
    """See the module. ``show`` is called once for each push, in their order."""

    def __init__(self, journal: Journal, show: Callable[[PartitionedQueue, Pushed], None]) -> None:
        self._journal = journal
        self._show = show
        self._waiting: deque[tuple[int, PartitionedQueue, Pushed]] = deque()

    def add(self, queue: PartitionedQueue, event: Pushed) -> None:
        """A push whose record was just appended; or read, at start-up, when all is durable."""
        journal = self._journal
        end = journal.end
        self._waiting.append((end, queue, event))
        if journal.durable == end:
            self._settle(None)
        else:
            journal.on_durable(self._settle)

    def _settle(self, failed: JournalFailed | None) -> None:
        waiting, durable = self._waiting, self._journal.durable
        while waiting and waiting[0][0] <= durable:
            _, queue, event = waiting.popleft()
            self._show(queue, event)
        if failed is not None:
            waiting.clear()  # these never become durable
