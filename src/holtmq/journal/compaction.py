"""Giving back the space of messages that are gone.

Owns: the decision (delete, compact, leave) for each segment before a checkpoint, and the rewrite.
Must not touch: the tail after the checkpoint, and positions: a live record keeps its position for ever.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Final

from .disk import Disk
from .reader import LogReader
from .records import encode
from .segment import (
    HEADER_SIZE,
    TEMPORARY,
    SegmentHeader,
    count_between,
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


@dataclass(frozen=True, slots=True)
class Standing:
    """A checkpoint that counts, and what it needs of the segments before its position."""

    position: int
    live: Sequence[array[int]] | None  # None: a former owner made it, and only ``segments`` are known
    segments: frozenset[int]

    def may_need(self, segment: SealedSegment) -> bool:
        if segment.end > self.position:
            return True
        if self.live is None:
            return segment.base in self.segments
        return count_between(self.live, segment.base, segment.end) > 0


@dataclass(slots=True)
class Reclaimed:
    deleted: list[int] = field(default_factory=list)
    compacted: dict[int, int] = field(default_factory=dict)  # base -> new size
    freed_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def reclaim(
    disk: Disk,
    segments: Sequence[SealedSegment],
    state: Standing,
    older: Standing,
    threshold: float,
    stopping: Callable[[], bool],
) -> Reclaimed:
    """Delete the segments that neither checkpoint needs; compact those with little that is live.

    Little: a share below ``threshold``. Live is what either checkpoint refers to. The segments that the older
    one would replay stay as they are.
    """
    done = Reclaimed()
    sparse: list[SealedSegment] = []
    for segment in segments:
        if segment.end > older.position:
            continue
        if not state.may_need(segment) and not older.may_need(segment):
            disk.remove(segment_name(segment.base))
            done.deleted.append(segment.base)
            done.freed_bytes += segment.size
        elif older.live is not None or not older.may_need(segment):
            sparse.append(segment)
    live = [*(state.live or ()), *(older.live or ())]
    if done.deleted:
        disk.sync_dir()
    reader = LogReader(disk, [segment.base for segment in sparse], handles=1)
    try:
        for segment in sparse:
            if stopping():
                break
            try:
                if _live_share(reader, segment, live) >= threshold:
                    continue
                size = _compact(disk, reader, segment, live)
            except Exception as exc:
                # A live record that cannot be read, or no space: the old file stays as it is, and whoever
                # reads that record is told. The log itself is untouched.
                done.problems.append(f"{segment_name(segment.base)}: {exc}")
                continue
            done.compacted[segment.base] = size
            done.freed_bytes += segment.size - size
    finally:
        reader.close()
    return done


def _live_in(live: Sequence[array[int]], segment: SealedSegment) -> Iterator[int]:
    """The live positions of one segment in order, each once."""
    parts = [
        islice(positions, bisect_left(positions, segment.base), bisect_left(positions, segment.end))
        for positions in live
    ]
    last = -1
    for position in merge(*parts):
        if position != last:
            yield position
            last = position


def _live_share(reader: LogReader, segment: SealedSegment, live: Sequence[array[int]]) -> float:
    """Estimated from a sample of live records: reading all of them would cost what compaction costs."""
    count = 0
    sampled = sampled_bytes = 0
    for positions in live:
        first = bisect_left(positions, segment.base)
        stop = bisect_left(positions, segment.end)
        count += stop - first
        for index in range(first, stop, max((stop - first) // _SAMPLES, 1)):
            sampled_bytes += reader.record_size(positions[index])
            sampled += 1
            if sampled >= 4 * _SAMPLES:
                break
    return count * (sampled_bytes / max(sampled, 1)) / max(segment.size - HEADER_SIZE, 1)


def _compact(disk: Disk, reader: LogReader, segment: SealedSegment, live: Sequence[array[int]]) -> int:
    """Write the live records beside the segment and rename over it; the new size."""

    def records() -> Iterator[tuple[int, int, bytes]]:
        wanted = _live_in(live, segment)
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
    disk: Disk,
    before: SegmentHeader,
    end: int,
    records: Iterator[tuple[int, int, bytes]],
    *,
    repaired: bool = False,
) -> int:
    """Put a segment of these records alone in the place of the one that ``before`` heads; its size.

    Index and header follow twice: a flipped bit there would cost every record of the segment.
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
        header = SegmentHeader(
            before.base,
            before.epoch,
            before.marker,
            True,
            end,
            offset,
            len(positions),
            repaired or before.repaired,
        ).encode()
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
