"""A disk that reports what has been written, and what has been synced.

Owns: the order of the reports, on which the verdict rests: a write is reported before it happens, a sync
after it has returned and before the caller learns of it. So the listener may take too little for durable,
never too much. Must not touch: how the reports are used; the bytes themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count

from holtmq.journal.disk import Disk, File


class What(Enum):
    """What happened on a disk."""

    STARTED = "L"  # a new process has opened the folder; file numbers start again
    CREATED = "C"
    OPENED = "O"
    RENAMED = "R"
    REPLACED = "P"  # renamed over an existing file
    REMOVED = "D"
    WRITING = "W"
    ZEROING = "Z"  # zeros, to be overwritten later
    WRITTEN = "w"
    SYNCED = "S"
    NAMES_SYNCED = "N"


@dataclass(frozen=True, slots=True)
class Event:
    """One event; fields that do not apply are empty."""

    what: What
    file: int = 0
    start: int = 0
    stop: int = 0
    name: str = ""
    new_name: str = ""

    def encode(self) -> bytes:
        """One line, short enough to be written to a pipe atomically."""
        fields = self.what.value, self.file, self.start, self.stop, self.name, self.new_name
        return (" ".join(map(str, fields)) + "\n").encode()


def decode_event(line: bytes) -> Event:
    """Decode a line made by ``encode``."""
    what, file, start, stop, name, new_name = line.decode().rstrip("\n").split(" ")
    return Event(What(what), int(file), int(start), int(stop), name, new_name)


class WatchedDisk:
    """Forwards everything to ``inner`` and reports to ``note``, which is called from every writing thread."""

    def __init__(self, inner: Disk, note: Callable[[Event], None]) -> None:
        self._inner = inner
        self._note = note
        self._numbers = count(1)

    @property
    def folder(self) -> str:
        return self._inner.folder

    def open(self, name: str, *, create: bool = False, write: bool = False) -> WatchedFile:
        file = self._inner.open(name, create=create, write=write)
        number = next(self._numbers)
        self._note(Event(What.CREATED if create else What.OPENED, number, name=name))
        return WatchedFile(file, number, self._note)

    def rename(self, old: str, new: str) -> None:
        replaces = new in self._inner.list()
        self._inner.rename(old, new)
        self._note(Event(What.REPLACED if replaces else What.RENAMED, name=old, new_name=new))

    def remove(self, name: str) -> None:
        self._inner.remove(name)
        self._note(Event(What.REMOVED, name=name))

    def list(self) -> list[str]:
        return self._inner.list()

    def sync_dir(self) -> None:
        self._inner.sync_dir()
        self._note(Event(What.NAMES_SYNCED))

    def lock(self) -> None:
        self._inner.lock()
        self._note(Event(What.STARTED))

    def unlock(self) -> None:
        self._inner.unlock()

    def lost(self) -> str:
        return self._inner.lost()

    def random_bytes(self, size: int) -> bytes:
        return self._inner.random_bytes(size)


class WatchedFile:
    """One open file of a watched disk."""

    def __init__(self, inner: File, number: int, note: Callable[[Event], None]) -> None:
        self._inner = inner
        self._number = number
        self._note = note

    def pwrite(self, parts: Sequence[bytes], offset: int) -> None:
        what = What.WRITING if any(part.lstrip(b"\0") for part in parts) else What.ZEROING
        self._note(Event(what, self._number, offset, offset + sum(map(len, parts))))
        self._inner.pwrite(parts, offset)
        self._note(Event(What.WRITTEN, self._number))

    def sync(self) -> None:
        self._inner.sync()
        self._note(Event(What.SYNCED, self._number))

    def pread(self, size: int, offset: int) -> bytes:
        return self._inner.pread(size, offset)

    def preallocate(self, size: int) -> None:
        self._inner.preallocate(size)

    def truncate(self, size: int) -> None:
        self._inner.truncate(size)

    def size(self) -> int:
        return self._inner.size()

    def will_need(self, offset: int, size: int) -> None:
        self._inner.will_need(offset, size)

    def close(self) -> None:
        self._inner.close()
