"""How often messages have been handed out, written down: a restart must not begin to count anew.

Owns: when that is recorded. What comes again is recorded at once; what goes out for the first time only if it
is still not settled after a moment, so that a worker who is quick costs no record. Nothing waits for these
records to be durable. Must not touch: the counting (the group's leases), clocks.
"""

from collections.abc import Sequence
from typing import Final

from holtmq.broker.partitioned.events import HandedOut
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import Run
from holtmq.broker.partitioned.store import Change, PartitionedStore
from holtmq.broker.partitioned.waiting.waiting_pops import WaitingLine

_AFTER: Final = 0.05  # seconds


class DeliveryMarks:
    """See the module. One per node."""

    def __init__(self, store: PartitionedStore, line: WaitingLine) -> None:
        self._store = store
        self._line = line
        self._noted: dict[tuple[int, str], None] = {}  # queue number, group
        self._planned = False

    def note(self, queue: PartitionedQueue, group: str, runs: Sequence[Run], now: float) -> None:
        """These have been handed out under a lease."""
        self._noted[queue.number, group] = None
        for run in runs:
            if run.delivery.attempt > 1:
                self.write()
                return
        if not self._planned:
            self._planned = True
            self._line.at(now + _AFTER, self._due)

    def _due(self) -> None:
        self._planned = False
        self.write()

    def write(self) -> None:
        """Record what is not recorded yet and not settled either."""
        noted, self._noted = self._noted, {}
        if self._store.journal.failed is not None:
            return
        changes: list[Change] = []
        for number, name in noted:
            queue = self._store.by_number.get(number)
            group = None if queue is None else queue.groups.get(name)
            if group is None:
                continue
            leases = group.leases
            rows = [
                (partition, leases.attempts[partition], end)
                for partition, end in leases.unmarked.items()
                if partition in leases.attempts
            ]
            leases.unmarked.clear()
            if rows:
                changes.append((number, HandedOut(group.number, tuple(rows))))
        if changes:
            self._store.commit(changes)
