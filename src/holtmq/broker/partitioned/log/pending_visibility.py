"""Pushes whose record is not durable yet. Their messages become visible after the journal's sync.

Owns: the order in which they become visible. No consumer gets a message that a crash could still lose, and
no pop waits for the disk after its claim. Must not touch: how a queue makes messages visible.
"""

from collections import deque
from collections.abc import Callable

from holtmq.broker.partitioned.events import Pushed
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.journal.interface import Journal, JournalFailed


class PendingVisibility:
    """Calls ``show`` once for each push, in order, when its record is durable."""

    def __init__(self, journal: Journal, show: Callable[[PartitionedQueue, Pushed], None]) -> None:
        self._journal = journal
        self._show = show
        self._waiting: deque[tuple[int, PartitionedQueue, Pushed]] = deque()

    def add(self, queue: PartitionedQueue, event: Pushed) -> None:
        """Add a push whose record was just appended, or read at start-up, when all is durable."""
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
