"""Inspects a journal without opening it: whether a broker would start, and every unreadable stretch.

Owns: the report that ``holt journal check`` prints. Whether a broker would start is decided by the code that
opens a journal (``recovery``). Must not touch: the files; it reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from .checkpoint import checkpoint_name, position_of, read_checkpoint, verify_checkpoint
from .disk import Disk, File
from .dropped import Dropped, read_dropped
from .interface import JournalCorrupt, JournalError, JournalTooNew, Recovery, TornTail
from .live import LivePositions
from .manifest import read_manifest
from .mending import Damage, examine
from .records import SYNC_SIZE, BadRecord, decode_sync, find_syncs, record_at
from .recovery import Survey, TailWalk, missing_last, survey, walk_segment
from .segment import (
    HEADER_SIZE,
    PositionTable,
    SegmentHeader,
    base_of,
    read_header,
    read_index,
    segment_name,
)
from .strays import WithoutFiles, find_strays
from .unplaced import REASON, find_unplaced
from .versions import version_name

# Replays the records as a broker does; JournalError when it refuses them. Returns the positions of the
# records that the state refers to.
Fold = Callable[[Recovery], "Sequence[array[int]]"]


class Where(Enum):
    """What is damaged; the repair depends on it."""

    RECORD = "record"  # a stretch of the log that cannot be read
    HEADER = "header"  # of a segment; it can be rebuilt
    SEGMENT = "segment"  # a file that is missing or entirely unreadable
    ABSENT = "absent"  # messages in queues that no file holds
    CHECKPOINT = "checkpoint"
    MANIFEST = "manifest"
    STRAY = "stray"  # a file that does not belong into the folder


@dataclass(frozen=True, slots=True)
class Problem:
    where: Where
    name: str
    offset: int
    position: int
    size: int
    text: str


@dataclass(slots=True)
class SegmentReport:
    name: str
    base: int
    end: int
    size: int
    compacted: bool = False
    records: int = 0
    header: SegmentHeader | None = None  # rebuilt if the one in the file is damaged
    header_damaged: bool = False
    damages: list[Damage] = field(default_factory=list)
    held: PositionTable | None = None  # compacted only
    absent: list[int] = field(default_factory=list)  # live positions that should be here


@dataclass(slots=True)
class CheckReport:
    folder: str
    refusal: str = ""  # why a broker would not start; "" when it would
    too_new: bool = False  # nothing is damaged: a later version of the program wrote it
    unopened: bool = False  # a file cannot be opened, so that nothing more is known
    warnings: list[str] = field(default_factory=list)
    segments: list[SegmentReport] = field(default_factory=list)
    checkpoint: int | None = None
    checkpoint_records: int = 0
    torn: TornTail | None = None
    clean: bool = False
    writer: str = ""
    problems: list[Problem] = field(default_factory=list)
    known_end: int = 0  # the log was durable up to here

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def tail_start(self) -> int:
        return self.checkpoint or 0


def check(disk: Disk, fold: Fold | None = None) -> CheckReport:
    """Find out whether a broker would start on this folder, and verify every byte.

    Problems are listed, not raised. ``fold`` gets the records, as a starting broker does.
    """
    report = CheckReport(disk.folder)
    live = _start(disk, report, fold)
    if report.too_new or report.unopened:
        return report
    strays = find_strays(disk)
    if strays:
        disk = WithoutFiles(disk, frozenset(stray.name for stray in strays))
        report.problems += [Problem(Where.STRAY, stray.name, 0, 0, 0, stray.reason) for stray in strays]
    try:
        _check_files(disk, report, live)
    except JournalTooNew as exc:  # beside a damaged file, which was found first
        report.refusal, report.too_new = str(exc), True
    return report


def _check_files(disk: Disk, report: CheckReport, live: Sequence[array[int]]) -> None:
    names = disk.list()
    _check_checkpoints(disk, report, [at for at in map(position_of, names) if at is not None])
    known, problem = read_manifest(disk)
    if known is not None:
        report.known_end = known.durable
    dropped = read_dropped(disk)
    headers = {base: _header(disk, base) for base in map(base_of, names) if base is not None}
    found = {base: header for base, (header, _) in headers.items()}
    for base in find_unplaced(disk, found, max(report.known_end, report.tail_start)):
        del headers[base]
        report.problems.append(Problem(Where.STRAY, segment_name(base), 0, 0, 0, REASON))
    bases = sorted(headers)
    if problem and any(header.version > 1 for header, _ in headers.values() if header is not None):
        report.problems.append(Problem(Where.MANIFEST, "manifest", 0, 0, 0, f"the manifest is {problem}"))
    _check_missing(disk, report, bases, missing_last(known, bases, report.tail_start), dropped)
    if report.checkpoint is None and any(header and header.compacted for header, _ in headers.values()):
        text = "segments were compacted, and the checkpoint that they belong to is gone"
        report.problems.append(Problem(Where.CHECKPOINT, "", 0, 0, 0, text))
    for index, base in enumerate(bases):
        following = bases[index + 1] if index + 1 < len(bases) else None
        report.segments.append(_check_segment(disk, report, base, headers[base], following, dropped))
    if not report.refusal:
        _check_live(report, LivePositions(live, 1 << 64), dropped)
    report.problems.sort(key=lambda problem: problem.position)


def _start(disk: Disk, report: CheckReport, fold: Fold | None) -> Sequence[array[int]]:
    """Do what ``open_journal`` and its caller would do, without writing; return the live positions."""
    live: Sequence[array[int]] = ()
    try:
        found = survey(disk)
        report.warnings = found.warnings
        report.writer = version_name(found.writer)
        walk = TailWalk(disk, found)
        recovery = view(disk, found, walk)
        if fold is None:
            recovery.drain()
        else:
            live = fold(recovery)
        report.torn, report.clean = walk.torn, walk.clean
    except JournalError as exc:
        report.refusal = str(exc)
        report.too_new = isinstance(exc, JournalTooNew)
    except OSError as exc:
        report.refusal = f"opening {disk.folder}: {exc}; make the file readable, or restore it from a backup"
        report.unopened = True
    return live


def view(disk: Disk, found: Survey, walk: TailWalk) -> Recovery:
    """The contents of the folder as a ``Recovery``, without opening it for writing."""
    mark = found.checkpoint
    return Recovery(
        checkpoint=iter(()) if mark is None else read_checkpoint(disk, mark.position),
        records=walk.records() if found.segments else iter(()),
        epoch=found.epoch,
        warnings=found.warnings,
        writer=version_name(found.writer),
    )


def _check_checkpoints(disk: Disk, report: CheckReport, positions: list[int]) -> None:
    for position in sorted(positions, reverse=True):
        try:
            verify_checkpoint(disk, position)
        except JournalCorrupt as exc:
            name = checkpoint_name(position)
            report.problems.append(Problem(Where.CHECKPOINT, name, 0, position, 0, str(exc)))
            continue
        if report.checkpoint is None:
            report.checkpoint = position
            report.checkpoint_records = sum(1 for _ in read_checkpoint(disk, position))


def _check_missing(
    disk: Disk, report: CheckReport, bases: list[int], last: int | None, dropped: Dropped
) -> None:
    """Report missing segments that the checkpoint or the manifest names; other gaps show as damage."""
    wanted: set[int] = set()
    if report.checkpoint is not None:
        needed = verify_checkpoint(disk, report.checkpoint).segments
        wanted.update(base for base in needed if base not in dropped)
    if last is not None:
        wanted.add(last)
    for base in sorted(wanted.difference(bases)):
        name = segment_name(base)
        report.problems.append(Problem(Where.SEGMENT, name, 0, base, 0, "the segment is missing"))
    if report.checkpoint is None and (not bases or bases[0]) and (bases or wanted):
        text = "the log does not start at 0 and there is no checkpoint"
        report.problems.append(Problem(Where.CHECKPOINT, "", 0, 0, 0, text))


def _header(disk: Disk, base: int) -> tuple[SegmentHeader | None, str]:
    """A segment's header, rebuilt from the rest of the file if damaged; and what is wrong with it."""
    file = disk.open(segment_name(base))
    try:
        try:
            return read_header(file, base, disk.folder), ""
        except JournalCorrupt as exc:
            return _made_again(file, base, disk.folder), str(exc)
    finally:
        file.close()


