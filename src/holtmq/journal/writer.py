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
from .mirror import Mirror
from .records import MARKER_SIZE, encode_sync
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


@dataclass(slots=True)
class Stretch:
    """Consecutive bytes of the log, all in one segment."""

    header: SegmentHeader
    capacity: int  # of the segment, in bytes after its header
    start: int
    end: int
    parts: list[bytes]


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
        manifest: Manifest | None = None,  # None where another place says what must be in the folder
    ) -> None:
        self.syncs = True  # False only where the operator gave up on power cuts
        self.idle_seconds: float | None = None  # how often ``idle`` wants to be called
        self._disk = disk
        self._file = file
        self._header = header
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
        return self.write(self.lay_out(groups), len(groups))

    def lay_out(self, groups: Sequence[Group]) -> list[Stretch]:
        """The bytes of these groups as they will lie in the log, one stretch for each segment touched."""
        now = self._clock()
        self._checkpoint = groups[-1].checkpoint
        header, synced = self._header, self._synced
        stretches: list[Stretch] = []
        for group in groups:
            if group.base != header.base:
                header = SegmentHeader(group.base, self._epoch, self._disk.random_bytes(MARKER_SIZE))
                synced = group.start  # the segment before is synced whole when this one is made
            if not stretches or stretches[-1].header is not header:
                stretches.append(Stretch(header, group.capacity, group.start, group.start, []))
            stretch = stretches[-1]
            stretch.capacity, stretch.end = group.capacity, group.end
            stretch.parts.append(encode_sync(header.marker, group.start, synced, now))
            stretch.parts.extend(group.parts)
        return stretches

    def write(self, stretches: Sequence[Stretch], groups: int) -> Commit:
        """Write what ``lay_out`` returned, next, and sync it."""
        syncs = 1
        for stretch in stretches:
            if stretch.header is not self._header:
                # The old segment is durable to its last byte before the new one exists: so damage in a
                # segment that has a successor is never a torn tail.
                self._leave_segment(stretch.start)
                self._enter_segment(stretch)
                syncs += 1
            elif stretch.capacity > self._capacity:
                self._file.preallocate(HEADER_SIZE + stretch.capacity)
                self._capacity = stretch.capacity
            self._write(stretch.parts, stretch.start)
        last = stretches[-1]
        if self.syncs and last.end - last.start <= _SMALL:
            self._write_ahead(last.end)
        began = time.perf_counter()
        if self.syncs:
            self._file.sync()
        seconds = time.perf_counter() - began
        self._durable = last.end
        if self.syncs:
            self._synced = last.end
        return Commit(groups, last.end, last.end - stretches[0].start, syncs, seconds)

    def seal(self) -> None:
        """Note, unsynced, how far all is durable, in the place that the next group's SYNC will take.

        After a kill the page cache survives, and with it the proof that the last group was synced: if it is
        found damaged then, that is corruption and not a torn tail. The manifest says the same from another
        file, for the case that the end of this one is cut off or zeroed.
        """
        mark = encode_sync(self._header.marker, self._durable, self._synced, self._clock())
        self._write([mark], self._durable)
        self._note_extent()

    def idle(self) -> None:
        """Nothing was handed over for ``idle_seconds``."""

    def closing(self) -> None:
        """From the loop's thread: ``finish`` comes next."""

    def finish(self) -> None:
        """Mark a clean end, give back the unused space, and close."""
        if self._synced < self._durable:
            self._file.sync()  # before the mark claims it
        mark = encode_sync(self._header.marker, self._durable, self._durable, self._clock(), clean=True)
        self._write([mark], self._durable)
        self._file.truncate(self._durable + len(mark) - self._header.base + HEADER_SIZE)
        self._file.sync()
        self._file.close()
        self._synced = self._durable
        self._note_extent(sync=True)
        self._close_manifest()

    def abandon(self) -> None:
        self._file.close()
        self._close_manifest()

    def _close_manifest(self) -> None:
        if self._manifest is not None:
            self._manifest.close()

    def _write(self, parts: Sequence[bytes], position: int) -> None:
        self._file.pwrite(parts, position - self._header.base + HEADER_SIZE)

    def _write_ahead(self, end: int) -> None:
        """Zeros over the zeros that follow, unless the next small commit still has room among such."""
        if end + _SMALL > self._written:
            start = max(end, self._written)
            stop = min(end + _AHEAD, self._header.base + self._capacity)
            if start < stop:
                self._write([_ZEROS[: stop - start]], start)
                self._written = stop

    def _leave_segment(self, end: int) -> None:
        self._file.truncate(end - self._header.base + HEADER_SIZE)
        self._file.sync()
        self._file.close()
        self._durable = self._synced = end

    def _create(self, stretch: Stretch) -> File:
        """The next segment; where the disk is full, as soon as it is not.

        Nothing of it was written yet and no sync has failed, so waiting is safe: what was confirmed is
        durable, what was not stays in memory. Any other error, and any later one, ends the writer for good.
        """
        while True:
            try:
                created = create_segment(self._disk, stretch.header, stretch.capacity)
                self.stalled = ""
                return created
            except OSError as exc:
                if exc.errno != errno.ENOSPC or not self.waits or self.stop_waiting.is_set():
                    raise
                self.stalled = f"there is no room for the next segment: {exc}"
                with suppress(OSError):
                    self._disk.remove(segment_name(stretch.header.base) + TEMPORARY)
            self.stop_waiting.wait(_RETRY_SECONDS)

    def _enter_segment(self, stretch: Stretch) -> None:
        self._file = self._create(stretch)
        self._header = stretch.header
        self._capacity = stretch.capacity
        self._written = stretch.header.base
        # Durable before a record in it can be reported: from then on the segment has to be there.
        self._note_extent(sync=True)

    def _note_extent(self, *, sync: bool = False) -> None:
        if self._manifest is not None:
            self._manifest.note(self._header.base, self._synced, self._checkpoint, sync=sync)


@dataclass(frozen=True, slots=True)
class OpenLog:
    """What opening found out: where the log ends, and a writer that stands there."""

    writer: LogWriter
    epoch: int
    segments: Sequence[tuple[int, int]]  # base and size, the last one being written
    capacity: int
    end: int
    checkpoint: Checkpoint | None = None
    mirror: Mirror | None = None

    @property
    def checkpoint_position(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.position
