"""A read-only journal: it reads what a start would read, and changes nothing.

Owns: reading from the files, and appends that stay in memory. Must not touch: the contents of the files.
"""

from __future__ import annotations

from .disk import Disk
from .dropped import read_dropped
from .memory import MemoryJournal
from .reader import LogReader
from .segment import base_of

_BEYOND = 1 << 62  # beyond the end of any log


class ViewingJournal(MemoryJournal):
    """Positions below ``_BEYOND`` are in the folder, those from it on are in memory."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        bases = [base for base in map(base_of, disk.list()) if base is not None]
        self._reader = LogReader(disk, bases, 4, read_dropped(disk))
        self._end = self._durable = _BEYOND

    def read(self, position: int, kind: int | None = None) -> tuple[int, bytes]:
        return super().read(position, kind) if position >= _BEYOND else self._reader.read(position, kind)

    def close(self) -> None:
        super().close()
        self._reader.close()
