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
from holtmq.broker.records.queue_copies import QueueCopies
from holtmq.heap import uncollected
from holtmq.journal import Journal

_FILLED_UP: Final = 1024  # a checkpoint may append a few bytes, to get a position of its own
_RELIEF_SECONDS: Final = 10.0  # between checkpoints that are only made to free disk space
_QUEUES_AT_ONCE: Final = 1_000  # copied in one step: about 1 ms, partitioned ones with few partitions 5


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
        self._before: QueueCopies | None = None  # of a checkpoint whose moment has not come
        self._copying: tuple[Snapshot, int] | None = None  # a checkpoint and its position
        self._relieved_at = -math.inf  # when a checkpoint was last made to free disk space

    @property
    def is_making(self) -> bool:
        """Whether a checkpoint is being made."""
        return self._before is not None or self._journal.is_checkpointing

    def make(self) -> bool:
        """Write a checkpoint; False if one is being made.

        Very many queues are copied in steps: work queues before its moment, partitioned queues after it.
        """
        if self.is_making:
            return False
        self._before = QueueCopies(self._broker)
        self._copy()
        return True

    def _copy(self) -> None:
        """Copy some queues; write the checkpoint when all are copied."""
        with self._or_give_up(), uncollected():  # collections are half of the time with very many queues
            if self._before is not None and self._before.copy_some(_QUEUES_AT_ONCE):
                self._take(self._before)
            is_whole = self._copying is not None and self._copying[0].capture_more(_QUEUES_AT_ONCE)
        if is_whole and self._copying is not None:
            (taken, position), self._copying = self._copying, None
            self._journal.checkpoint(taken.records(), taken.live(), position)
        elif self._is_copying:
            self._broker.flow.at(self._broker.flow.now_ms, self._go_on)

    def _go_on(self) -> None:
        if self._journal.failed is not None:
            self._give_up()
        elif self._is_copying:
            self._copy()

    @property
    def _is_copying(self) -> bool:
        return self._before is not None or self._copying is not None

    def _take(self, queues: QueueCopies) -> None:
        """This is the moment of the checkpoint."""
        self._broker.flow.turn()
        self._partitioned.staging.drop_orphans(self._clock())
        position = self._journal.begin_checkpoint()
        if position is None:  # files are held for a backup
            self._give_up()
        else:
            self._copying = Snapshot(self._broker, self._partitioned.store, queues), position
            self._before = None

    @contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        if self._before is not None:
            self._before.give_up()
        if self._journal.is_checkpointing:  # its position is fixed
            self._journal.give_up_checkpoint()
        self._before = self._copying = None

    def complete(self) -> None:
        """Copy what is left of the checkpoint that is being made: the node stops."""
        while self._is_copying:
            self._go_on()

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
