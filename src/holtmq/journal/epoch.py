"""The epoch: a number that grows each time a process opens the journal.

Owns: the ``epoch`` file, and the number that a new folder begins with. Must not touch: the log. If the file
is lost, the headers still have the number.

A new folder begins with a random multiple of 2**32, and headers of segments, checkpoints and the manifest
hold the epoch: files of two folders can be told apart (``strays``).
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from .checksum import crc32
from .disk import Disk
from .replacing import replace_file

NAME: Final = "epoch"
_BODY: Final = Struct("<8sQ")
_CHECKSUM: Final = Struct("<I")
_MAGIC: Final = b"HOLTEPO\n"
_OPENINGS: Final = 32  # bits
_FAMILIES: Final = (1 << 20) - 1  # so that an epoch is exact as a number in JSON


def family_of(epoch: int) -> int:
    """The random part of an epoch; 0 in folders of older versions, and in a log of PostgreSQL."""
    return epoch >> _OPENINGS


def next_epoch(disk: Disk, seen: int) -> int:
    """One more than the highest known epoch, durable before it is used."""
    epoch = max(seen, stored_epoch(disk)) + 1
    if epoch == 1:
        number = int.from_bytes(disk.random_bytes(4), "little")
        epoch += (1 + number % _FAMILIES) << _OPENINGS
    body = _BODY.pack(_MAGIC, epoch)
    replace_file(disk, NAME, body + _CHECKSUM.pack(crc32(body)))
    return epoch


def stored_epoch(disk: Disk) -> int:
    """The epoch in the file; 0 when it is missing or damaged."""
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
