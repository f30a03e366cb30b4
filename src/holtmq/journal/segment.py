"""A segment file: its name, its header, and the index of a compacted one.

Owns: the 64-byte header and the mapping from positions to file offsets.
Must not touch: which segments exist, and what the records mean.

A plain segment holds every byte of the log from its base on: offset = position - base + 64.
A compacted segment holds only the live records; an index maps their old positions to offsets.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from .checksum import crc32
from .disk import Disk, File
from .interface import JournalCorrupt, JournalTooNew
from .versions import PROGRAM, WRITER, version_name

HEADER_SIZE: Final = 64
SUFFIX: Final = ".seg"
TEMPORARY: Final = ".tmp"
_MAGIC: Final = b"HOLTSEG\n"
FORMAT: Final = 2  # the format written; format 1 can also be read
_COMPACTED: Final = 1
# magic, version, flags, index entries, base, epoch, marker, original end, index offset, writer's version
_HEADER: Final = Struct("<8sHHIQQ8sQQI")
_CHECKSUM: Final = Struct("<I")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    base: int
    epoch: int  # of the owner that created it
    marker: bytes  # random: tells this segment's SYNC records from copies in message bodies
    compacted: bool = False
    end: int = 0  # compacted only: where the original ended
    index_offset: int = 0
    index_count: int = 0
    version: int = FORMAT
    writer: int = WRITER  # version of the program that wrote it

    def encode(self) -> bytes:
        flags = _COMPACTED if self.compacted else 0
        fields = _HEADER.pack(
            _MAGIC,
            self.version,
            flags,
            self.index_count,
            self.base,
            self.epoch,
            self.marker,
            self.end,
            self.index_offset,
            self.writer,
        )
        return fields + _CHECKSUM.pack(crc32(fields))


def segment_name(base: int) -> str:
    return f"{base:016x}{SUFFIX}"


def base_of(name: str) -> int | None:
    """The base in a segment's file name; None for any other name."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 16:
        return None
    try:
        base = int(stem, 16)
    except ValueError:
        return None
    return base if segment_name(base) == name else None


def read_header(file: File, base: int, folder: str, at: int = 0) -> SegmentHeader:
    """The header of the segment whose name says ``base``; ``at``: file offset, for the header's copy."""
    raw = file.pread(HEADER_SIZE, at)
    name = f"{folder}/{segment_name(base)}"
    try:
        magic, version, flags, count, own, epoch, marker, end, index_offset, writer = _HEADER.unpack_from(raw)
        (checksum,) = _CHECKSUM.unpack_from(raw, _HEADER.size)
    except error:
        raise JournalCorrupt(f"segment {name} is damaged at offset 0: its header is cut short") from None
    if magic != _MAGIC:
        raise JournalCorrupt(f"segment {name} is damaged at offset 0: this is not a journal segment")
    if crc32(raw[: _HEADER.size]) != checksum:
        raise JournalCorrupt(f"segment {name} is damaged at offset 0: the header's checksum does not match")
    if not 1 <= version <= FORMAT or flags & ~_COMPACTED:
        raise JournalTooNew(
            f"segment {name} has format version {version} and flags {flags}; this program ({PROGRAM}) reads "
            f"versions up to {FORMAT}. HoltMQ {version_name(writer)} wrote it: use that or a later one"
        )
    if own != base:
        raise JournalCorrupt(
            f"segment {name} was written as {segment_name(own)}: a file was renamed or swapped"
        )
    compacted = bool(flags & _COMPACTED)
    return SegmentHeader(base, epoch, marker, compacted, end, index_offset, count, version, writer)


def created_by(file: File) -> tuple[int, int] | None:
    """Base and epoch in the header, whatever the file's name; None when the header is damaged."""
    raw = file.pread(HEADER_SIZE, 0)
    if len(raw) < HEADER_SIZE or _CHECKSUM.pack(crc32(raw[: _HEADER.size])) != raw[_HEADER.size :]:
        return None
    fields = _HEADER.unpack_from(raw)
    return (int(fields[4]), int(fields[5])) if fields[0] == _MAGIC else None


def create_segment(disk: Disk, header: SegmentHeader, capacity: int) -> File:
    """Create an empty segment; the file and its name are durable when this returns.

    It is built under a temporary name, so that a crash never leaves a ``.seg`` file with half a header, which
    would look like damage.
    """
    name = segment_name(header.base)
    file = disk.open(name + TEMPORARY, create=True)
    try:
        file.preallocate(HEADER_SIZE + capacity)
        file.pwrite([header.encode()], 0)
        file.sync()
        disk.rename(name + TEMPORARY, name)
        disk.sync_dir()
    except BaseException:
        file.close()
        raise
    return file


@dataclass(slots=True)
class PositionTable:
    """The file offset of each record in a compacted segment."""

    positions: array[int]
    offsets: array[int]

    def offset_of(self, position: int) -> int | None:
        at = bisect_left(self.positions, position)
        if at < len(self.positions) and self.positions[at] == position:
            return self.offsets[at]
        return None


def encode_index(positions: array[int], offsets: array[int]) -> bytes:
    raw = positions.tobytes() + offsets.tobytes()
    return raw + _CHECKSUM.pack(crc32(raw))


def read_index(file: File, header: SegmentHeader, folder: str) -> PositionTable:
    """The index or, if it is damaged, its copy: without it no record in the segment can be found."""
    size = header.index_count * 16
    whole = size + _CHECKSUM.size
    copies = 1 if header.version == 1 else 2
    for copy in range(copies):
        raw = file.pread(whole, header.index_offset + copy * whole)
        if len(raw) == whole and _CHECKSUM.pack(crc32(raw[:size])) == raw[size:]:
            return PositionTable(array("Q", raw[: size // 2]), array("Q", raw[size // 2 : size]))
    raise JournalCorrupt(
        f"segment {folder}/{segment_name(header.base)} is damaged at offset {header.index_offset}: "
        "the index of its records does not match its checksum"
    )
