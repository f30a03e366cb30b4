"""Stretches of the log that a repair has given up. They are no longer reported as damage.

Owns: the ``dropped`` file. Only ``repair`` writes it. Must not touch: the log. If the file is lost, these
stretches count as damage again, nothing worse.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from struct import Struct, error
from typing import Final

from .checksum import crc32
from .disk import Disk
from .replacing import replace_file

NAME: Final = "dropped"
_HEAD: Final = Struct("<8sHHI")  # magic, version, reserved, stretches
_CHECKSUM: Final = Struct("<I")
_MAGIC: Final = b"HOLTDRP\n"
_VERSION: Final = 1


class Dropped:
    """Sorted stretches [first, stop) of positions."""

    __slots__ = ("_firsts", "_stops")

    def __init__(self, stretches: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []
        for first, stop in sorted(stretches):
            if self._stops and first <= self._stops[-1]:
                self._stops[-1] = max(self._stops[-1], stop)
            else:
                self._firsts.append(first)
                self._stops.append(stop)

    def __contains__(self, position: int) -> bool:
        at = bisect_right(self._firsts, position) - 1
        return at >= 0 and position < self._stops[at]

    def __bool__(self) -> bool:
        return bool(self._firsts)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._stops, strict=True))


def read_dropped(disk: Disk) -> Dropped:
    """The stretches given up so far; empty when the file is missing or damaged."""
    try:
        file = disk.open(NAME)
    except FileNotFoundError:
        return Dropped()
    try:
        raw = file.pread(file.size(), 0)
    finally:
        file.close()
    try:
        magic, version, _, count = _HEAD.unpack_from(raw)
        end = _HEAD.size + 16 * count
        (checksum,) = _CHECKSUM.unpack_from(raw, end)
    except error:
        return Dropped()
    if magic != _MAGIC or version != _VERSION or checksum != crc32(raw[:end]):
        return Dropped()
    numbers = array("Q", raw[_HEAD.size : end])
    return Dropped(zip(numbers[::2], numbers[1::2], strict=True))


def write_dropped(disk: Disk, dropped: Dropped) -> None:
    """Replace the file; it is durable when this returns."""
    stretches = dropped.stretches
    numbers = array("Q", [number for stretch in stretches for number in stretch])
    raw = _HEAD.pack(_MAGIC, _VERSION, 0, len(stretches)) + numbers.tobytes()
    replace_file(disk, NAME, raw + _CHECKSUM.pack(crc32(raw)))
