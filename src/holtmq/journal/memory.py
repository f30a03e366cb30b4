"""A journal in memory, for tests, simulation and brokers that store nothing.

Owns: records by position, with the same guarantees as the journal in a folder (the same contract tests run
on both). Must not touch: files and threads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from .encoded_batch import EncodedBatch
from .interface import (
    FIRST_FREE_KIND,
    LAST_KIND,
    Defer,
    DurableCallback,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalStats,
    Loose,
    ReadRuns,
    Recovery,
    SegmentState,
)
from .live import LivePositions, WrongPosition
from .records import FRAME_SIZE, inner_records
from .unwritten import tell

_FRAME = 9  # bytes of a record besides its payload, as in the file format


class MemoryJournal:
    """Records become durable at the next turn of the loop (``defer``), or at ``flush`` without a loop."""

    def __init__(self, defer: Defer | None = None) -> None:
        self._defer = defer
        self._records: dict[int, tuple[int, bytes]] = {}
        self._end = self._durable = 1  # 0 is never a position
        self._callbacks: list[DurableCallback] = []
        self._turn_due = False
        self.on_next_segment: Callable[[], object] = lambda: None  # there is none
        self._failed: JournalFailed | None = None
        self._closed = False
        self._epoch = 1
        self._state: list[tuple[int, bytes]] = []
        self._state_position = 1
        self._begun: int | None = None  # position of a checkpoint that is not written yet
        self._waiting: tuple[int, list[tuple[int, bytes]], LivePositions] | None = None
        self._stats = JournalStats(segments=1)

    @property
    def failed(self) -> JournalFailed | None:
        return self._failed

    @property
    def stalled(self) -> str:
        return ""

    @property
    def last_segment(self) -> int | None:
        return None

    @property
    def end(self) -> int:
        return self._end

    @property
    def durable(self) -> int:
        return self._durable

    @property
    def backlog(self) -> int:
        return self._end - self._durable

    @property
    def bytes_since_checkpoint(self) -> int:
        return self._end - self._state_position

    def append(self, kind: int, payload: bytes) -> int:
        if self._failed is not None:
            raise self._failed
        if self._closed:
            raise JournalError("the journal cannot be appended to: it is closed")
        if not FIRST_FREE_KIND <= kind <= LAST_KIND:
            raise ValueError(f"kind {kind} is reserved for the journal")
        position = self._end
        self._records[position] = (kind, payload)
        self._end = position + _FRAME + len(payload)
        self._stats.records += 1
        if not self._turn_due:
            self._schedule()
        return position

    def append_batch(self, records: Sequence[tuple[int, bytes]]) -> list[int]:
        for kind, _ in records:
            if not FIRST_FREE_KIND <= kind <= LAST_KIND:
                raise ValueError(f"kind {kind} is reserved for the journal")
        return [self.append(kind, payload) for kind, payload in records]

    def append_encoded(self, batch: EncodedBatch) -> int:
        payload = b"".join(batch.finish())[FRAME_SIZE:]
        records = [(kind, body) for _, kind, body in inner_records(payload, 0)]
        return self.append_batch(records)[0] - FRAME_SIZE

    def check_folder(self) -> None:
        """There is none."""

    def on_durable(self, callback: DurableCallback) -> None:
        self._callbacks.append(callback)
        if not self._turn_due:
            self._schedule()

    def flush(self) -> None:
        self._turn_due = False
        if self._failed is None and self._durable < self._end:
            self._stats.bytes_written += self._end - self._durable
            self._stats.commits += 1
            self._stats.syncs += 1
            self._durable = self._end
        callbacks, self._callbacks = self._callbacks, []
        tell(callbacks, self._failed)
        self._finish_checkpoint()

    def read(self, position: int, kind: int | None = None) -> tuple[int, bytes]:
        try:
            return self._records[position]
        except KeyError:
            raise JournalCorrupt(f"no record was appended at position {position}") from None

    def read_many(self, positions: Sequence[int], kind: int | None = None) -> list[tuple[int, bytes]]:
        return [self.read(position, kind) for position in positions]

    def run_reader(self, kind: int | None = None) -> ReadRuns:
        return lambda positions: [Loose([payload for _, payload in self.read_many(positions)])]

    def refetch(self, position: int) -> bool:
        return False

    def begin_checkpoint(self) -> int | None:
        if self._failed is not None:
            raise self._failed
        if self._begun is not None or self._waiting is not None:
            return None
        self._begun = self._end
        return self._begun

    def give_up_checkpoint(self) -> None:
        self._begun = None

    def checkpoint(
        self, records: Iterable[tuple[int, bytes]], live: Iterable[array[int]], position: int | None = None
    ) -> bool:
        if position is None:
            position = self.begin_checkpoint()
        if position is None:
            return False
        self._begun = None
        try:
            positions = LivePositions(live, position)
            self._waiting = position, list(records), positions
        except WrongPosition:
            self._stats.checkpoint_failures += 1
        self._finish_checkpoint()
        return True

    def stats(self) -> JournalStats:
        stats = replace(self._stats)
        stats.bytes_on_disk = sum(_FRAME + len(payload) for _, payload in self._records.values())
        return stats

    def segments(self) -> list[SegmentState]:
        return []

    @property
    def checkpoint_position(self) -> int:
        return self._state_position

    @property
    def is_checkpointing(self) -> bool:
        return self._begun is not None

    def close(self) -> None:
        if not self._closed:
            self.flush()
            self._closed = True

    def fail(self, reason: str) -> None:
        """For tests: fail as a disk does. Nothing more becomes durable, and every callback gets the error."""
        self._failed = JournalFailed(reason)
        self._schedule()

    def restart(
        self, *, lose_unsynced: bool = True, defer: Defer | None = None
    ) -> tuple[MemoryJournal, Recovery]:
        """For tests: the journal that the next process would open after a crash (or a clean close) now."""
        kept = self._durable if lose_unsynced and not self._closed else self._end
        following = MemoryJournal(defer or self._defer)
        following._epoch = self._epoch + 1
        following._records = {at: record for at, record in self._records.items() if at < kept}
        following._end = following._durable = kept
        following._state = self._state
        following._state_position = self._state_position
        tail = [
            (at, kind, payload)
            for at, (kind, payload) in following._records.items()
            if at >= self._state_position
        ]
        recovery = Recovery(
            checkpoint=list(self._state), records=iter(tail), epoch=following._epoch, clean=self._closed
        )
        return following, recovery

    def _schedule(self) -> None:
        if self._defer is not None:
            self._turn_due = True
            self._defer(self.flush)

    def _finish_checkpoint(self) -> None:
        if self._waiting is None or self._failed is not None or self._durable < self._waiting[0]:
            return
        position, self._state, live = self._waiting
        self._state_position = position
        self._waiting = None
        self._stats.checkpoints += 1
        self._records = {at: record for at, record in self._records.items() if at >= position or at in live}
