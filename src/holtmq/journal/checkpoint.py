"""Checkpoint files: the caller's whole state at one position of the log.

Owns: their format, their validation, and the steps by which one replaces the last.
Must not touch: what the records in them mean, and the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from .checksum import crc32
from .disk import Disk, File
from .interface import JournalCorrupt, JournalTooNew
from .records import (
    END,
    FRAME,
    FRAME_SIZE,
    KIND_BYTES,
    PREFIX,
    PREFIX_SIZE,
    SEGMENTS,
    BadRecord,
    encode,
    record_at,
)
from .segment import TEMPORARY
from .versions import PROGRAM, WRITER, version_name

SUFFIX: Final = ".ckpt"
_MAGIC: Final = b"HOLTCKP\n"
_VERSION: Final = 1
_HEADER: Final = Struct("<8sHHIQQ28x")  # magic, version, flags, writer's version, position, epoch
_CHECKSUM: Final = Struct("<I")
_HEADER_SIZE: Final = _HEADER.size + _CHECKSUM.size
_END_BODY: Final = Struct("<QI")  # records, checksum of everything before the END record
_CHUNK: Final = 1 << 20
_WRITE: Final = 256 << 10
_PARTS: Final = 1_000  # two for each record: about 1 ms to encode them


@dataclass(frozen=True, slots=True)
class Checkpoint:
    position: int  # the tail of the log starts here
    epoch: int
    segments: tuple[int, ...]  # bases of the segments that the state refers to
    size: int
    writer: int = 0  # version of the program that wrote it


def checkpoint_name(position: int) -> str:
    return f"{position:016x}{SUFFIX}"


def position_of(name: str) -> int | None:
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 16:
        return None
    try:
        position = int(stem, 16)
    except ValueError:
        return None
    return position if checkpoint_name(position) == name else None


def write_checkpoint(
    disk: Disk, position: int, epoch: int, segments: Sequence[int], records: Iterable[tuple[int, bytes]]
) -> int:
    """Write it under a temporary name and sync it; return its size. ``publish`` makes it valid."""
    fields = _HEADER.pack(_MAGIC, _VERSION, 0, WRITER, position, epoch)
    file = disk.open(checkpoint_name(position) + TEMPORARY, create=True)
    try:
        parts = [fields, _CHECKSUM.pack(crc32(fields)), encode(SEGMENTS, array("Q", segments).tobytes())]
        waiting = sum(map(len, parts))
        offset = whole = count = 0
        for kind, payload in records:
            count += 1
            length = len(payload) + 1
            parts += (FRAME.pack(length, crc32(payload, crc32(KIND_BYTES[kind], length)), kind), payload)
            waiting += PREFIX_SIZE + length
            if waiting >= _WRITE or len(parts) >= _PARTS:
                # Small writes: each one releases the GIL for the event loop's thread.
                data = b"".join(parts)
                file.pwrite([data], offset)
                whole = crc32(data, whole)
                offset += len(data)
                parts.clear()
                waiting = 0
        data = b"".join(parts)
        whole = crc32(data, whole)
        data += encode(END, _END_BODY.pack(count, whole))
        file.pwrite([data], offset)
        file.sync()
        return offset + len(data)
    finally:
        file.close()


def publish(disk: Disk, position: int, older: int | None) -> None:
    """Make the written checkpoint valid, durably; then remove all others except ``older``."""
    name = checkpoint_name(position)
    disk.rename(name + TEMPORARY, name)
    disk.sync_dir()
    for other in disk.list():
        at = position_of(other)
        if at is not None and at not in (position, older):
            disk.remove(other)
    disk.sync_dir()


def discard(disk: Disk, position: int) -> None:
    """Drop a checkpoint that could not be finished."""
    with suppress(OSError):
        disk.remove(checkpoint_name(position) + TEMPORARY)


def verify_checkpoint(disk: Disk, position: int) -> Checkpoint:
    """Read the whole file and verify its checksums; JournalCorrupt when one does not match."""
    file = disk.open(checkpoint_name(position))
    try:
        return _verify(file, position, f"{disk.folder}/{checkpoint_name(position)}")
    finally:
        file.close()


def _verify(file: File, position: int, name: str) -> Checkpoint:
    size = file.size()
    tail = FRAME_SIZE + _END_BODY.size
    if size < _HEADER_SIZE + tail:
        raise JournalCorrupt(f"checkpoint {name} is cut short at offset {size}")
    head = file.pread(_HEADER_SIZE, 0)
    magic, version, _, writer, own, epoch = _HEADER.unpack_from(head)
    if (
        magic != _MAGIC
        or _CHECKSUM.pack(crc32(head[: _HEADER.size])) != head[_HEADER.size :]
        or own != position
    ):
        raise JournalCorrupt(
            f"checkpoint {name} is damaged at offset 0: its header does not match its checksum"
        )
    if version != _VERSION:
        raise JournalTooNew(
            f"checkpoint {name} has format version {version}; this program ({PROGRAM}) reads version "
            f"{_VERSION}. HoltMQ {version_name(writer)} wrote it: use that or a later one"
        )
    try:
        kind, payload = record_at(file.pread(tail, size - tail), 0)
        _, expected = _END_BODY.unpack(payload)
    except (BadRecord, error):
        kind = 0
    if kind != END:
        raise JournalCorrupt(f"checkpoint {name} is damaged at offset {size - tail}: its end mark is missing")
    whole = at = 0
    while at < size - tail:
        data = file.pread(min(_CHUNK, size - tail - at), at)
        whole = crc32(data, whole)
        at += len(data)
    if whole != expected:
        raise JournalCorrupt(f"checkpoint {name} is damaged: the checksum over the whole file does not match")
    length = PREFIX.unpack(file.pread(PREFIX_SIZE, _HEADER_SIZE))[0]
    _, bases = record_at(file.pread(PREFIX_SIZE + length, _HEADER_SIZE), 0)
    return Checkpoint(position, epoch, tuple(array("Q", bases)), size, writer)


def written_by(file: File) -> tuple[int, int] | None:
    """Position and epoch in the header, whatever the file's name; None when the header is damaged."""
    head = file.pread(_HEADER_SIZE, 0)
    if len(head) < _HEADER_SIZE or _CHECKSUM.pack(crc32(head[: _HEADER.size])) != head[_HEADER.size :]:
        return None
    magic, _, _, _, position, epoch = _HEADER.unpack_from(head)
    return (int(position), int(epoch)) if magic == _MAGIC else None


def read_checkpoint(disk: Disk, position: int) -> Iterator[tuple[int, bytes]]:
    """The records of a verified checkpoint, a megabyte at a time."""
    name = f"{disk.folder}/{checkpoint_name(position)}"
    file = disk.open(checkpoint_name(position))
    try:
        offset = _HEADER_SIZE
        size = _CHUNK
        while True:
            data = file.pread(size, offset)
            at = 0
            asked, size = size, _CHUNK
            while at + FRAME_SIZE <= len(data):
                end = at + PREFIX_SIZE + PREFIX.unpack_from(data, at)[0]
                if end > len(data):
                    size = max(_CHUNK, end - at)
                    break
                try:
                    kind, payload = record_at(data, at)
                except BadRecord as exc:
                    raise JournalCorrupt(
                        f"checkpoint {name} is damaged at offset {offset + at}: {exc}"
                    ) from None
                if kind == END:
                    return
                if kind != SEGMENTS:
                    yield kind, payload
                at = end
            if at == 0 and len(data) < asked:
                raise JournalCorrupt(f"checkpoint {name} is cut short at offset {offset}")
            offset += at
    finally:
        file.close()
