"""The number of this opening: it grows each time the folder gets an owner.

Owns: the ``epoch`` file. Must not touch: the log. A lost file costs nothing: headers remember the number too.
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
    """One more than every epoch known, durable before it is used."""
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
