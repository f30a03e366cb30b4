"""Reads the folder at opening: chooses the checkpoint, and walks the tail after it.

Owns: the decision between a torn tail (cut) and damage (refused), and the walk over the tail.
Must not touch: the disk's contents. It says what should be cut; ``opening`` or ``repair`` cuts it.

The rule for a bad record at position X in the last segment: if any genuine SYNC record, or the manifest, says
that the log was durable beyond X, then X was once whole, and this is damage. Otherwise nothing from X on was
reported durable. In any other segment it is damage: a segment is synced before its successor is created.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, field
from typing import Final

from .checkpoint import Checkpoint, checkpoint_name, position_of, verify_checkpoint
from .checksum import crc32
from .disk import Disk, File
from .dropped import Dropped, read_dropped
from .interface import FIRST_FREE_KIND, LOST_IN_BATCH, JournalCorrupt, TornTail
from .manifest import Known, read_manifest
from .records import (
    BATCH,
    FILLER,
    FRAME_SIZE,
    LOST,
    PREFIX,
    PREFIX_SIZE,
    SYNC,
    SYNC_SIZE,
    BadRecord,
    decode_sync,
    find_syncs,
    inner_records,
)
from .segment import HEADER_SIZE, SegmentHeader, base_of, read_header, segment_name
from .strays import refuse_foreign

_READ: Final = 1 << 20
_ZEROS: Final = bytes(_READ)


@dataclass(frozen=True, slots=True)
class FoundSegment:
    header: SegmentHeader
    size: int

    @property
    def name(self) -> str:
        return segment_name(self.header.base)


@dataclass(frozen=True, slots=True)
class Survey:
    """The headers of everything found, and where the tail starts."""

    segments: list[FoundSegment]  # by base
    checkpoint: Checkpoint | None
    epoch: int  # the highest seen in any file
    warnings: list[str]
    known: Known | None = None  # from the manifest
    dropped: Dropped = field(default_factory=Dropped)  # given up by a repair

    @property
    def writer(self) -> int:
        """The newest version of the program that wrote any of it."""
        written = [segment.header.writer for segment in self.segments]
        if self.checkpoint is not None:
            written.append(self.checkpoint.writer)
        if self.known is not None:
            written.append(self.known.writer)
        return max(written, default=0)

    @property
    def tail_start(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.position

    @property
    def tail(self) -> list[FoundSegment]:
        """The segments from the one that holds the start of the tail."""
        first = 0
        for index, segment in enumerate(self.segments):
            if segment.header.base <= self.tail_start:
                first = index
        return self.segments[first:]


def advice(folder: str) -> str:
    return f"`holt journal check {folder}` shows the damage, `holt journal repair {folder}` cuts it away"


def survey(disk: Disk) -> Survey:
    """Read every header and choose a checkpoint; JournalCorrupt when the files do not fit together."""
    refuse_foreign(disk)
    bases: list[int] = []
    marks: list[int] = []
    for name in disk.list():
        base, mark = base_of(name), position_of(name)
        if base is not None:
            bases.append(base)
        elif mark is not None:
            marks.append(mark)
    segments = [_found(disk, base) for base in sorted(bases)]
    warnings: list[str] = []
    checkpoint = _choose_checkpoint(disk, sorted(marks, reverse=True), warnings)
    if checkpoint is None and warnings:
        _needs_no_checkpoint(disk.folder, segments, warnings)
    epoch = max([segment.header.epoch for segment in segments], default=0)
    if checkpoint is not None:
        epoch = max(epoch, checkpoint.epoch)
    known = _known(disk, segments, checkpoint, warnings)
    found = Survey(segments, checkpoint, epoch, warnings, known, read_dropped(disk))
    _check_fit(disk.folder, found)
    return found


def _known(
    disk: Disk, segments: list[FoundSegment], checkpoint: Checkpoint | None, warnings: list[str]
) -> Known | None:
    """Read the manifest; warn if it is missing or damaged, or names a checkpoint that is missing."""
    known, problem = read_manifest(disk)
    if problem and any(segment.header.version > 1 for segment in segments):
        text = (
            "whether the last segment is there cannot be told" if known is None else "its other copy counts"
        )
        warnings.append(f"the manifest of {disk.folder} is {problem}: {text}")
    if known is not None and known.checkpoint > (0 if checkpoint is None else checkpoint.position):
        name = checkpoint_name(known.checkpoint)
        if name not in disk.list():
            instead = "the whole log" if checkpoint is None else checkpoint_name(checkpoint.position)
            warnings.append(f"checkpoint {disk.folder}/{name} is missing; fell back to {instead}")
    return known


def _found(disk: Disk, base: int) -> FoundSegment:
    file = disk.open(segment_name(base))
    try:
        return FoundSegment(read_header(file, base, disk.folder), file.size())
    finally:
        file.close()


def _choose_checkpoint(disk: Disk, newest_first: list[int], warnings: list[str]) -> Checkpoint | None:
    problem: JournalCorrupt | None = None
    for position in newest_first:
        try:
            checkpoint = verify_checkpoint(disk, position)
        except JournalCorrupt as exc:
            problem = problem or exc
            continue
        if problem is not None:
            # Safe: the log after the older checkpoint and its messages are kept for this case.
            warnings.append(f"{problem}; fell back to {checkpoint_name(position)}")
        return checkpoint
    if problem is not None:
        warnings.append(f"{problem}; the whole log is replayed instead")
    return None


def _needs_no_checkpoint(folder: str, segments: list[FoundSegment], warnings: list[str]) -> None:
    """Every checkpoint is damaged: raise unless the whole log is there from position 0."""
    if not segments or segments[0].header.base or any(segment.header.compacted for segment in segments):
        reason = warnings[-1].removesuffix("; the whole log is replayed instead")
        raise JournalCorrupt(f"{reason}, and there is no other; {advice(folder)}")


def missing_last(known: Known | None, bases: Collection[int], checkpoint: int) -> int | None:
    """The segment that the manifest calls the last one, if it is missing and was not deleted since.

    The manifest may be older than the log: it is synced at each new segment, and if that copy of it is
    damaged, the other one may name a segment that later checkpoints made needless. Then the log goes on in
    a segment that begins at or before the checkpoint.
    """
    if known is None or known.last_base in bases:
        return None
    return None if any(known.last_base < base <= checkpoint for base in bases) else known.last_base


def _check_fit(folder: str, found: Survey) -> None:
    bases = {segment.header.base for segment in found.segments}
    last = missing_last(found.known, bases, found.tail_start)
    if found.known is not None and last is not None:
        name = segment_name(last)
        raise JournalCorrupt(
            f"segment {folder}/{name} is missing: the log went on there, and was durable up to position "
            f"{found.known.durable}; {advice(folder)}"
        )
    if not found.segments:
        if found.checkpoint is not None:
            raise JournalCorrupt(f"{folder} holds a checkpoint but no segments; {advice(folder)}")
        return
    if found.checkpoint is None:
        if 0 not in bases:
            raise JournalCorrupt(
                f"{folder}: the log does not start at 0 and there is no checkpoint; {advice(folder)}"
            )
    else:
        lost = [base for base in found.checkpoint.segments if base not in bases and base not in found.dropped]
        if lost:
            raise JournalCorrupt(
                f"segment {folder}/{segment_name(lost[0])} is missing; the checkpoint needs it; "
                f"{advice(folder)}"
            )
    tail = found.tail
    if tail[0].header.base > found.tail_start:
        raise JournalCorrupt(
            f"{folder}: no segment holds position {found.tail_start}, where the tail starts; {advice(folder)}"
        )
    for segment in tail:
        if segment.header.compacted:
            raise JournalCorrupt(
                f"segment {folder}/{segment.name} was compacted but its checkpoint is gone; {advice(folder)}"
            )


@dataclass(slots=True)
class Walk:
    """Where a walk over one segment stopped and why."""

    position: int
    problem: str | None = None  # None: zeros or the expected end
    clean: bool = False  # the last record says that the journal was closed properly
    last_synced: int = 0  # the highest durable position in any SYNC record read
    last_time: float = 0.0  # the latest wall clock in them


def walk_segment(
    file: File, header: SegmentHeader, start: int, stop: int | None
) -> Generator[tuple[int, int, bytes], None, Walk]:
    """Yield a plain segment's records from ``start`` up to ``stop``, or to the first that is not intact."""
    limit = header.base + file.size() - HEADER_SIZE if stop is None else stop
    walk = Walk(start)
    position = start
    want = _READ
    unpack = PREFIX.unpack_from
    while position < limit:
        asked = min(want, limit - position)
        data = file.pread(asked, position - header.base + HEADER_SIZE)
        size = len(data)
        at = 0
        want = _READ
        while at + FRAME_SIZE <= size:
            length, checksum = unpack(data, at)
            body = at + PREFIX_SIZE
            end = body + length
            if end > size:
                break
            if length == 0:
                walk.position = position + at
                return walk
            if crc32(data[body:end], length) != checksum:
                walk.position = position + at
                walk.problem = "the checksum does not match"
                return walk
            kind = data[body]
            if kind >= FIRST_FREE_KIND:
                walk.clean = False
                yield position + at, kind, data[body + 1 : end]
            elif kind == SYNC:
                mark = decode_sync(data[body + 1 : end], header.marker, position + at)
                if mark is None:
                    walk.position = position + at
                    walk.problem = "a SYNC record that was written for another place"
                    return walk
                walk.clean = mark.clean
                walk.last_synced = max(walk.last_synced, mark.synced_upto)
                walk.last_time = max(walk.last_time, mark.wall_time)
            elif kind == FILLER:
                walk.clean = False
            elif kind == BATCH:
                walk.clean = False
                yield from _batch(data[body + 1 : end], position + body + 1)
            elif kind == LOST:
                walk.clean = False
                yield position + at, LOST, data[body + 1 : end]
            else:
                walk.position = position + at
                walk.problem = f"kind {kind} is unknown"
                return walk
            at = end
        position += at
        if at == 0:
            # Not one whole record in what was read: it is a long record, or its length is garbage.
            if size < FRAME_SIZE:
                walk.problem = None if not any(data) else "the record is cut short"
                break
            need = PREFIX_SIZE + unpack(data, 0)[0]
            if size < asked:  # the file is shorter than expected: a second read would return the same
                walk.problem = "the record is cut short"
                break
            if need <= size or position + need > limit:
                walk.problem = f"a length of {need - PREFIX_SIZE} is impossible here"
                break
            want = need
    walk.position = position
    return walk


