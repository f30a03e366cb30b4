"""When the node writes its whole state, so that a restart reads it and not the whole log.

Owns: when a checkpoint is due. Must not touch: how it is encoded and stored.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from holtmq.broker.broker import Broker
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.records.checkpoint import Snapshot
from holtmq.heap import uncollected
from holtmq.journal import Journal

_FILLED_UP: Final = 1024  # a checkpoint may append a few bytes, to get a position of its own
_RELIEF_SECONDS: Final = 10.0  # between checkpoints that are only made to free disk space
_QUEUES_AT_ONCE: Final = 1_000  # partitioned queues with few partitions, copied in one step: about 5 ms


class Checkpoints:
    """The checkpoints of one node."""

    def __init__(
        self,
        journal: Journal,
        broker: Broker,
        partitioned: PartitionedService,
        *,
        every_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._journal = journal
        self._broker = broker
        self._partitioned = partitioned
        self._every_bytes = every_bytes
        self._clock = clock
        self._relieved_end = -1  # no checkpoint for disk space until the log has grown past this
        self._copying: tuple[Snapshot, int] | None = None  # a checkpoint and its position
        self._relieved_at = -math.inf  # when a checkpoint was last made to free disk space

    def make(self) -> None:
        """Write a checkpoint, unless one is being made. Very many partitioned queues are copied in steps."""
        self._broker.flow.turn()
        self._partitioned.staging.drop_orphans(self._clock())
        position = self._journal.begin_checkpoint()
        if position is None:
            return
        with self._or_give_up(), uncollected():  # collections are half of the time with very many queues
            taken = Snapshot(self._broker, self._partitioned.store)
        self._copying = taken, position
        self._copy()

    def _copy(self) -> None:
        """Copy some partitioned queues; write the checkpoint when all are copied."""
        if self._copying is None:
            return
        taken, position = self._copying
        with self._or_give_up(), uncollected():
            is_whole = taken.capture_more(_QUEUES_AT_ONCE)
        if is_whole:
            self._copying = None
            self._journal.checkpoint(taken.records(), taken.live(), position)
        else:
            self._broker.flow.at(self._broker.flow.now_ms, self._copy)

    @contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._copying = None
            self._journal.give_up_checkpoint()
            raise

    def complete(self) -> None:
        """Copy what is left of the checkpoint that is being made: the node stops."""
        while self._copying is not None:
            self._copy()

    def make_if_due(self, now: float, *, low_on_disk: bool) -> None:
        """Checkpoint when the journal has grown, or when the disk is low and acked messages can be freed:
        publishers are blocked then, so the journal would not grow enough by itself. ``now`` is monotonic."""
        journal = self._journal
        grown = journal.bytes_since_checkpoint
        relief = low_on_disk and now - self._relieved_at >= _RELIEF_SECONDS
        # One more without growth: the last checkpoint still kept what the checkpoint before it needs.
        again = relief and journal.end > self._relieved_end
        if journal.failed is None and (grown >= self._every_bytes or again):
            if relief:
                self._relieved_at = now
                self._relieved_end = -1 if grown > 0 else journal.end + _FILLED_UP
            self.make()
