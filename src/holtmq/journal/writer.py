"""The writer: makes groups durable that the journal hands over.

Owns: the open end of the log, the order write -> sync -> report, and creating the next segment.
Must not touch: the journal's state. It gets immutable groups and returns values, so that the same code can
run in a thread of its own or inline.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from .checkpoint import Checkpoint
from .disk import Disk, File
from .manifest import Manifest
from .mirror import Mirror
from .records import MARKER_SIZE, encode_sync
from .segment import HEADER_SIZE, TEMPORARY, SegmentHeader, create_segment, segment_name

# A sync of bytes in space that was reserved but never written also changes metadata, which needs a commit of
# the file system's own journal. So zeros are written ahead of small commits, many at once: 85 µs a sync
# instead of 135 (docs/decisions/0006). For a big commit the zeros would cost more than they save.
_AHEAD: Final = 512 << 10
_SMALL: Final = 64 << 10
_ZEROS: Final = bytes(_AHEAD)
_RETRY_SECONDS: Final = 0.25

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group:
    """Records that are handed over together: a stretch of log that starts with room for a SYNC record."""

    base: int  # of the segment it belongs to
    capacity: int
    start: int
    end: int
    parts: tuple[bytes, ...]  # everything after the SYNC record
    checkpoint: int = 0  # position of the newest published checkpoint


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


class BegunCommit(Protocol):
    """A commit whose request was sent."""

    def poll(self) -> Commit | None:
        """The commit, if an answer is there and reports success. Does not block."""

    def finish(self) -> Commit:
        """Wait for the answer, and handle one that reports no success."""
        ...


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
        manifest: Manifest | None = None,  # None with a replica: PostgreSQL knows what must be in the folder
    ) -> None:
        self.syncs = True  # False if the operator accepts loss at a power cut, or with a replica
        self.idle_seconds: float | None = None  # interval for calls of ``idle``
        self.poll_seconds = 0.0  # how long to poll for the answer to ``begin``; 0: it is not called
        self._disk = disk
        self._file = file
        self._header = header
        self._capacity = capacity
        self._durable = durable  # everything below was reported durable
        self._synced = durable  # everything below is on the disk: SYNC records may claim this
        self._written = durable  # bytes from here on may never have been written, not even zeros
        self._epoch = epoch
        self._clock = clock
        self._manifest = manifest
        self._checkpoint = 0
        self.waits = False  # whether to wait for disk space; only in a thread of its own
        self.stalled = ""
        self.stop_waiting = threading.Event()

    def commit(self, groups: Sequence[Group]) -> Commit:
        """Write all groups and sync once, plus once for each segment that becomes full."""
        return self.write(self.lay_out(groups), len(groups))

    def lay_out(self, groups: Sequence[Group]) -> list[Stretch]:
        """The bytes of these groups as they will be in the log, one stretch per segment."""
        now = self._clock()
        self._checkpoint = groups[-1].checkpoint
        header, synced = self._header, self._synced
        stretches: list[Stretch] = []
        for group in groups:
            if group.base != header.base:
                header = SegmentHeader(group.base, self._epoch, self._disk.random_bytes(MARKER_SIZE))
                synced = group.start  # the previous segment is synced before this one is created
            if not stretches or stretches[-1].header is not header:
                stretches.append(Stretch(header, group.capacity, group.start, group.start, []))
            stretch = stretches[-1]
            stretch.capacity, stretch.end = group.capacity, group.end
            stretch.parts.append(encode_sync(header.marker, group.start, synced, now))
            stretch.parts.extend(group.parts)
        return stretches

    def write(self, stretches: Sequence[Stretch], groups: int) -> Commit:
        """Write what ``lay_out`` returned at the end of the log, and sync it."""
        syncs = 1
        for stretch in stretches:
            if stretch.header is not self._header:
                # The old segment is durable to its last byte before the new one exists. So damage in a
                # segment that has a successor is never a torn tail.
                self._leave_segment(stretch.start)
                self._enter_segment(stretch)
                syncs += 1
            elif stretch.capacity > self._capacity:
                self._enlarge(stretch.capacity)
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
        """Write, without sync, a SYNC record with the durable position; the next group's SYNC replaces it.

        If the process is killed, the page cache survives, and with it the proof that the last group was
        synced: if that group is unreadable then, it is damage and not a torn tail. The manifest stores the
        same in another file, in case the end of this one is cut off or zeroed.
        """
        mark = encode_sync(self._header.marker, self._durable, self._synced, self._clock())
        self._write([mark], self._durable)
        self._note_extent()

    def begin(self, groups: Sequence[Group]) -> BegunCommit | None:
        """Begin to commit groups in the caller's thread; None if that might block. Nothing was done then."""
        return None

    def idle(self) -> None:
        """Called when nothing was handed over for ``idle_seconds``."""

    def closing(self) -> None:
        """Called in the loop's thread before ``finish``."""

    def finish(self) -> None:
        """Mark a clean end, free the unused space, and close."""
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
        """Write zeros after ``end``, unless enough written zeros are left for the next small commit."""
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

    def _enlarge(self, capacity: int) -> None:
        """Make room in the segment, which is still empty, for a record larger than a segment."""
        self._when_there_is_room(lambda: self._file.preallocate(HEADER_SIZE + capacity))
        self._capacity = capacity

    def _create(self, stretch: Stretch) -> File:
        """Create the next segment."""
        try:
            return create_segment(self._disk, stretch.header, stretch.capacity)
        except OSError:
            with suppress(OSError):
                self._disk.remove(segment_name(stretch.header.base) + TEMPORARY)
            raise

    def _when_there_is_room(self, reserve: Callable[[], T]) -> T:
        """Reserve space; while the disk is full, wait for it.

        Nothing was written to the segment yet and no sync has failed, so waiting is safe: what was confirmed
        is durable, the rest stays in memory. Any other error, and any later one, ends the writer permanently.
        """
        while True:
            try:
                reserved = reserve()
                self.stalled = ""
                return reserved
            except OSError as exc:
                is_full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
                if not is_full or not self.waits or self.stop_waiting.is_set():
                    raise
                self.stalled = f"there is no room for the next segment: {exc}"
            self.stop_waiting.wait(_RETRY_SECONDS)

    def _enter_segment(self, stretch: Stretch) -> None:
        self._file = self._when_there_is_room(lambda: self._create(stretch))
        self._header = stretch.header
        self._capacity = stretch.capacity
        self._written = stretch.header.base
        # Durable before a record in the segment can be reported: from then on the segment must exist.
        self._note_extent(sync=True)

    def _note_extent(self, *, sync: bool = False) -> None:
        if self._manifest is not None:
            self._manifest.note(self._header.base, self._synced, self._checkpoint, sync=sync)


@dataclass(frozen=True, slots=True)
class OpenLog:
    """The result of opening: where the log ends, and a writer at that position."""

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
