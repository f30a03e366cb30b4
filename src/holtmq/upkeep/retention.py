"""Old messages and idle partitions of partitioned queues are dropped, in steps.

Owns: when this runs. Must not touch: the rules of what is too old (``broker/partitioned/commands``).
"""

from collections.abc import Callable
from typing import Final

from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.config import Queue
from holtmq.journal import Journal

_CLEANUP_FIRST_MS: Final = 300_000  # after a start: short, so that a node that restarts often cleans up too
_CLEANUP_STEP_MS: Final = 100
_RETENTION_STEP_MS: Final = 20


class Retention:
    """The retention of one node's partitioned queues, on the broker's timers."""

    def __init__(
        self,
        settings: Queue,
        journal: Journal,
        broker: Broker,
        partitioned: PartitionedService,
        *,
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._flow = broker.flow
        self._partitioned = partitioned
        self._clock = clock
        self._wake = wake
        self._retained_ms = 0  # when retention last ran
        self._is_planned = False

    def plan_if_needed(self) -> None:
        """Plan the next run, if a queue has a retention and none is planned."""
        if self._partitioned.has_retention and not self._is_planned:
            self._plan(min(self._settings.eviction_interval_ms, self._settings.retention_interval_ms))

    def _plan(self, wait_ms: int) -> None:
        self._is_planned = True
        self._flow.at(int(self._clock() * 1000) + wait_ms, self._retain)

    def _retain(self) -> None:
        """Drop messages of partitioned queues that are too old."""
        self._is_planned = False
        if self._journal.failed is not None:
            return
        now_ms = self._flow.now_ms
        due = now_ms - self._retained_ms >= self._settings.retention_interval_ms
        if self._partitioned.retain(self._clock(), retention=due):
            # Each step is bounded: repeat until a step finds nothing more to drop.
            self._plan(_RETENTION_STEP_MS)
        elif due:
            self._retained_ms = now_ms
        self._wake()

    def plan_cleanup(self) -> None:
        """Plan the first deletion of idle partitions, if it is configured."""
        if self._settings.partition_cleanup_days:
            self._plan_cleanup(_CLEANUP_FIRST_MS)

    def _plan_cleanup(self, wait_ms: int) -> None:
        self._flow.at(int(self._clock() * 1000) + wait_ms, self._drop_idle)

    def _drop_idle(self) -> None:
        """Delete empty partitions that were unused for days: a pass in steps, then a pause."""
        if self._journal.failed is None:
            days = self._settings.partition_cleanup_days
            more = self._partitioned.drop_idle(self._clock(), days)
            # The pause is an hour per configured day: a limit of one day is checked hourly.
            self._plan_cleanup(_CLEANUP_STEP_MS if more else days * 3_600_000)
            self._wake()
