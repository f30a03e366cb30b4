"""The journal in a folder: append, group commit, read.

Owns: where the next record goes, when a group is closed, and handling the results of the writer and the
checkpointer. Only the event loop's thread touches the fields; other threads get values and return values.
Must not touch: what records mean. The formats are in ``records``, ``segment`` and ``checkpoint``.

Over 400 lines: all of it shares the state of the open group, which one thread owns.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from .checkpointer import Checkpointer, CheckpointOutcome
from .checksum import crc32
from .disk import Disk
from .dropped import Dropped
from .encoded_batch import EncodedBatch
from .file_set import FileSet, keep_files
from .interface import (
    FIRST_FREE_KIND,
    Defer,
    DurableCallback,
    FolderLost,
    JournalError,
    JournalFailed,
    JournalStats,
    Later,
    Loose,
    ReadRuns,
    Run,
    SegmentState,
)
from .mended_reads import MendedReads
from .options import JournalOptions
from .reader import LogReader
from .records import FILLER, FRAME, KIND_BYTES, MAX_PAYLOAD, PREFIX_SIZE, SYNC_SIZE, encode_batch
from .run_reader import highest
from .segment import HEADER_SIZE, segment_name
from .segment_map import SegmentMap
from .unwritten import Unwritten, tell
from .writer import Commit, OpenLog
from .writer_thread import WriterThread

log = logging.getLogger(__name__)

_pack_frame = FRAME.pack


class FileJournal:
    """Created by ``open_journal``; ``interface.Journal`` documents the methods."""

    def __init__(
        self,
        disk: Disk,
        options: JournalOptions,
        defer: Defer | None,
        notify: Defer | None,
        later: Later | None = None,
        dropped: Dropped | None = None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._options = options
        self._defer = defer
        self._later = later
        self._notify = notify
        self._flush = flush  # sends what callbacks have to say to clients, where the next turn would be late
        self.on_next_segment: Callable[[], object] = lambda: None
        self._failed: JournalFailed | None = None
        self._state = "its recovery has not been read to the end"  # why append must raise; "" when open
        self._epoch = 0
        # The open group: room for its SYNC record, then records. _end is where the next record goes.
        # _limit is the end of the segment, or -1 when the next append must go through _make_room.
        self._start = 0
        self._end = SYNC_SIZE
        self._limit = -1
        self._chunks: list[bytes] = []
        self._callbacks: list[DurableCallback] = []
        self._idle_callbacks: list[DurableCallback] = []  # registered when nothing was unwritten
        self._turn_due = False
        self._idle_turn_due = False
        self._overdue = False  # the open group has waited for idle_seconds
        self._unwritten = Unwritten()
        self._durable = SYNC_SIZE
        self._segments = SegmentMap((), options.segment_bytes - HEADER_SIZE)
        self._checkpoint_position = 0
        self._held = 0  # copies that are being opened
        self._stats = JournalStats()
        self._reader = LogReader(disk, [], options.read_handles, dropped)
        self._reads = MendedReads(self._reader, self._segments, None, notify, self._out_of_reach)
        self._writer_thread = WriterThread()
        self._checkpointer = Checkpointer(disk, notify, self._checkpoint_done, self._reader.dropped)

    @property
    def failed(self) -> JournalFailed | None:
        return self._failed

    @property
    def stalled(self) -> str:
        return "" if self._failed is not None else self._writer_thread.stalled

    @property
    def last_segment(self) -> int | None:
        return self._segments.last_base if len(self._segments) else None

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
        return self._end - self._checkpoint_position

    @property
    def checkpoint_position(self) -> int:
        return self._checkpoint_position

    @property
    def is_checkpointing(self) -> bool:
        return self._checkpointer.busy

    def segments(self) -> list[SegmentState]:
        bases = self._segments.bases
        stops = [*bases[1:], self._end]
        live = self._checkpointer.live
        return [
            SegmentState(
                base,
                stop,
                size,
                base == bases[-1],
                stop > self._checkpoint_position,
                None if live is None else live.count_between(base, stop),
            )
            for base, stop, size in zip(bases, stops, self._segments.sizes, strict=True)
        ]

    def stats(self) -> JournalStats:
        stats = replace(self._stats)
        stats.polled_commits = self._writer_thread.polled_commits
        stats.segments = len(self._segments)
        stats.bytes_on_disk = self._segments.bytes_on_disk
        return stats

    def append(self, kind: int, payload: bytes) -> int:
        length = len(payload) + 1
        position = self._end
        end = position + PREFIX_SIZE + length
        if end > self._limit or kind < FIRST_FREE_KIND:
            position = self._make_room(kind, PREFIX_SIZE + length)
            end = position + PREFIX_SIZE + length
        # Two chunks and one join per group: half the cost of joining each record (bench/journal.py).
        chunks = self._chunks
        chunks.append(_pack_frame(length, crc32(payload, crc32(KIND_BYTES[kind], length)), kind))
        chunks.append(payload)  # two appends: 20 ns less than += with a tuple
        self._end = end
        return position

    def append_batch(self, records: Sequence[tuple[int, bytes]]) -> list[int]:
        if len(records) < 2:
            return [self.append(kind, payload) for kind, payload in records]
        for kind, _ in records:
            if kind < FIRST_FREE_KIND:
                raise ValueError(f"kind {kind} is reserved for the journal")
        parts, size, offsets = encode_batch(records)
        position = self._end
        if position + size > self._limit:
            position = self._make_room(FIRST_FREE_KIND, size)
        self._chunks += parts
        self._end = position + size
        return [position + offset for offset in offsets]

    def append_encoded(self, batch: EncodedBatch) -> int:
        position = self._end
        if position + batch.size > self._limit:
            position = self._make_room(FIRST_FREE_KIND, batch.size)
        self._chunks += batch.finish()
        self._end = position + batch.size
        return position

    def on_durable(self, callback: DurableCallback) -> None:
        if self._failed is None and self._end > self._start + SYNC_SIZE:
            self._callbacks.append(callback)
            self._schedule_turn()
        elif self._failed is None and self._unwritten.in_flight:
            self._unwritten.in_flight[-1].callbacks.append(callback)
        else:
            self._idle_callbacks.append(callback)
            self._schedule_turn()

    def flush(self) -> None:
        self._hand_over()
        if self._failed is None:
            groups = [waiting.group for waiting in self._unwritten.in_flight]
            if self._writer_thread.commit_here(groups):
                self._collect()

    def _add(self, kind: int, payload: bytes) -> None:
        """Append a record of the journal's own kinds."""
        position = self._make_room(FIRST_FREE_KIND, FRAME.size + len(payload))
        length = len(payload) + 1
        self._chunks += (_pack_frame(length, crc32(payload, crc32(KIND_BYTES[kind], length)), kind), payload)
        self._end = position + FRAME.size + len(payload)

    def _make_room(self, kind: int, size: int) -> int:
        """The rare part of an append: raise, open a group, or start the next segment."""
        if self._failed is not None:
            raise self._failed
        if self._state:
            raise JournalError(f"the journal cannot be appended to: {self._state}")
        if kind < FIRST_FREE_KIND:
            raise ValueError(f"kind {kind} is reserved for the journal")
        if size > MAX_PAYLOAD:
            raise ValueError(f"a record of {size} bytes is over the limit of {MAX_PAYLOAD}")
        self._schedule_turn()
        self._limit = self._segments.limit
        if self._end + size > self._limit:
            self._next_segment(size)
        return self._end

    def _next_segment(self, size: int) -> None:
        # This happens in the middle of a loop turn. The callbacks stay with the turn's last group: records
        # appended later in the turn, such as acks that came before a publish, must be durable first.
        waiting, self._callbacks = self._callbacks, []
        self._close_group()
        self._callbacks = waiting
        capacity = max(self._options.segment_bytes - HEADER_SIZE, SYNC_SIZE + size)
        if self._segments.go_on(self._start, capacity):
            self._reader.add(self._start)
            self.on_next_segment()
        self._limit = self._segments.limit

    def _schedule_turn(self) -> None:
        if self._defer is not None and not self._turn_due:
            self._turn_due = True
            self._defer(self._turn)

    def _turn(self) -> None:
        """Hand the group to the writer. Runs once per loop turn in which something was appended.

        A small group without callbacks stays open for a while.
        """
        self._turn_due = False
        if (
            self._later is None
            or self._callbacks
            or self._idle_callbacks
            or self._overdue
            or self._end - self._start > self._options.idle_bytes
        ):
            self._hand_over()
            return
        self._limit = -1  # the next append schedules a turn again
        if not self._idle_turn_due:
            self._idle_turn_due = True
            self._later(self._options.idle_seconds, self._idle_turn)

    def _idle_turn(self) -> None:
        # Through ``defer`` like every other turn, because the caller then appends what belongs to the group,
        # such as acks that came before a publish. The timer may fire between that publish and its turn.
        self._idle_turn_due = False
        self._overdue = True
        self._schedule_turn()

    def _hand_over(self) -> None:
        self._turn_due = self._overdue = False
        self._run_idle()
        if self._failed is None:
            self._close_group()
            self._limit = -1

    def _close_group(self) -> None:
        if self._end == self._start + SYNC_SIZE:
            return
        self._stats.records += len(self._chunks) >> 1
        self._join_chunks()
        segments = self._segments
        group = self._unwritten.close_group(
            segments.last_base,
            segments.capacity,
            self._start,
            self._end,
            self._callbacks,
            self._checkpoint_position,
        )
        self._writer_thread.hand_over(group)
        self._callbacks = []
        self._start = self._end
        self._end += SYNC_SIZE

    def _join_chunks(self) -> None:
        if self._chunks:
            self._unwritten.add(self._chunks, self._end)
            self._chunks = []

    def _collect(self) -> None:
        """Take the writer's results, in the loop's thread, and run the callbacks."""
        self._run_idle()
        while (result := self._writer_thread.next_result()) is not None:
            if isinstance(result, Commit):
                self._committed(result)
            else:
                self._fail(result)
        self._advance_checkpoint()

    def _committed(self, commit: Commit) -> None:
        stats = self._stats
        stats.commits += 1
        stats.syncs += commit.syncs
        stats.bytes_written += commit.written
        stats.last_sync_seconds = commit.seconds
        stats.commit_seconds.add(commit.seconds)
        # The next group starts with its SYNC record, so the caller's next record is not below this.
        self._durable = commit.durable + SYNC_SIZE
        tell(self._unwritten.written(commit.groups), None)

    def _fail(self, error: BaseException) -> None:
        if self._failed is not None:
            return
        reason = f"{type(error).__name__}: {error}"
        log.critical("journal failed", extra={"folder": self._disk.folder, "reason": reason})
        self._failed = failed = JournalFailed(reason)
        self._limit = -1
        waiting, self._callbacks = self._unwritten.failed() + self._callbacks, []
        tell(waiting, failed)

    def check_folder(self) -> None:
        if self._failed is None and (reason := self._disk.lost()):
            self._fail(FolderLost(reason))

    def _run_idle(self) -> None:
        if self._idle_callbacks:
            callbacks, self._idle_callbacks = self._idle_callbacks, []
            tell(callbacks, self._failed)

    def read(self, position: int, kind: int | None = None) -> tuple[int, bytes]:
        if position >= self._written:
            self._join_chunks()
            return self._unwritten.read(position)
        return self._reads.read(position, kind)

    def read_many(self, positions: Sequence[int], kind: int | None = None) -> list[tuple[int, bytes]]:
        written = self._written
        if not positions or max(positions) < written:
            return self._reads.read_many(positions, kind)
        self._join_chunks()
        return self._unwritten.read_mixed(positions, written, lambda some: self._reads.read_many(some, kind))

    def run_reader(self, kind: int | None = None) -> ReadRuns:
        read_files = self._reads.run_reader(kind)

        def read(positions: array[int]) -> list[Run]:
            if positions and highest(positions) >= self._written:
                return [Loose([payload for _, payload in self.read_many(positions, kind)])]
            return read_files(positions)

        return read

    def refetch(self, position: int) -> bool:
        return self._reads.refetch(position)

    def _out_of_reach(self, error: JournalError) -> None:
        self._fail(error)
        if self._failed is not None:
            raise self._failed from error

    @property
    def _written(self) -> int:
        """Records below this position are read from files, those from it on from memory."""
        in_flight = self._unwritten.in_flight
        return in_flight[0].group.start if in_flight else self._start

    def begin_checkpoint(self) -> int | None:
        if self._failed is not None:
            raise self._failed
        if self._state:
            raise JournalError(f"the journal cannot be checkpointed: {self._state}")
        if self._checkpointer.busy or self._held:
            return None
        if self._end == self._start + SYNC_SIZE and self._start == self._checkpointer.newest:
            # Nothing was appended since the last checkpoint, so its file name is taken. A new checkpoint is
            # still useful: it lets the one before the last be deleted, which frees space.
            self._add(FILLER, b"")
        # Not after the room for a SYNC record that may never be written.
        position = self._end if self._end > self._start + SYNC_SIZE else self._start
        self._checkpointer.reserve(position, self._epoch, self._segments.bases)
        return position

    def give_up_checkpoint(self) -> None:
        self._checkpointer.give_up()

    def checkpoint(
        self, records: Iterable[tuple[int, bytes]], live: Iterable[array[int]], position: int | None = None
    ) -> bool:
        if position is None and self.begin_checkpoint() is None:
            return False
        self._checkpointer.begin(records, live, self._advance_checkpoint)
        return True

    def hold_files(self) -> Callable[[], FileSet] | None:
        """Start no checkpoint until ``release_files``; None: one is being made, ask again.

        The function opens every file with the durable part of the log, for a copy. It may be called in
        another thread: there may be thousands.
        """
        if self._failed is not None:
            raise self._failed
        if self._checkpointer.busy:
            return None
        self._held += 1
        return partial(keep_files, self._disk, self._durable - SYNC_SIZE, self._epoch)

    def release_files(self) -> None:
        """The files are open: checkpoints may delete and replace them."""
        self._held -= 1

    def _advance_checkpoint(self) -> None:
        """Publish the checkpoint once the log is durable up to it."""
        position = self._checkpointer.waits_for
        if position is not None and self._failed is None and position <= self._durable - SYNC_SIZE:
            # Every earlier segment was synced when it was left; the one that holds the position may not be.
            unsynced = None if self._options.sync else segment_name(self._segments.holder(position))
            # Only segments whose successor is known to exist on disk.
            sealed = self._segments.sealed(min(position, self._durable - SYNC_SIZE - 1))
            self._checkpointer.proceed(sealed, self._options.compact_below, unsynced)

    def _checkpoint_done(self, outcome: CheckpointOutcome) -> None:
        stats = self._stats
        if outcome.published:
            stats.checkpoints += 1
            stats.checkpointed_at = time.monotonic()
            self._checkpoint_position = outcome.position
        for problem in outcome.problems:
            stats.checkpoint_failures += 1
            log.error("checkpoint incomplete", extra={"folder": self._disk.folder, "reason": problem})
        reclaimed = outcome.reclaimed
        stats.compactions += len(reclaimed.compacted)
        stats.deleted_segments += len(reclaimed.deleted)
        stats.reclaimed_bytes += reclaimed.freed_bytes
        for base in reclaimed.deleted:
            self._reader.forget(base, gone=True)
        for base in self._segments.reclaimed(reclaimed):
            self._reader.forget(base, gone=False)

    def opened(self, log: OpenLog) -> None:
        """Recovery has been read to the end: allow appends."""
        self._epoch = log.epoch
        self._segments = SegmentMap(log.segments, log.capacity)
        self._checkpoint_position = log.checkpoint_position
        if log.checkpoint is not None:
            self._checkpointer.recovered(log.checkpoint.position, log.checkpoint.segments)
        self._start = log.end
        self._end = self._durable = log.end + SYNC_SIZE
        for base, _ in log.segments:
            self._reader.add(base)
        log.writer.syncs = self._options.sync
        self._checkpointer.mirror = log.mirror
        self._reads = MendedReads(self._reader, self._segments, log.mirror, self._notify, self._out_of_reach)
        self._state = ""
        self._writer_thread.start(log.writer, self._notify, self._later, self._collect, self._flush)

    def close(self) -> None:
        if self._state == "it is closed":
            return
        if not self._state:
            self.flush()
            self._writer_thread.finish(failed=self._failed is not None)
            self._collect()
            self._checkpointer.stop()  # waits for the running step; the second call for the step after it
            self._checkpointer.stop()
            self._limit = -1
        self.release()

    def release(self) -> None:
        """Release ownership without writing to the log."""
        self._state = "it is closed"
        if self._checkpointer.mirror is not None:
            self._checkpointer.mirror.close()
        self._reader.close()
        self._disk.unlock()