def _made_again(file: File, base: int, folder: str) -> SegmentHeader | None:
    copy = file.size() - HEADER_SIZE
    if copy > HEADER_SIZE:
        try:
            return read_header(file, base, folder, copy)  # of a compacted segment
        except JournalCorrupt:
            pass
    try:
        _, payload = record_at(file.pread(SYNC_SIZE, HEADER_SIZE), 0)
    except BadRecord:
        return None
    mark = decode_sync(payload, payload[:8], base)  # a plain segment begins with a SYNC record for its base
    return None if mark is None else SegmentHeader(base, 0, payload[:8])


def _check_segment(
    disk: Disk,
    report: CheckReport,
    base: int,
    headed: tuple[SegmentHeader | None, str],
    following: int | None,
    dropped: Dropped,
) -> SegmentReport:
    name = segment_name(base)
    header, problem = headed
    file = disk.open(name)
    try:
        segment = SegmentReport(name, base, base, file.size(), header=header, header_damaged=bool(problem))
        if header is None:
            report.problems.append(Problem(Where.SEGMENT, name, 0, base, 0, problem))
            return segment
        if problem:
            report.problems.append(Problem(Where.HEADER, name, 0, base, 0, problem))
        if header.compacted:
            _check_compacted(disk, file, header, segment, report, dropped)
        else:
            _check_plain(file, header, segment, report, following)
        for damage in segment.damages:
            # A repair overwrites what it gives up in a plain segment. If it is still there, a crash
            # interrupted that repair, and it has to be done again.
            if not header.compacted or damage.position not in dropped:
                offset = 0 if header.compacted else damage.position - base + HEADER_SIZE
                report.problems.append(
                    Problem(Where.RECORD, name, offset, damage.position, damage.size, damage.reason)
                )
        return segment
    finally:
        file.close()


