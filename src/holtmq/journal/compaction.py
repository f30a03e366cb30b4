"""Reclaims the disk space of messages that are no longer needed.

Owns: the decision (delete, compact, leave) for each segment before a checkpoint, and the rewrite.
Must not touch: the tail after the checkpoint, and positions: a live record never changes its position.
If the state refers to a record that the log does not hold, the two contradict, and reclaiming stops.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from .disk import Disk
from .dropped import Dropped
from .interface import PositionNotHeld, RecordUnreadable
from .live import LivePositions, times_in
from .reader import LogReader
from .records import encode
from .segment import (
    HEADER_SIZE,
    TEMPORARY,
    SegmentHeader,
    encode_index,
    read_header,
    segment_name,
)

_SAMPLES: Final = 64
_COMPARED: Final = 100  # arrays that are searched for a sampled record
_SLICE: Final = 256  # records per write; each write releases the GIL for the event loop's thread


@dataclass(frozen=True, slots=True)
class SealedSegment:
    base: int
    end: int
    size: int  # of the file


@dataclass(frozen=True, slots=True)
class Standing:
    """A published checkpoint, and what it needs of the segments before its position."""

    position: int
    live: LivePositions | None  # None: an earlier process made it, and only ``segments`` are known
    segments: frozenset[int] = frozenset()

    def may_need(self, segment: SealedSegment) -> bool:
        if segment.end > self.position:
            return True
        if self.live is None:
            return segment.base in self.segments
        return self.live.any_between(segment.base, segment.end)


@dataclass(frozen=True, slots=True)
class Keeping:
    """The two checkpoints that are kept, and the stretches that a repair has given up."""

    state: Standing
    older: Standing | None
    dropped: Dropped

    def live(self) -> LivePositions:
        known = [checkpoint.live for checkpoint in (self.state, self.older) if checkpoint is not None]
        first, *others = [live for live in known if live is not None]
        return first.joined(others[0]) if others else first


@dataclass(slots=True)
class Reclaimed:
    deleted: list[int] = field(default_factory=list)
    compacted: dict[int, int] = field(default_factory=dict)  # base -> new size
    freed_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def reclaim(
    disk: Disk,
    segments: Sequence[SealedSegment],
    keeping: Keeping,
    threshold: float,
    stopping: Callable[[], bool],
) -> Reclaimed:
    """Delete the segments that neither checkpoint needs; compact those with a live share below ``threshold``.

    Live are the records that either checkpoint refers to. The segments that the older checkpoint would
    replay are not touched.
    """
    done = Reclaimed()
    state, older, live = keeping.state, keeping.older, keeping.live()
    assert older is not None
    segments = [segment for segment in segments if segment.end <= older.position]
    dead: list[SealedSegment] = []
    sparse: list[SealedSegment] = []
    reader = LogReader(disk, [segment.base for segment in segments], 1, keeping.dropped)
    try:
        for segment in segments:
            if not state.may_need(segment) and not older.may_need(segment):
                dead.append(segment)
                continue
            if older.live is None and older.may_need(segment):
                continue  # an earlier process made that checkpoint: which records it needs is unknown
            try:
                if _live_share(reader, segment, live) < threshold:
                    sparse.append(segment)
            except PositionNotHeld:
                raise
            except Exception as exc:  # damaged: leave it; reading that record raises the error
                done.problems.append(f"{segment_name(segment.base)}: {exc}")
        _delete(disk, dead, done)
        for segment in sparse:
            if stopping():
                break
            try:
                size = _compact(disk, reader, segment, live)
            except PositionNotHeld:
                raise
            except Exception as exc:
                # A live record that cannot be read, or no space: the old file stays, and reading that record
                # raises the error. The log itself is untouched.
                done.problems.append(f"{segment_name(segment.base)}: {exc}")
                continue
            done.compacted[segment.base] = size
            done.freed_bytes += segment.size - size
    except PositionNotHeld as exc:
        done.problems.append(f"no space is given back, the state refers to a record that is not there: {exc}")
    finally:
        reader.close()
    return done


def _delete(disk: Disk, dead: Sequence[SealedSegment], done: Reclaimed) -> None:
    """Delete what can be deleted. One file that cannot be must not keep the others, now or the next time."""
    for segment in dead:
        try:
            with suppress(FileNotFoundError):
                disk.remove(segment_name(segment.base))
        except OSError as exc:
            done.problems.append(f"{segment_name(segment.base)}: {exc}")
            continue
        done.deleted.append(segment.base)
        done.freed_bytes += segment.size
    if done.deleted:
        try:
            disk.sync_dir()
        except OSError as exc:  # they may come back after a power cut, and are deleted then
            done.problems.append(f"after deleting segments: {exc}")


def _live_share(reader: LogReader, segment: SealedSegment, live: LivePositions) -> float:
    """Estimate from a sample of live records: reading all of them would cost as much as compacting.

    Most records are in several arrays, of both checkpoints and of several queues. Each counts once.
    """
    parts = list(live.slices(segment.base, segment.end))
    count = sampled = 0
    sampled_bytes = 0.0
    for positions, first, stop in parts:
        count += stop - first
        for index in range(first, stop, max((stop - first) // _SAMPLES, 1)):
            position = positions[index]
            try:
                sampled_bytes += reader.record_size(position) / times_in(position, parts[:_COMPARED])
            except RecordUnreadable as exc:
                if not exc.dropped:
                    raise
            sampled += 1
            if sampled >= 4 * _SAMPLES:
                break
    return count * (sampled_bytes / max(sampled, 1)) / max(segment.size - HEADER_SIZE, 1)


def _compact(disk: Disk, reader: LogReader, segment: SealedSegment, live: LivePositions) -> int:
    """Write the live records to a new file and rename it over the segment; return the new size."""

    def records() -> Iterator[tuple[int, int, bytes]]:
        wanted = live.between(segment.base, segment.end)
        while run := list(islice(wanted, _SLICE)):
            try:
                read = [*zip(run, reader.read_many(run), strict=True)]
            except RecordUnreadable:
                read = [*_but_dropped(reader, run)]
            for position, (kind, payload) in read:
                yield position, kind, payload

    old = disk.open(segment_name(segment.base))
    try:
        before = read_header(old, segment.base, disk.folder)
    finally:
        old.close()
    size = write_compacted(disk, before, segment.end, records())
    reader.forget(segment.base, gone=False)
    return size


def _but_dropped(reader: LogReader, run: list[int]) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Skip records that a repair has given up; raise for any other record that cannot be read."""
    for position in run:
        try:
            yield position, reader.read(position)
        except RecordUnreadable as exc:
            if not exc.dropped:
                raise


