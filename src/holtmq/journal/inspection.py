"""Looking at a journal from outside: every checksum, every record, what is wrong and where.

Owns: the report that ``holt journal check`` prints and the stream that ``dump`` prints. Reads only.
Must not touch: the files. ``repair`` acts on what is found here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final

from .checkpoint import checkpoint_name, position_of, read_checkpoint, verify_checkpoint
from .disk import Disk, File
from .interface import JournalCorrupt, TornTail
from .records import SYNC_SIZE, BadRecord, find_syncs, record_at
from .recovery import judge_end, walk_segment
from .segment import HEADER_SIZE, SegmentHeader, base_of, read_header, read_index, segment_name

_READ: Final = 4 << 20


class Where(Enum):
    """What kind of file a problem is in; it decides what can be done."""

    TAIL = "tail"  # behind the checkpoint: can be cut
    BODIES = "bodies"  # before the checkpoint: bodies of waiting messages
    CHECKPOINT = "checkpoint"
    UNKNOWN = "unknown"  # a header or an index: nobody knows what is in the file


@dataclass(frozen=True, slots=True)
class Problem:
    where: Where
    name: str
    offset: int
    position: int
    text: str


@dataclass(slots=True)
class SegmentReport:
    name: str
    base: int
    end: int
    size: int
    compacted: bool = False
    records: int = 0
    header: SegmentHeader | None = None
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class CheckReport:
    folder: str
    segments: list[SegmentReport] = field(default_factory=list)
    checkpoint: int | None = None
    checkpoint_records: int = 0
    torn: TornTail | None = None
    clean: bool = False
    problems: list[Problem] = field(default_factory=list)

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def tail_start(self) -> int:
        return self.checkpoint or 0


def check(disk: Disk) -> CheckReport:
    """Verify every byte that counts. Problems are listed, not raised."""
    report = CheckReport(disk.folder)
    names = disk.list()
    _check_checkpoints(disk, report, [at for at in map(position_of, names) if at is not None])
    bases = sorted(base for base in map(base_of, names) if base is not None)
    for index, base in enumerate(bases):
        following = bases[index + 1] if index + 1 < len(bases) else None
        segment = _check_segment(disk, report, base, following)
        report.segments.append(segment)
        report.problems += segment.problems
    _check_fit(report)
    report.problems.sort(key=lambda problem: problem.position)
    return report


def _check_checkpoints(disk: Disk, report: CheckReport, positions: list[int]) -> None:
    for position in sorted(positions, reverse=True):
        try:
            verify_checkpoint(disk, position)
        except JournalCorrupt as exc:
            name = checkpoint_name(position)
            report.problems.append(Problem(Where.CHECKPOINT, name, 0, position, str(exc)))
            continue
        if report.checkpoint is None:
            report.checkpoint = position
            report.checkpoint_records = sum(1 for _ in read_checkpoint(disk, position))


def _check_segment(disk: Disk, report: CheckReport, base: int, following: int | None) -> SegmentReport:
    name = segment_name(base)
    file = disk.open(name)
    try:
        size = file.size()
        segment = SegmentReport(name, base, base, size)
        try:
            header = segment.header = read_header(file, base, disk.folder)
            if header.compacted:
                _check_compacted(disk, file, header, segment)
                return segment
        except JournalCorrupt as exc:
            segment.problems.append(Problem(Where.UNKNOWN, name, 0, base, str(exc)))
            return segment
        _check_plain(file, header, segment, report, following)
        return segment
    finally:
        file.close()


def _check_plain(
    file: File, header: SegmentHeader, segment: SegmentReport, report: CheckReport, following: int | None
) -> None:
    stop = None if following is None else header.base + segment.size - HEADER_SIZE
    found = Salvage(header.base)
    try:
        segment.records = sum(1 for _ in salvage(file, header, header.base, stop, found))
        report.clean = found.clean
        segment.end = found.end
        if stop is None:
            report.torn = found.torn
    except JournalCorrupt as exc:  # a batch that its own checksum vouches for and that holds no records
        segment.problems.append(Problem(Where.UNKNOWN, segment.name, 0, header.base, str(exc)))
    for position, reason in found.damage:
        where = Where.TAIL if position >= report.tail_start else Where.BODIES
        offset = position - header.base + HEADER_SIZE
        segment.problems.append(Problem(where, segment.name, offset, position, reason))


@dataclass(slots=True)
class Salvage:
    """What a walk that goes on behind damage has met."""

    end: int
    clean: bool = False
    torn: TornTail | None = None
    damage: list[tuple[int, str]] = field(default_factory=list)  # position and reason


def salvage(
    file: File, header: SegmentHeader, start: int, stop: int | None, found: Salvage
) -> Iterator[tuple[int, int, bytes]]:
    """Every readable record of a plain segment; behind damage it goes on at the next genuine SYNC record."""
    at: int | None = start
    while at is not None:
        walk = yield from walk_segment(file, header, at, stop)
        found.end, found.clean = walk.position, walk.clean
        if walk.position == stop:
            return
        reason = walk.problem or "zeros where a record was"
        if stop is None:
            try:
                found.torn = judge_end(file, header, walk, "")
                return
            except JournalCorrupt:
                pass
        found.damage.append((walk.position, reason))
        at = _next_sync(file, header, walk.position + 1)
        if at is None and stop is not None:
            found.end = stop


def _next_sync(file: File, header: SegmentHeader, position: int) -> int | None:
    offset = position - header.base + HEADER_SIZE
    size = file.size()
    while offset < size:
        data = file.pread(_READ, offset)
        for mark in find_syncs(data, header.marker, header.base + offset - HEADER_SIZE):
            return mark.position
        if offset + len(data) >= size:
            return None
        offset += len(data) - SYNC_SIZE + 1
    return None


def _check_compacted(disk: Disk, file: File, header: SegmentHeader, segment: SegmentReport) -> None:
    segment.compacted = True
    segment.end = header.end
    table = read_index(file, header, disk.folder)
    for position, offset in zip(table.positions, table.offsets, strict=True):
        try:
            read_one(file, offset)
            segment.records += 1
        except BadRecord as exc:
            segment.problems.append(Problem(Where.BODIES, segment.name, offset, position, exc.reason))


def _check_fit(report: CheckReport) -> None:
    """Holes between the segments of the tail."""
    tail = [segment for segment in report.segments if segment.end > report.tail_start]
    for segment, follower in pairwise(tail):
        if segment.end != follower.base and not segment.problems and segment.header is not None:
            offset = segment.end - segment.base + HEADER_SIZE
            text = f"the log ends here, but the next segment starts at position {follower.base}"
            report.problems.append(Problem(Where.TAIL, segment.name, offset, segment.end, text))
    if report.segments and report.checkpoint is None and report.segments[0].base != 0:
        first = report.segments[0]
        text = "the log does not start at 0 and there is no checkpoint"
        report.problems.append(Problem(Where.UNKNOWN, first.name, 0, first.base, text))


def read_one(file: File, offset: int) -> tuple[int, bytes]:
    """The record at a file offset, whatever its size."""
    head = file.pread(8, offset)
    length = int.from_bytes(head[:4], "little")
    if len(head) < 8 or length > file.size() - offset:
        raise BadRecord(offset, "the record is cut short")
    return record_at(head + file.pread(length, offset + 8), 0)


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of a dump."""

    source: str  # file name
    position: int | None  # None inside a checkpoint
    kind: int
    payload: bytes


def dump(disk: Disk) -> Iterator[Listed]:
    """Every readable record: the newest checkpoint's, then the segments' in order of position."""
    names = disk.list()
    marks = [at for at in map(position_of, names) if at is not None]
    if marks:
        for kind, payload in read_checkpoint(disk, max(marks)):
            yield Listed(checkpoint_name(max(marks)), None, kind, payload)
    bases = sorted(base for base in map(base_of, names) if base is not None)
    for index, base in enumerate(bases):
        name = segment_name(base)
        file = disk.open(name)
        try:
            header = read_header(file, base, disk.folder)
            if header.compacted:
                table = read_index(file, header, disk.folder)
                for position, offset in zip(table.positions, table.offsets, strict=True):
                    yield Listed(name, position, *read_one(file, offset))
                continue
            stop = None if index + 1 == len(bases) else base + file.size() - HEADER_SIZE
            for position, kind, payload in salvage(file, header, base, stop, Salvage(base)):
                yield Listed(name, position, kind, payload)
        finally:
            file.close()