def _check_plain(
    file: File, header: SegmentHeader, segment: SegmentReport, report: CheckReport, following: int | None
) -> None:
    stop = certain_end(file, header, segment.size, report, following)
    found = examine(file, header, header.base, stop, exact=following is None or stop == following)
    segment.damages, segment.records, segment.end = found.damages, found.records, stop
    if following is None:  # after that there may be records that were never reported durable
        walk = walk_segment(file, header, stop, None)
        while True:
            try:
                next(walk)
            except StopIteration as done:
                segment.end = max(stop, done.value.position)
                return
            except JournalCorrupt:
                return
            segment.records += 1


def certain_end(
    file: File, header: SegmentHeader, size: int, report: CheckReport, following: int | None
) -> int:
    """The position up to which a plain segment must be readable."""
    used = header.base + size - HEADER_SIZE
    if following is not None:
        # From the checkpoint on the log has no gaps. Before it, segments in between may have been deleted.
        return following if following > report.tail_start or used > following else used
    durable = max(report.known_end, header.base)
    at = HEADER_SIZE
    while at < size:
        data = file.pread(1 << 20, at)
        for mark in find_syncs(data, header.marker, header.base + at - HEADER_SIZE):
            durable = max(durable, mark.synced_upto)
        at += max(len(data) - SYNC_SIZE + 1, 1)
    return durable


def _check_live(report: CheckReport, live: LivePositions, dropped: Dropped) -> None:
    """Report messages of the queues that no file holds, such as those behind the end of a cut segment.

    Where a segment before the checkpoint ended is written nowhere: the next one may have been deleted.
    """
    bases = [segment.base for segment in report.segments]
    for segment, stop in zip(report.segments, [*bases, 1 << 64][1:], strict=True):
        if segment.header is None:
            continue
        table, end = segment.held, segment.end
        for position in live.between(segment.base, stop):
            is_held = position < end if table is None else table.offset_of(position) is not None
            if not is_held and position not in dropped:
                segment.absent.append(position)
        if segment.absent:
            text = f"the file does not hold {len(segment.absent)} of the messages that queues refer to"
            report.problems.append(Problem(Where.ABSENT, segment.name, 0, segment.absent[0], 0, text))


def _check_compacted(
    disk: Disk,
    file: File,
    header: SegmentHeader,
    segment: SegmentReport,
    report: CheckReport,
    dropped: Dropped,
) -> None:
    segment.compacted = True
    segment.end = header.end
    try:
        table = read_index(file, header, disk.folder)
    except JournalCorrupt as exc:
        if header.base not in dropped:
            size = header.end - header.base
            report.problems.append(Problem(Where.SEGMENT, segment.name, 0, header.base, size, str(exc)))
        return
    segment.held = table
    for position, offset in zip(table.positions, table.offsets, strict=True):
        try:
            read_one(file, offset)
            segment.records += 1
        except BadRecord as exc:
            segment.damages.append(Damage(position, 1, exc.reason))


def read_one(file: File, offset: int) -> tuple[int, bytes]:
    """The record at a file offset, of any size."""
    head = file.pread(8, offset)
    length = int.from_bytes(head[:4], "little")
    if len(head) < 8 or length > file.size() - offset:
        raise BadRecord(offset, "the record is cut short")
    return record_at(head + file.pread(length, offset + 8), 0)
