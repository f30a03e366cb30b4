"""Verifies all stored files from time to time, so that damage is found while a backup can still restore it.

Owns: verifying closed segments and both checkpoints, a piece at a time. Must not touch: the segment that is
being written, and the contents of files: it only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .checkpoint import checkpoint_name, position_of, verify_checkpoint
from .disk import Disk, File
from .dropped import read_dropped
from .inspection import read_one
from .interface import JournalError, RecordUnreadable
from .manifest import read_manifest
from .mending import examine
from .records import BadRecord
from .recovery import walk_segment
from .segment import HEADER_SIZE, SegmentHeader, base_of, read_header, read_index, segment_name

_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Rot:
    """A place that cannot be read."""

    name: str
    position: int
    size: int
    reason: str

    def error(self) -> RecordUnreadable:
        return RecordUnreadable(f"{self.name}: {self.reason}", self.position, self.reason, self.size)


def scrub(disk: Disk, open_segment: int | None = None) -> Iterator[Rot | int]:
    """Verify all files except the segment that is being written; yield damage and numbers of bytes read.

    Files that disappear meanwhile are skipped: a checkpoint replaced or deleted them.
    """
    names = disk.list()
    bases = sorted(base for base in map(base_of, names) if base is not None)
    for position in sorted(at for at in map(position_of, names) if at is not None):
        try:
            yield verify_checkpoint(disk, position).size
        except FileNotFoundError:
            continue
        except JournalError as exc:
            yield Rot(checkpoint_name(position), position, 0, str(exc))
    dropped = read_dropped(disk)
    for index, base in enumerate(bases):
        if base == open_segment:
            break
        try:
            for found in scrub_segment(disk, base, bases[index + 1 :]):
                if isinstance(found, int) or found.position not in dropped:
                    yield found
        except FileNotFoundError:
            continue


def scrub_segment(disk: Disk, base: int, following: Sequence[int], suffix: str = "") -> Iterator[Rot | int]:
    """Verify one segment; ``following`` are the bases of the later ones."""
    name = segment_name(base) + suffix
    file = disk.open(name)
    try:
        try:
            header = read_header(file, base, disk.folder)
            if header.compacted:
                yield from _compacted(disk, file, header, name)
                return
        except JournalError as exc:  # without header or index, nothing in it can be found
            stop = following[0] if following else base + file.size()
            yield Rot(name, base, stop - base, str(exc))
            return
        if following:
            stop = min(base + file.size() - HEADER_SIZE, following[0])
        else:  # what is behind it may be a commit that was interrupted
            known, _ = read_manifest(disk)
            stop = max(base, 0 if known is None else known.durable)
        yield from _plain(file, header, name, stop)
    finally:
        file.close()


def _plain(file: File, header: SegmentHeader, name: str, stop: int) -> Iterator[Rot | int]:
    done = header.base
    walk = walk_segment(file, header, header.base, stop)
    try:
        while True:
            position, _, _ = next(walk)
            if position - done >= _PIECE:
                yield position - done
                done = position
    except StopIteration as end:
        if end.value.position < stop:
            found = examine(file, header, end.value.position, stop, exact=False)
            yield from [Rot(name, one.position, one.size, one.reason) for one in found.damages]
    except JournalError as exc:
        yield Rot(name, done, 0, str(exc))
    yield max(stop - done, 0)


def _compacted(disk: Disk, file: File, header: SegmentHeader, name: str) -> Iterator[Rot | int]:
    table = read_index(file, header, disk.folder)
    read = 0
    for position, offset in zip(table.positions, table.offsets, strict=True):
        try:
            read += len(read_one(file, offset)[1])
        except BadRecord as exc:
            yield Rot(name, position, 0, exc.reason)
        if read >= _PIECE:
            yield read
            read = 0
    yield read
