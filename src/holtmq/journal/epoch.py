"""The epoch: a number that grows each time a process opens the journal.

Owns: the ``epoch`` file. Must not touch: the log. If the file is lost, the headers still have the number.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from .checksum import crc32
from .disk import Disk
from .segment import TEMPORARY

NAME: Final = "epoch"
_BODY: Final = Struct("<8sQ")
_CHECKSUM: Final = Struct("<I")
_MAGIC: Final = b"HOLTEPO\n"


def next_epoch(disk: Disk, seen: int) -> int:
    """One more than the highest known epoch, durable before it is used."""
    epoch = max(seen, _stored(disk)) + 1
    body = _BODY.pack(_MAGIC, epoch)
    file = disk.open(NAME + TEMPORARY, create=True)
    try:
        file.pwrite([body + _CHECKSUM.pack(crc32(body))], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(NAME + TEMPORARY, NAME)
    disk.sync_dir()
    return epoch


def _stored(disk: Disk) -> int:
    try:
        file = disk.open(NAME)
    except FileNotFoundError:
        return 0
    try:
        raw = file.pread(_BODY.size + _CHECKSUM.size, 0)
    finally:
        file.close()
    try:
        magic, epoch = _BODY.unpack_from(raw)
        (checksum,) = _CHECKSUM.unpack_from(raw, _BODY.size)
    except error:
        return 0
    return int(epoch) if magic == _MAGIC and checksum == crc32(raw[: _BODY.size]) else 0
