"""The disk under a test's broker: in memory or in a folder, with faults on command.

Owns: the faults (errors, a full disk, a stall, a crash of its owner) over a disk that only stores.
Must not touch: the journal's formats.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random

from holtmq.journal.disk import Disk, File, OsDisk
from holtmq.journal.fake_disk import FakeDisk, Keep, PowerCut
from holtmq.journal.segment import HEADER_SIZE, base_of, segment_name
from holtmq.verify.durable_image import DurableImage
from holtmq.verify.watched_disk import WatchedDisk

__all__ = ["FaultyDisk", "FolderDisk", "Keep", "MemoryDisk"]


class FaultyDisk:
    """Forwards everything to ``inner`` unless a test injected a fault. Faults may be set from any thread."""

    def __init__(self, inner: Disk, guard: contextlib.AbstractContextManager[object]) -> None:
        self._inner = inner
        self._guard = guard
        self._life = 0  # incremented by every crash: a file opened before it is dead
        self._failing_writes: list[int] = []
        self._failing_syncs: list[int] = []
        self._full = False
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    def fail_next_write(self, code: int = errno.EIO) -> None:
        """The next write to the journal fails. The journal then accepts nothing more until a restart."""
        self._failing_writes.append(code)

    def fail_next_sync(self, code: int = errno.EIO) -> None:
        """The next fsync fails: whether the written data is on the disk is unknown."""
        self._failing_syncs.append(code)

    def fill(self) -> None:
        """The disk is full: every write fails with ENOSPC until ``free``."""
        self._full = True

    def free(self) -> None:
        """The disk has room again. The broker still needs a restart: its journal has failed permanently."""
        self._full = False

    def stall(self) -> None:
        """Writes and syncs hang, as on a dying disk, until ``resume``: nothing is confirmed meanwhile."""
        self._may_go_on.clear()

    def resume(self) -> None:
        """Undo ``stall``."""
        self._may_go_on.set()

    def die(self) -> None:
        """From now on no open file reaches the disk; nothing more becomes durable."""
        self._life += 1
        self._may_go_on.set()

    def come_back(self, keep: Keep, random: Random) -> None:
        """After the last thread of the crashed broker has ended: lose what was not durable."""
        self._failing_writes.clear()
        self._failing_syncs.clear()
        self._full = False
        self._lose(keep, random)

    def _lose(self, keep: Keep, random: Random) -> None:
        raise NotImplementedError

    def tear(self, position: int, garbage: bytes) -> None:
        """Write what an interrupted write leaves behind: bytes at the end of the log, ``position``."""
        with self._guard:
            newest = max(base for name in self._inner.list() if (base := base_of(name)) is not None)
            file = self._inner.open(segment_name(newest), write=True)
            file.pwrite([garbage], position - newest + HEADER_SIZE)
            file.sync()
            file.close()

    @property
    def folder(self) -> str:
        return self._inner.folder

    def open(self, name: str, *, create: bool = False, write: bool = False) -> FaultyFile:
        with self._guard:
            return FaultyFile(self, self._inner.open(name, create=create, write=write), self._life)

    def rename(self, old: str, new: str) -> None:
        with self._guard:
            self._inner.rename(old, new)

    def remove(self, name: str) -> None:
        with self._guard:
            self._inner.remove(name)

    def list(self) -> list[str]:
        with self._guard:
            return self._inner.list()

    def sync_dir(self) -> None:
        self.before_sync()
        with self._guard:
            self._inner.sync_dir()

    def lock(self) -> None:
        self._inner.lock()

    def unlock(self) -> None:
        self._inner.unlock()

    def lost(self) -> str:
        return self._inner.lost()

    def random_bytes(self, size: int) -> bytes:
        return self._inner.random_bytes(size)

    @property
    def guard(self) -> contextlib.AbstractContextManager[object]:
        return self._guard

    def is_alive(self, life: int) -> bool:
        return life == self._life

    def before_write(self) -> None:
        self._may_go_on.wait()
        if self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._failing_writes:
            code = self._failing_writes.pop(0)
            raise OSError(code, os.strerror(code))

    def before_sync(self) -> None:
        self._may_go_on.wait()
        if self._failing_syncs:
            code = self._failing_syncs.pop(0)
            raise OSError(code, os.strerror(code))


class FaultyFile:
    """One open file, until its disk dies."""

    def __init__(self, disk: FaultyDisk, inner: File, life: int) -> None:
        self._disk = disk
        self._inner = inner
        self._life = life

    def pwrite(self, parts: Sequence[bytes], offset: int) -> None:
        self._alive()
        self._disk.before_write()
        self._alive()
        with self._disk.guard:
            self._inner.pwrite(parts, offset)

    def pread(self, size: int, offset: int) -> bytes:
        with self._disk.guard:
            return self._inner.pread(size, offset)

    def sync(self) -> None:
        self._alive()
        self._disk.before_sync()
        self._alive()
        with self._disk.guard:
            self._inner.sync()
        # It crashed during the sync: the bytes are there, but the sync must not be reported as done.
        self._alive()

    def preallocate(self, size: int) -> None:
        self._alive()
        self._disk.before_write()
        with self._disk.guard:
            self._inner.preallocate(size)

    def truncate(self, size: int) -> None:
        self._alive()
        with self._disk.guard:
            self._inner.truncate(size)

    def size(self) -> int:
        with self._disk.guard:
            return self._inner.size()

    def will_need(self, offset: int, size: int) -> None:
        self._inner.will_need(offset, size)

    def close(self) -> None:
        self._inner.close()

    def _alive(self) -> None:
        if not self._disk.is_alive(self._life):
            raise PowerCut(errno.EIO, "this file belongs to a broker that is dead")


class MemoryDisk(FaultyDisk):
    """No files; still the real journal, with durable and non-durable bytes."""

    def __init__(self) -> None:
        self._memory = FakeDisk()
        # The journal writes, reads and checkpoints in three threads; the disk in memory has no locking.
        super().__init__(self._memory, threading.Lock())

    def _lose(self, keep: Keep, random: Random) -> None:
        self._memory.crash(keep)


class FolderDisk(FaultyDisk):
    """A real folder whose writes are recorded: a crash undoes what was written and never synced."""

    def __init__(self, folder: Path) -> None:
        self._image = DurableImage()
        super().__init__(WatchedDisk(OsDisk(folder), self._image.note), contextlib.nullcontext())

    def _lose(self, keep: Keep, random: Random) -> None:
        if keep is not Keep.EVERYTHING:
            self._image.cut(Path(self.folder), None if keep is Keep.NOTHING else random)
