"""Journalled delivery counts and leases, so that a restart neither resets nor ends them.

Owns: when they are recorded. A redelivery is recorded at once; a first delivery only if it is not settled
after a short time, so that a fast worker costs no record. No answer waits for these records. Must not touch:
the counting (done by the group's leases), clocks.
"""

from collections.abc import Sequence
from typing import Final

from holtmq.broker.partitioned.events import HandedOut, Leased
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import Run
from holtmq.broker.partitioned.store import Change, PartitionedStore
from holtmq.broker.partitioned.waiting.waiting_pops import WaitingLine

_AFTER: Final = 0.05  # seconds


class DeliveryMarks:
    """Records delivery counts. One per node."""

    def __init__(self, store: PartitionedStore, line: WaitingLine) -> None:
        self._store = store
        self._line = line
        self._noted: dict[tuple[int, str], None] = {}  # queue number, group
        self._planned = False

    def note(self, queue: PartitionedQueue, group: str, runs: Sequence[Run], now: float) -> None:
        """Note messages that were delivered under a lease."""
        if any(run.delivery.attempt > 1 for run in runs):
            self._noted[queue.number, group] = None
            self.write()
        else:
            self.renewed(queue, group, now)

    def renewed(self, queue: PartitionedQueue, group: str, now: float) -> None:
        """Note that leases of a group are new, or end later."""
        self._noted[queue.number, group] = None
        if not self._planned:
            self._planned = True
            self._line.at(now + _AFTER, self._due)

    def _due(self) -> None:
        self._planned = False
        self.write()

    def write(self) -> None:
        """Record the deliveries that are neither recorded nor settled yet."""
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
            held = tuple(leases.to_record(leases.unmarked))
            leases.unmarked.clear()
            if rows:
                changes.append((number, HandedOut(group.number, tuple(rows))))
            if held:
                changes.append((number, Leased(group.number, held)))
        if changes:
            self._store.commit(changes)
