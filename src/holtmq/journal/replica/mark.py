"""The file ``replica`` in a data folder: which log the folder copies, and up to where it can be trusted.

Owns: that file. Must not touch: segments.

Local writes are not synced at each commit. Below the marked position they are synced, and PostgreSQL had
committed the same bytes by the marked epoch; everything above is fetched again at a start.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error
from typing import Final
from uuid import UUID

from holtmq.journal.checksum import crc32
from holtmq.journal.disk import Disk
from holtmq.journal.replacing import replace_file

NAME: Final = "replica"
_MAGIC: Final = b"HOLTREP\n"
_BODY: Final = Struct("<8s16s16sQQ")
_CHECKSUM: Final = Struct("<I")


@dataclass(frozen=True, slots=True)
class Mark:
    log: UUID
    folder: UUID
    position: int
    epoch: int


def read_mark(disk: Disk) -> Mark | None:
    """The mark; None when it is missing or damaged: then nothing in the folder can be trusted."""
    try:
        file = disk.open(NAME)
    except FileNotFoundError:
        return None
    try:
        raw = file.pread(_BODY.size + _CHECKSUM.size, 0)
    finally:
        file.close()
    try:
        magic, log, folder, position, epoch = _BODY.unpack_from(raw)
        (checksum,) = _CHECKSUM.unpack_from(raw, _BODY.size)
    except error:
        return None
    if magic != _MAGIC or checksum != crc32(raw[: _BODY.size]):
        return None
    return Mark(UUID(bytes=log), UUID(bytes=folder), position, epoch)


def write_mark(disk: Disk, mark: Mark) -> None:
    """Durably replace the mark."""
    body = _BODY.pack(_MAGIC, mark.log.bytes, mark.folder.bytes, mark.position, mark.epoch)
    replace_file(disk, NAME, body + _CHECKSUM.pack(crc32(body)))
