"""Says what must be in the folder: the last segment, the newest checkpoint, the durable end of the log.

Owns: the ``manifest`` file. A running journal's writer updates it: with a sync before a new segment gets its
first record and at the close, otherwise without. It never claims more than is on disk, so a log that ends
earlier is damaged. Must not touch: the log; if the manifest is lost, only this check is lost.

It need not name the other segments: the checkpoint names those it needs, and from the checkpoint's position
on each segment ends where the next one begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from .checksum import crc32
from .disk import Disk, File
from .segment import TEMPORARY
from .versions import WRITER

NAME: Final = "manifest"
_SLOT: Final = 512  # two slots, written in turn, so that one of them is always whole
# magic, format version, reserved, writer's version, serial, epoch, last segment, durable upto, checkpoint
_BODY: Final = Struct("<8sHHIQQQQQ")
_CHECKSUM: Final = Struct("<I")
_MAGIC: Final = b"HOLTMAN\n"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Known:
    """The contents of a slot."""

    writer: int  # version of the program that wrote it
    serial: int
    epoch: int
    last_base: int
    durable: int
    checkpoint: int  # 0: none yet


class Manifest:
    """The open manifest file, used by the writer."""

    __slots__ = ("_disk", "_epoch", "_file", "_serial")

    def __init__(self, disk: Disk, epoch: int) -> None:
        self._disk = disk
        self._epoch = epoch
        self._serial = 0
        self._file: File | None = None

    def begin(self, last_base: int, durable: int, checkpoint: int) -> None:
        """Durably replace the former owner's file by a new one."""
        file = self._disk.open(NAME + TEMPORARY, create=True)
        try:
            slot = self._slot(last_base, durable, checkpoint)
            file.pwrite([bytes(_SLOT), slot, bytes(_SLOT - len(slot))], 0)
            file.sync()
            self._disk.rename(NAME + TEMPORARY, NAME)
            self._disk.sync_dir()
        except BaseException:
            file.close()
            raise
        self._file = file

    def note(self, last_base: int, durable: int, checkpoint: int, *, sync: bool = False) -> None:
        file = self._file
        if file is not None:
            data = self._slot(last_base, durable, checkpoint)
            file.pwrite([data], self._serial % 2 * _SLOT)
            if sync:
                file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _slot(self, last_base: int, durable: int, checkpoint: int) -> bytes:
        self._serial += 1
        body = _BODY.pack(
            _MAGIC, _VERSION, 0, WRITER, self._serial, self._epoch, last_base, durable, checkpoint
        )
        return body + _CHECKSUM.pack(crc32(body))


def read_manifest(disk: Disk) -> tuple[Known | None, str]:
    """The newest intact slot, and what is wrong with the file ("" when nothing is)."""
    try:
        file = disk.open(NAME)
    except FileNotFoundError:
        return None, "missing"
    try:
        raw = file.pread(2 * _SLOT, 0)
    finally:
        file.close()
    slots = [_parse(raw[at : at + _SLOT]) for at in (0, _SLOT)]
    whole = [slot for slot in slots if isinstance(slot, Known)]
    if not whole:
        return None, "damaged"
    return max(whole, key=lambda known: known.serial), "" if None not in slots else "damaged in part"


def _parse(raw: bytes) -> Known | bool | None:
    """A slot's contents; False when it was never written, None when it is damaged."""
    if not any(raw):
        return False
    try:
        magic, version, _, writer, serial, epoch, last, durable, checkpoint = _BODY.unpack_from(raw)
        (checksum,) = _CHECKSUM.unpack_from(raw, _BODY.size)
    except error:
        return None
    if magic != _MAGIC or version != _VERSION or checksum != crc32(raw[: _BODY.size]):
        return None
    return Known(writer, serial, epoch, last, durable, checkpoint)
