"""Opens a journal in a folder.

Owns: the order of steps: lock the folder, survey it, yield checkpoint and tail, cut a torn tail, resume.
Must not touch: the judgement of damage (``recovery``) and the running journal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from .checkpoint import read_checkpoint
from .disk import Disk, OsDisk
from .epoch import next_epoch
from .file_journal import FileJournal
from .interface import Defer, JournalError, JournalFailed, Later, Recovery
from .manifest import Manifest
from .options import JournalOptions
from .records import MARKER_SIZE
from .recovery import Survey, TailWalk, survey
from .replica.mark import NAME as REPLICA_MARK
from .segment import FORMAT, HEADER_SIZE, TEMPORARY, SegmentHeader, create_segment
from .versions import version_name
from .writer import LogWriter, OpenLog

_COPY: Final = 1 << 20
_CLOCK_SKEW: Final = 10.0  # seconds; clocks that are kept with NTP do not differ by more

log = logging.getLogger(__name__)


def open_journal(
    folder: Path | str,
    options: JournalOptions | None = None,
    *,
    disk: Disk | None = None,
    defer: Defer | None = None,
    notify: Defer | None = None,
    later: Later | None = None,
    clock: Callable[[], float] = time.time,
) -> tuple[FileJournal, Recovery]:
    """Lock the folder and read what is in it.

    ``defer`` is ``loop.call_soon``, ``notify`` is ``loop.call_soon_threadsafe`` and ``later`` is
    ``loop.call_later``. Without ``later``, records without a waiting caller are committed at once; without
    the other two there are no threads, and ``flush`` does the work inline. JournalLocked and JournalCorrupt
    are raised here or, for damage in the tail, while ``Recovery.records`` is read.
    """
    if (defer is None) != (notify is None):
        raise ValueError("defer and notify belong together: both, or neither")
    options = options or JournalOptions()
    disk = disk or OsDisk(folder)
    disk.lock()
    try:
        names = disk.list()
        if REPLICA_MARK in names:
            raise JournalError(
                f"{disk.folder} is a copy of a log in PostgreSQL, which may hold more than the copy: start "
                "with journal.replica. To go on without PostgreSQL, stop the owner in good order and remove "
                f"the file {REPLICA_MARK} from its folder"
            )
        for name in names:
            if name.endswith(TEMPORARY):  # left by a crash: nothing refers to them
                disk.remove(name)
        found = survey(disk)
        epoch = next_epoch(disk, found.epoch)
    except OSError as exc:
        disk.unlock()
        raise JournalFailed(f"opening {disk.folder}: {exc}") from exc
    except BaseException:
        disk.unlock()
        raise
    for warning in found.warnings:
        log.error("journal opened with a warning", extra={"folder": disk.folder, "warning": warning})
    journal = FileJournal(disk, options, defer, notify, later, found.dropped)
    mark = found.checkpoint
    recovery = Recovery(
        checkpoint=iter(()) if mark is None else read_checkpoint(disk, mark.position),
        records=iter(()),
        epoch=epoch,
        warnings=found.warnings,
        writer=version_name(found.writer),
    )
    recovery.records = _recover(journal, disk, found, recovery, options.segment_bytes - HEADER_SIZE, clock)
    return journal, recovery


def _recover(
    journal: FileJournal,
    disk: Disk,
    found: Survey,
    recovery: Recovery,
    capacity: int,
    clock: Callable[[], float],
) -> Iterator[tuple[int, int, bytes]]:
    """Yield the records of the tail; after the last one, cut a torn tail and open the journal."""
    try:
        if found.segments:
            walk = TailWalk(disk, found)
            yield from walk.records()
            recovery.torn, recovery.clean = walk.torn, walk.clean
            _warn_of_clock(walk.last_time - clock())
            journal.opened(_resume(disk, found, walk, recovery.epoch, capacity, clock))
        else:
            recovery.clean = True
            header = SegmentHeader(0, recovery.epoch, disk.random_bytes(MARKER_SIZE))
            file = create_segment(disk, header, capacity)
            manifest = Manifest(disk, recovery.epoch)
            manifest.begin(0, 0, 0)
            writer = LogWriter(disk, file, header, capacity, 0, recovery.epoch, clock, manifest)
            journal.opened(OpenLog(writer, recovery.epoch, [(0, HEADER_SIZE + capacity)], capacity, 0))
    except OSError as exc:
        journal.release()
        raise JournalFailed(f"opening {disk.folder}: {exc}") from exc
    except JournalError:
        journal.release()
        raise


def _warn_of_clock(behind: float) -> None:
    """Leases, delays and times to live are kept as moments of the wall clock."""
    if behind > _CLOCK_SKEW:
        log.warning(
            "the clock was set back: leases, delays and times to live end later by as much",
            extra={"seconds": round(behind)},
        )


def _resume(
    disk: Disk, found: Survey, walk: TailWalk, epoch: int, capacity: int, clock: Callable[[], float]
) -> OpenLog:
    """Cut the torn tail off the last segment and return a log that continues at its end."""
    last = found.segments[-1]
    base = last.header.base
    usual, capacity = capacity, max(capacity, walk.end - base)
    file = disk.open(last.name, write=True)
    if walk.torn is not None:
        fields = {"where": walk.torn.where, "dropped_bytes": walk.torn.dropped_bytes}
        log.warning("torn tail cut", extra=fields)
        file.truncate(walk.end - base + HEADER_SIZE)
    file.preallocate(HEADER_SIZE + capacity)
    # Also without a torn tail: what the last owner wrote may have been read from the page cache only, and the
    # caller is about to act on it. It is written again because after a failed fsync of that owner the kernel
    # may consider the pages clean: a sync alone would succeed although the bytes never reached the disk.
    at = walk.synced
    while at < walk.end:
        data = file.pread(min(_COPY, walk.end - at), at - base + HEADER_SIZE)
        file.pwrite([data], at - base + HEADER_SIZE)
        at += len(data)
    file.sync()
    header = last.header
    sizes = [(segment.header.base, segment.size) for segment in found.segments[:-1]]
    if header.version < FORMAT:
        # Append nothing to an older version's segment: that version would not understand the new records.
        # It refuses the new segment by the format number in its header.
        file.truncate(walk.end - base + HEADER_SIZE)
        file.sync()
        file.close()
        if walk.end > base:
            sizes.append((base, walk.end - base + HEADER_SIZE))
            capacity = usual
        base = walk.end
        header = SegmentHeader(base, epoch, disk.random_bytes(MARKER_SIZE))
        file = create_segment(disk, header, capacity)
    manifest = Manifest(disk, epoch)
    manifest.begin(base, walk.end, found.tail_start)
    writer = LogWriter(disk, file, header, capacity, walk.end, epoch, clock, manifest)
    writer.seal()
    sizes.append((base, HEADER_SIZE + capacity))
    return OpenLog(writer, epoch, sizes, capacity, walk.end, found.checkpoint)
