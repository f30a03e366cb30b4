"""The file system operations that the journal needs, and their implementation.

Owns: ``Disk`` and ``File`` (tests replace them by a disk that crashes, fills up and fails) and ``OsDisk``.
Must not touch: what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import pwd
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from .interface import JournalError, JournalLocked

_IOV_MAX: Final = 1024
_LOCK_NAME: Final = "lock"
_BLOCK: Final = 4096

log = logging.getLogger(__name__)


class File(Protocol):
    def pwrite(self, parts: Sequence[bytes], offset: int) -> None:
        """Write all parts one after the other; OSError unless all were written."""
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """Everything written to this file, and its size, is durable when this returns."""
        ...

    def preallocate(self, size: int) -> None:
        """Make the file at least this big: new bytes are zero, their space is reserved."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def will_need(self, offset: int, size: int) -> None:
        """A hint to read ahead."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One folder. Names are plain file names in it; a name is durable only after ``sync_dir``."""

    @property
    def folder(self) -> str: ...

    def open(self, name: str, *, create: bool = False, write: bool = False) -> File: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def list(self) -> list[str]: ...

    def sync_dir(self) -> None: ...

    def lock(self) -> None:
        """Lock the folder until ``unlock``; JournalLocked names the current owner."""
        ...

    def unlock(self) -> None: ...

    def lost(self) -> str:
        """Why the locked folder is no longer the one of that name, or ""."""
        ...

    def random_bytes(self, size: int) -> bytes: ...


class OsFile:
    """An open file. Blocks that the device cannot read are returned as zeros, and logged.

    Everything in a journal has a checksum, so a bad sector is treated like any other damage there.
    """

    __slots__ = ("_fd", "_name")

    def __init__(self, fd: int, name: str = "") -> None:
        self._fd = fd
        self._name = name

    def pwrite(self, parts: Sequence[bytes], offset: int) -> None:
        at = 0
        waiting: list[bytes | memoryview] = []
        while at < len(parts) or waiting:
            if not waiting:
                waiting = list(parts[at : at + _IOV_MAX])
                at += len(waiting)
            written = os.pwritev(self._fd, waiting, offset)
            offset += written
            if written == sum(map(len, waiting)):  # nearly always: no loop over the parts
                waiting = []
                continue
            while waiting and written >= len(waiting[0]):
                written -= len(waiting.pop(0))
            if written:  # a short write: the next call writes the rest or raises the reason
                waiting[0] = memoryview(waiting[0])[written:]

    def pread(self, size: int, offset: int) -> bytes:
        data = self._read_some(size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = self._read_some(size - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def _read_some(self, size: int, offset: int) -> bytes:
        try:
            return os.pread(self._fd, size, offset)
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
            return self._read_around(min(size, self.size() - offset), offset)

    def _read_around(self, size: int, offset: int) -> bytes:
        """Read what can be read of a stretch with bad blocks: halve it until a single block fails."""
        if offset // _BLOCK == (offset + size - 1) // _BLOCK:
            log.error("the disk cannot read", extra={"file": self._name, "offset": offset, "bytes": size})
            return bytes(size)
        half = (offset + size // 2 + _BLOCK - 1) // _BLOCK * _BLOCK - offset
        half = half if half < size else half - _BLOCK
        return self.pread(half, offset) + self.pread(size - half, offset + half)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def preallocate(self, size: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            if (
                os.fstat(self._fd).st_size < size
            ):  # a file system without fallocate: slower syncs, still correct
                os.ftruncate(self._fd, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def will_need(self, offset: int, size: int) -> None:
        os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def folder_trouble(folder: Path, error: OSError) -> str:
    """Why a folder cannot hold a journal, in a sentence that says what to do."""
    match error.errno:
        case errno.EEXIST | errno.ENOTDIR:
            why = "it, or a part of its path, is a file: name a folder"
        case errno.EACCES | errno.EPERM:
            why = f"user {_user_name()} may not write there: give the folder to that user, or use another"
        case errno.EROFS:
            why = "its file system is mounted read-only: mount it for writing, or use another folder"
        case errno.ENOSPC | errno.EDQUOT:
            why = "there is no space left on its file system: free some, or use another folder"
        case errno.ENAMETOOLONG:
            why = "the name is too long"
        case _:
            why = error.strerror or str(error)
    return f"the data folder {folder} cannot be used: {why}"


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"number {os.geteuid()}"


def _refuse_irregular(fd: int, path: Path) -> None:
    """Close a pipe, folder or device in place of a file, and raise OSError."""
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def give_to_owner_of(folder: Path, fd: int) -> None:
    """Let a new file belong to the owner of its folder, if root created it there for another user.

    An administrator changes or restores the folder of a broker that runs as a user of its own: that broker
    must be able to open what was written.
    """
    if os.geteuid() == 0:
        owner = folder.stat()
        if owner.st_uid:
            with contextlib.suppress(PermissionError):  # a container's root may not do it
                os.fchown(fd, owner.st_uid, owner.st_gid)


class OsDisk:
    """A real folder, created if it does not exist."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise JournalError(folder_trouble(self._folder, error)) from error
        self._lock_fd = -1

    @property
    def folder(self) -> str:
        return str(self._folder)

    def open(self, name: str, *, create: bool = False, write: bool = False) -> OsFile:
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_TRUNC
        path = self._folder / name
        # Without O_NONBLOCK a pipe under this name would be waited for, for ever.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        _refuse_irregular(fd, path)
        if create:
            give_to_owner_of(self._folder, fd)
        return OsFile(fd, str(path))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._folder / old, self._folder / new)

    def remove(self, name: str) -> None:
        os.unlink(self._folder / name)

    def list(self) -> list[str]:
        return sorted(os.listdir(self._folder))

    def sync_dir(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self) -> None:
        try:
            fd = os.open(self._folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(folder_trouble(self._folder, error)) from error
        try:
            _refuse_irregular(fd, self._folder / _LOCK_NAME)
        except OSError as error:
            raise JournalError(f"the data folder {self._folder} cannot be used: {error}") from None
        give_to_owner_of(self._folder, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            owner = os.pread(fd, 200, 0).decode("utf-8", "replace").strip() or "an unknown process"
            os.close(fd)
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise JournalLocked(
                f"the journal in {self._folder} is in use by {owner}: stop that broker, or use another folder"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._lock_fd = fd

    def unlock(self) -> None:
        if self._lock_fd >= 0:
            with contextlib.suppress(OSError):  # a former owner's name in the file would mislead
                os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def lost(self) -> str:
        if self._lock_fd < 0:
            return ""
        lock = self._folder / _LOCK_NAME
        try:
            named = os.stat(lock)
        except (FileNotFoundError, NotADirectoryError):
            return f"{lock} is gone: the folder was removed, renamed or unmounted"
        if not os.path.samestat(named, os.fstat(self._lock_fd)):
            return f"{lock} is another file now: the folder was replaced"
        return ""

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)