def write_compacted(
    disk: Disk, before: SegmentHeader, end: int, records: Iterator[tuple[int, int, bytes]]
) -> int:
    """Replace the segment with header ``before`` by one that holds only these records; return its size.

    Index and header are stored twice: a flipped bit in one would cost every record of the segment.
    """
    name = segment_name(before.base)
    positions = array("Q")
    offsets = array("Q")
    offset = HEADER_SIZE
    file = disk.open(name + TEMPORARY, create=True)
    try:
        while run := list(islice(records, _SLICE)):
            parts: list[bytes] = []
            start = offset
            for position, kind, payload in run:
                record = encode(kind, payload)
                parts.append(record)
                positions.append(position)
                offsets.append(offset)
                offset += len(record)
            file.pwrite([b"".join(parts)], start)
        index = encode_index(positions, offsets)
        count = len(positions)
        header = SegmentHeader(before.base, before.epoch, before.marker, True, end, offset, count).encode()
        file.pwrite([index, index, header], offset)
        file.pwrite([header], 0)
        file.sync()
    except BaseException:
        file.close()
        disk.remove(name + TEMPORARY)
        raise
    file.close()
    disk.rename(name + TEMPORARY, name)
    disk.sync_dir()
    return offset + 2 * len(index) + HEADER_SIZE
