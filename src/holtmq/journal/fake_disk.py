"""A disk in memory that distinguishes written from synced data, and fails on request.

Owns: files, their durable image, the durable directory, and the faults a test asks for.
Must not touch: the journal. It models what POSIX promises and no more: bytes are durable after ``sync``,
names after ``sync_dir``; anything newer may survive a crash or not, sector by sector.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final

from .interface import JournalLocked

SECTOR: Final = 512


class Keep(Enum):
    """How much unsynced data survives a crash."""

    NOTHING = "nothing"
    EVERYTHING = "everything"  # the process was killed, not the kernel: all is there, still not durable
    SECTORS = "sectors"  # the power failed: each sector and each name independently, by the seeded random


class PowerCut(OSError):
    """The disk has no power until ``crash`` restarts it."""


@dataclass(slots=True)
class _Inode:
    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)

    def touch(self, start: int, stop: int) -> None:
        self.dirty.update(range(start // SECTOR, (stop + SECTOR - 1) // SECTOR))

    def resize(self, size: int) -> None:
        old = len(self.data)
        if size < old:
            del self.data[size:]
        else:
            self.data.extend(bytes(size - old))
        self.touch(min(size, old), max(size, old))

    def persist(self, sectors: set[int], size: int) -> None:
        """Make these sectors and this size durable."""
        if len(self.durable) > size:
            del self.durable[size:]
        else:
            self.durable.extend(bytes(size - len(self.durable)))
        for sector in sectors:
            first, stop = sector * SECTOR, min((sector + 1) * SECTOR, size)
            if first < stop:
                piece = self.data[first:stop]
                self.durable[first:stop] = piece.ljust(stop - first, b"\0")


class FakeFile:
    def __init__(self, disk: FakeDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk.crashes

    def pwrite(self, parts: Sequence[bytes], offset: int) -> None:
        self._alive()
        data = b"".join(parts)
        allowed, error = self._disk.admit_write(len(data))
        size = len(self._inode.data)
        room = self._disk.room()
        if error is None and room is not None and offset + len(data) > size + room:
            allowed, error = max(size + room - offset, 0), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = data[:allowed]
        if written:
            if offset > size:
                self._inode.resize(offset)
            self._inode.data[offset : offset + len(written)] = written
            self._inode.touch(offset, offset + len(written))
        if error is not None:
            raise error

    def pread(self, size: int, offset: int) -> bytes:
        self._alive()
        self._disk.admit()
        return bytes(self._inode.data[offset : offset + size])

    def sync(self) -> None:
        self._alive()
        inode = self._inode
        error = self._disk.admit_sync()
        if error is None:
            inode.persist(inode.dirty, len(inode.data))
        # After a failed fsync Linux marks the pages clean: a second fsync succeeds although data is lost.
        inode.dirty = set()
        if error is not None:
            raise error

    def preallocate(self, size: int) -> None:
        self._alive()
        self._disk.admit()
        room = self._disk.room()
        missing = size - len(self._inode.data)
        if room is not None and missing > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if missing > 0:
            self._inode.resize(size)

    def truncate(self, size: int) -> None:
        self._alive()
        self._disk.admit()
        self._disk.rearranged += size < len(self._inode.data)
        self._inode.resize(size)

    def size(self) -> int:
        self._alive()
        return len(self._inode.data)

    def will_need(self, offset: int, size: int) -> None:
        self._alive()

    def close(self) -> None:
        return

    def _alive(self) -> None:
        if self._life != self._disk.crashes:
            raise PowerCut(errno.EIO, "this handle belongs to a process that is dead")


class FakeDisk:
    """Deterministic for a seed. One folder, no threads."""

    def __init__(self, seed: int = 0, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.crashes = 0
        self.operations = 0  # operations that a power cut could interrupt
        self.rearranged = 0  # crashes, and changes to files other than writing and creating
        self.writes = 0
        self.syncs = 0
        self._random = Random(seed)
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._unsynced_names: list[tuple[str | None, str | None, _Inode]] = []  # (old name, new name, file)
        self._locked = False
        self._cut_at: int | None = None
        self._failing_writes: dict[int, tuple[int, int]] = {}
        self._failing_syncs: dict[int, int] = {}

    @property
    def folder(self) -> str:
        return "fake-disk"

    def open(self, name: str, *, create: bool = False, write: bool = False) -> FakeFile:
        self.admit()
        inode = self._names.get(name)
        if create:
            inode = _Inode()
            self._change(None, name, inode)
        elif inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return FakeFile(self, inode)

    def rename(self, old: str, new: str) -> None:
        self.admit()
        self._change(old, new, self._names[old])

    def remove(self, name: str) -> None:
        self.admit()
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self._change(name, None, self._names[name])

    def list(self) -> list[str]:
        self.admit()
        return sorted(self._names)

    def sync_dir(self) -> None:
        error = self.admit_sync()
        if error is not None:
            raise error
        self._durable_names = dict(self._names)
        self._unsynced_names.clear()

    def lock(self) -> None:
        if self._locked:
            raise JournalLocked(f"the journal in {self.folder} is in use by this very process")
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    def lost(self) -> str:
        return ""

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def crash(self, keep: Keep = Keep.NOTHING) -> None:
        """Stop and restart the machine. Earlier handles fail, the lock is free."""
        if keep is not Keep.EVERYTHING:
            self._lose(everything=keep is Keep.NOTHING)
        self._locked = False
        self._cut_at = None
        self._failing_writes.clear()
        self._failing_syncs.clear()
        self.crashes += 1
        self.rearranged += 1

    def _lose(self, *, everything: bool) -> None:
        if not everything:
            # POSIX orders nothing between two syncs of a directory, but each rename is atomic.
            for change in self._unsynced_names:
                if self._random.random() < 0.5:
                    _apply(self._durable_names, change)
        for inode in self._durable_names.values():
            size = len(inode.durable)
            sectors: set[int] = set()
            if not everything:
                size = self._random.choice([size, len(inode.data)])
                sectors = {sector for sector in sorted(inode.dirty) if self._random.random() < 0.5}
            inode.persist(sectors, size)
            inode.data = bytearray(inode.durable)
            inode.dirty = set()
        self._names = dict(self._durable_names)
        self._unsynced_names.clear()

    def cut_power_after(self, operations: int) -> None:
        """Allow this many more operations, then fail every one until ``crash``."""
        self._cut_at = self.operations + operations

    def fail_write(self, nth: int = 1, *, code: int = errno.EIO, partial: int = 0) -> None:
        """Make the nth write from now fail, after ``partial`` bytes."""
        self._failing_writes[self.writes + nth] = (code, partial)

    def fail_sync(self, nth: int = 1, *, code: int = errno.EIO) -> None:
        self._failing_syncs[self.syncs + nth] = code

    @property
    def expects_faults(self) -> bool:
        """Whether a requested fault has not happened yet, or is in effect."""
        return self._cut_at is not None or bool(self._failing_writes or self._failing_syncs)

    @contextmanager
    def spared(self) -> Iterator[None]:
        """For a test that inspects the disk: operations are not counted, and the power cut spares them."""
        operations, cut_at = self.operations, self._cut_at
        self._cut_at = None
        try:
            yield
        finally:
            self.operations, self._cut_at = operations, cut_at

    def flip(self, name: str, offset: int, mask: int = 1) -> None:
        """Flip bits of a file, also in its durable image."""
        inode = self._names[name]
        inode.data[offset] ^= mask
        if offset < len(inode.durable):
            inode.durable[offset] ^= mask

    def content(self, name: str) -> bytes:
        return bytes(self._names[name].data)

    def replace(self, name: str, content: bytes) -> None:
        """Durably create or replace a file."""
        self._names[name] = self._durable_names[name] = _Inode(bytearray(content), bytearray(content))

    def copy(self, seed: int = 0) -> FakeDisk:
        """Another disk with the same files, all durable, no faults and no owner."""
        twin = FakeDisk(seed, self.capacity)
        for name, inode in self._names.items():
            twin.replace(name, bytes(inode.data))
        return twin

    def admit(self) -> None:
        """Count an operation; PowerCut when the power is off."""
        self.operations += 1
        if self._cut_at is not None and self.operations > self._cut_at:
            raise PowerCut(errno.ENODEV, "the power is off")

    def admit_write(self, size: int) -> tuple[int, OSError | None]:
        """How many of the bytes may be written, and what to raise after them."""
        self.writes += 1
        try:
            self.admit()
        except PowerCut as exc:
            # Only the write during which the power fails is written in part.
            first = self._cut_at is not None and self.operations == self._cut_at + 1
            return (self._random.randint(0, size) if first else 0), exc
        code, partial = self._failing_writes.pop(self.writes, (0, size))
        return min(partial, size), OSError(code, os.strerror(code)) if code else None

    def admit_sync(self) -> OSError | None:
        self.syncs += 1
        self.admit()
        code = self._failing_syncs.pop(self.syncs, 0)
        return OSError(code, os.strerror(code)) if code else None

    def room(self) -> int | None:
        """Free bytes; None without a limit."""
        if self.capacity is None:
            return None
        return max(self.capacity - sum(len(inode.data) for inode in self._names.values()), 0)

    def _change(self, old: str | None, new: str | None, inode: _Inode) -> None:
        self.rearranged += old is not None
        change = (old, new, inode)
        _apply(self._names, change)
        self._unsynced_names.append(change)


def _apply(names: dict[str, _Inode], change: tuple[str | None, str | None, _Inode]) -> None:
    old, new, inode = change
    if old is not None and names.get(old) is inode:
        del names[old]
    if new is not None:
        names[new] = inode