def _batch(payload: bytes, position: int) -> Iterator[tuple[int, int, bytes]]:
    try:
        records = list(inner_records(payload, position))
        if any(kind == LOST for _, kind, _ in records):
            # Repaired: LOST before and after it, so that its records are not connected with their neighbours.
            yield position, LOST, b""
            yield from ((at, LOST_IN_BATCH if kind == LOST else kind, body) for at, kind, body in records)
            yield position, LOST, b""
            return
        yield from records
    except BadRecord as exc:  # the batch's checksum was right: not damage by the disk, and nothing to cut
        raise JournalCorrupt(f"the batch at position {position} holds what is no record: {exc}") from None


def judge_end(file: File, header: SegmentHeader, walk: Walk, folder: str, known: int = 0) -> TornTail | None:
    """Decide where the last segment's walk stopped: at the end (None), a torn tail, or damage (raised).

    ``known``: up to where the log was durable, according to the manifest.
    """
    offset = walk.position - header.base + HEADER_SIZE
    size = file.size()
    where = f"segment {folder}/{segment_name(header.base)}"
    last_used = at = offset
    durable = max(walk.last_synced, known)
    while at < size:
        # Overlap by less than one SYNC record, so that none is missed between two reads.
        data = file.pread(_READ, at)
        if data != _ZEROS[: len(data)]:
            last_used = at + len(data.rstrip(b"\0"))
            for mark in find_syncs(data, header.marker, header.base + at - HEADER_SIZE):
                durable = max(durable, mark.synced_upto)
        if at + len(data) >= size:
            break
        at += len(data) - SYNC_SIZE + 1
    if durable > walk.position:
        reason = walk.problem or "zeros where a record was"
        raise JournalCorrupt(
            f"{where} is damaged at offset {offset} (position {walk.position}): {reason}, and the log was "
            f"durable up to position {durable}; {advice(folder)}"
        )
    if last_used == offset:
        return None
    return TornTail(walk.position, last_used - offset, f"{where}, offset {offset}")


