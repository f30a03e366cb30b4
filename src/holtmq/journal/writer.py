"""The one writer: what happens between "handed over" and "durable".

Owns: the open end of the log, the order write -> sync -> report, and the creation of the next segment.
Must not touch: the journal's state. It gets immutable groups and returns values, so that it may run in a
thread of its own or inline, with the same code.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from .checkpoint import Checkpoint
from .disk import Disk, File
from .manifest import Manifest
from .records import encode_sync
from .segment import HEADER_SIZE, TEMPORARY, SegmentHeader, create_segment, segment_name

# Space that was reserved but never written makes a sync of new bytes a change of metadata as well, with a
# commit of the file system's own journal. So small commits find zeros there, written in one go ahead of them:
# 85 µs a sync instead of 135 (docs/decisions/0006). A big one gains less than its share of the zeros costs.
_AHEAD: Final = 512 << 10
_SMALL: Final = 64 << 10
_ZEROS: Final = bytes(_AHEAD)
_RETRY_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Group:
    """The records of one loop turn: a stretch of log that starts with room for a SYNC record."""

    base: int  # of the segment it belongs to
    capacity: int
    start: int
    end: int
    parts: tuple[bytes, ...]  # everything after the SYNC record
    checkpoint: int = 0  # the newest one that is published


@dataclass(frozen=True, slots=True)
class Commit:
    groups: int
    durable: int
    written: int
    syncs: int
    seconds: float  # the last sync


class LogWriter:
    def __init__(
        self,
        disk: Disk,
        file: File,
        header: SegmentHeader,
        capacity: int,
        durable: int,
        epoch: int,
        clock: Callable[[], float],
        manifest: Manifest,
    ) -> None:
        self.syncs = True  # False only where the operator gave up on power cuts
        self._disk = disk
        self._file = file
        self._base = header.base
        self._marker = header.marker
        self._capacity = capacity
        self._durable = durable  # everything below has been reported
        self._synced = durable  # and below this it is on the disk: what SYNC records may claim
        self._written = durable  # bytes from here on may never have been written, not even with zeros
        self._epoch = epoch
        self._clock = clock
        self._manifest = manifest
        self._checkpoint = 0
        self.waits = False  # for room on the disk; only in a thread of its own
        self.stalled = ""
        self.stop_waiting = threading.Event()

    def commit(self, groups: Sequence[Group]) -> Commit:
        """Write all groups and sync once (once more for each segment that is left)."""
        now = self._clock()
        parts: list[bytes] = []
        at = start = groups[0].start
        syncs = 1
        for group in groups:
            if group.base != self._base:
                # The old segment is durable to its last byte before the new one exists: so damage in a
                # segment that has a successor is never a torn tail.
                if parts:
                    self._write(parts, at)
                self._leave_segment(group.start)
                self._enter_segment(group)
                syncs += 1
                parts = []
                at = group.start
            elif group.capacity > self._capacity:
                self._file.preallocate(HEADER_SIZE + group.capacity)
                self._capacity = group.capacity
            parts.append(encode_sync(self._marker, group.start, self._synced, now))
            parts.extend(group.parts)
        self._write(parts, at)
        end = groups[-1].end
        self._checkpoint = groups[-1].checkpoint
        if self.syncs and end - at <= _SMALL:
            self._write_ahead(end)
        began = time.perf_counter()
        if self.syncs:
            self._file.sync()
        seconds = time.perf_counter() - began
        self._durable = end
        if self.syncs:
            self._synced = end
        return Commit(len(groups), self._durable, self._durable - start, syncs, seconds)

    def seal(self) -> None:
        """Note, unsynced, how far all is durable, in the place that the next group's SYNC will take.

        After a kill the page cache survives, and with it the proof that the last group was synced: if it is
        found damaged then, that is corruption and not a torn tail. The manifest says the same from another
        file, for the case that the end of this one is cut off or zeroed.
        """
        self._write([encode_sync(self._marker, self._durable, self._synced, self._clock())], self._durable)
        self._manifest.note(self._base, self._synced, self._checkpoint)

    def finish(self) -> None:
        """Mark a clean end, give back the unused space, and close."""
        if self._synced < self._durable:
            self._file.sync()  # before the mark claims it
        mark = encode_sync(self._marker, self._durable, self._durable, self._clock(), clean=True)
        self._write([mark], self._durable)
        self._file.truncate(self._durable + len(mark) - self._base + HEADER_SIZE)
        self._file.sync()
        self._file.close()
        self._manifest.note(self._base, self._durable, self._checkpoint, sync=True)
        self._manifest.close()

    def abandon(self) -> None:
        self._file.close()
        self._manifest.close()

    def _write(self, parts: Sequence[bytes], position: int) -> None:
        self._file.pwrite(parts, position - self._base + HEADER_SIZE)

    def _write_ahead(self, end: int) -> None:
        """Zeros over the zeros that follow, unless the next small commit still has room among such."""
        if end + _SMALL > self._written:
            start = max(end, self._written)
            stop = min(end + _AHEAD, self._base + self._capacity)
            if start < stop:
                self._write([_ZEROS[: stop - start]], start)
                self._written = stop

    def _leave_segment(self, end: int) -> None:
        self._file.truncate(end - self._base + HEADER_SIZE)
        self._file.sync()
        self._file.close()
        self._durable = self._synced = end

    def _create(self, group: Group) -> tuple[File, SegmentHeader]:
        """The next segment; where the disk is full, as soon as it is not.

        Nothing of the group was written yet and no sync has failed, so waiting is safe: what was confirmed is
        durable, what was not stays in memory. Any other error, and any later one, ends the writer for good.
        """
        while True:
            try:
                created = create_segment(self._disk, group.base, self._epoch, group.capacity)
                self.stalled = ""
                return created
            except OSError as exc:
                if exc.errno != errno.ENOSPC or not self.waits or self.stop_waiting.is_set():
                    raise
                self.stalled = f"there is no room for the next segment: {exc}"
                with suppress(OSError):
                    self._disk.remove(segment_name(group.base) + TEMPORARY)
            self.stop_waiting.wait(_RETRY_SECONDS)

    def _enter_segment(self, group: Group) -> None:
        self._file, header = self._create(group)
        self._base = header.base
        self._marker = header.marker
        self._capacity = group.capacity
        self._written = header.base
        # Durable before a record in it can be reported: from then on the segment has to be there.
        self._manifest.note(self._base, self._synced, self._checkpoint, sync=True)


@dataclass(frozen=True, slots=True)
class OpenLog:
    """What opening found out: where the log ends, and a writer that stands there."""

    writer: LogWriter
    epoch: int
    segments: Sequence[tuple[int, int]]  # base and size, the last one being written
    capacity: int
    end: int
    checkpoint: Checkpoint | None = None

    @property
    def checkpoint_position(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.position
