"""Settlements by position: those of AMQP consumers, who know what they hold of each partition.

Owns: deciding very many of them together, and what follows once they are written. Must not touch: the rules
of an acknowledgment (``acking.py``), clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holtmq.broker.partitioned.commands.acking import decide_held
from holtmq.broker.partitioned.requests import SettledRun
from holtmq.broker.partitioned.store import Change

if TYPE_CHECKING:
    from holtmq.broker.partitioned.service import PartitionedService


class SettledRuns:
    """Decided when it is made. The caller writes ``changes`` at once, and then calls ``apply``, or
    ``applied`` if it has applied them itself."""

    __slots__ = ("_counts", "_last", "_service", "changes")

    def __init__(self, service: PartitionedService, runs: Sequence[SettledRun], now: float) -> None:
        self._service = service
        self.changes: list[Change] = []
        self._last = [run.held for run in runs if run.is_last]
        self._counts: dict[int, list[int]] = {}  # settled, refused, dead letters; by number of the queue
        by_number = service.store.by_number
        for held, verdicts, _ in runs:
            queue = by_number.get(held.queue)
            if queue is None:
                continue
            event = decide_held(queue, held, verdicts, now)
            counts = self._counts.get(held.queue)
            if counts is None:
                counts = self._counts[held.queue] = [0, 0, 0]
            counts[event is None] += len(verdicts)
            if event is not None:
                self.changes.append((held.queue, event))
                counts[2] += len(event.dead_letters)

    def apply(self) -> None:
        """Apply the changes: the caller has written them."""
        self._service.store.apply(self.changes, ())
        self.applied()

    def applied(self) -> None:
        """Count. End the leases that the events have not ended, because their last messages were deleted."""
        service = self._service
        for number, (settled, refused, letters) in self._counts.items():
            queue = service.store.by_number.get(number)
            if queue is not None:
                counters = service.counters.of(queue.name)
                counters.acked(settled, refused)
                counters.dead_letters += letters
        service.end_held(self._last)


def settle_runs(service: PartitionedService, runs: Sequence[SettledRun], now: float) -> None:
    """Settle these with a record of their own."""
    decided = SettledRuns(service, runs, now)
    if decided.changes:
        service.store.commit(decided.changes)
    decided.applied()