@dataclass(slots=True)
class TailWalk:
    """The walk over all segments of the tail. The fields are known when ``records`` is exhausted."""

    disk: Disk
    found: Survey
    end: int = 0
    synced: int = 0  # durable below this; from here to the end perhaps only in the page cache
    torn: TornTail | None = None
    clean: bool = False
    last_time: float = 0.0  # the wall clock of the last owner, as far as the log tells

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        tail = self.found.tail
        start = self.found.tail_start
        for index, segment in enumerate(tail):
            last = index + 1 == len(tail)
            stop = None if last else tail[index + 1].header.base
            first = max(start, segment.header.base)
            file = self.disk.open(segment.name)
            try:
                walk = yield from walk_segment(file, segment.header, first, stop)
                self.last_time = max(self.last_time, walk.last_time)
                if last:
                    known = 0 if self.found.known is None else self.found.known.durable
                    self.torn = judge_end(file, segment.header, walk, self.disk.folder, known)
                    self.synced = max(walk.last_synced, first)
                    self.end, self.clean = walk.position, walk.clean and self.torn is None
                elif walk.position != stop:
                    raise self._damage(segment, walk, stop)
            finally:
                file.close()

    def _damage(self, segment: FoundSegment, walk: Walk, stop: int | None) -> JournalCorrupt:
        folder = self.disk.folder
        offset = walk.position - segment.header.base + HEADER_SIZE
        reason = walk.problem or f"it ends here, but the next segment starts at position {stop}"
        return JournalCorrupt(
            f"segment {folder}/{segment.name} is damaged at offset {offset} "
            f"(position {walk.position}): {reason}; {advice(folder)}"
        )
