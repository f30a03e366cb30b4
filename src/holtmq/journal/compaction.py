"""Giving back the space of messages that are gone.

Owns: the decision (delete, compact, leave) for each segment before a checkpoint, and the rewrite.
Must not touch: the tail after the checkpoint, and positions: a live record keeps its position for ever.
A state that refers to a record the log does not hold contradicts the log: then nothing at all is given back.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from .disk import Disk
from .interface import PositionNotHeld
from .live import LivePositions
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
_SLICE: Final = 256  # records between two writes; each write lets the event loop's thread run


@dataclass(frozen=True, slots=True)
class SealedSegment:
    base: int
    end: int
    size: int  # of the file


@dataclass(slots=True)
class Reclaimed:
    deleted: list[int] = field(default_factory=list)
    compacted: dict[int, int] = field(default_factory=dict)  # base -> new size
    freed_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def reclaim(
    disk: Disk,
    segments: Sequence[SealedSegment],
    live: LivePositions,
    threshold: float,
    stopping: Callable[[], bool],
) -> Reclaimed:
    """Delete the segments without a live position; compact those whose live share is below ``threshold``."""
    done = Reclaimed()
    dead: list[SealedSegment] = []
    sparse: list[SealedSegment] = []
    reader = LogReader(disk, [segment.base for segment in segments], handles=1)
    try:
        for segment in segments:
            if not live.any_between(segment.base, segment.end):
                dead.append(segment)
                continue
            try:
                if _live_share(reader, segment, live) < threshold:
                    sparse.append(segment)
            except PositionNotHeld:
                raise
            except Exception as exc:  # damaged: it stays as it is, and whoever reads that record is told
                done.problems.append(f"{segment_name(segment.base)}: {exc}")
        for segment in dead:
            disk.remove(segment_name(segment.base))
            done.deleted.append(segment.base)
            done.freed_bytes += segment.size
        if dead:
            disk.sync_dir()
        for segment in sparse:
            if stopping():
                break
            try:
                size = _compact(disk, reader, segment, live)
            except PositionNotHeld:
                raise
            except Exception as exc:
                # A live record that cannot be read, or no space: the old file stays as it is, and whoever
                # reads that record is told. The log itself is untouched.
                done.problems.append(f"{segment_name(segment.base)}: {exc}")
                continue
            done.compacted[segment.base] = size
            done.freed_bytes += segment.size - size
    except PositionNotHeld as exc:
        done.problems.append(f"no space is given back, the state refers to a record that is not there: {exc}")
    finally:
        reader.close()
    return done


def _live_share(reader: LogReader, segment: SealedSegment, live: LivePositions) -> float:
    """Estimated from a sample of live records: reading all of them would cost what compaction costs."""
    count = 0
    sampled = sampled_bytes = 0
    for positions, first, stop in live.slices(segment.base, segment.end):
        count += stop - first
        for index in range(first, stop, max((stop - first) // _SAMPLES, 1)):
            sampled_bytes += reader.record_size(positions[index])
            sampled += 1
            if sampled >= 4 * _SAMPLES:
                break
    return count * (sampled_bytes / max(sampled, 1)) / max(segment.size - HEADER_SIZE, 1)


def _compact(disk: Disk, reader: LogReader, segment: SealedSegment, live: LivePositions) -> int:
    """Write the live records beside the segment and rename over it; the new size."""

    def records() -> Iterator[tuple[int, int, bytes]]:
        wanted = live.between(segment.base, segment.end)
        while run := list(islice(wanted, _SLICE)):
            for position, (kind, payload) in zip(run, reader.read_many(run), strict=True):
                yield position, kind, payload

    old = disk.open(segment_name(segment.base))
    try:
        before = read_header(old, segment.base, disk.folder)
    finally:
        old.close()
    size = write_compacted(disk, before, segment.end, records())
    reader.forget(segment.base, gone=False)
    return size


def write_compacted(
    disk: Disk, before: SegmentHeader, end: int, records: Iterator[tuple[int, int, bytes]]
) -> int:
    """Put a segment of these records alone in the place of the one that ``before`` heads; its size."""
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
        header = SegmentHeader(before.base, before.epoch, before.marker, True, end, offset, len(positions))
        file.pwrite([index], offset)
        file.pwrite([header.encode()], 0)
        file.sync()
    except BaseException:
        file.close()
        disk.remove(name + TEMPORARY)
        raise
    file.close()
    disk.rename(name + TEMPORARY, name)
    disk.sync_dir()
    return offset + len(index)
