"""Stores transient messages for which memory has no room, in unlinked files without syncs.

Owns: the files, freeing their space, and the check that what is read is what was written. A file is freed
when no run in it is in use, or when the process ends. Must not touch: what the bytes mean. Nothing survives a
restart, and transient messages need not.
"""

from __future__ import annotations

import errno
import logging
import os
import tempfile
from pathlib import Path
from typing import Final

from .checksum import crc32

log = logging.getLogger(__name__)

_SEGMENT_BYTES: Final = 64 << 20


class SpillFile:
    """Stores runs of bytes in files in a folder."""

    __slots__ = ("_current", "_failing", "_folder")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._current: _Segment | None = None
        self._failing = False

    def write(self, data: bytes) -> SpillFileRange:
        """Store these bytes; OSError when they cannot be written."""
        try:
            run = self._segment().write(data)
        except OSError as error:
            if not self._failing:  # log once, not for every run: the disk may be full for hours
                self._failing = True
                log.warning(
                    "transient messages stay in memory: they cannot be spilled",
                    extra={"folder": str(self._folder), "reason": str(error)},
                )
            raise
        self._failing = False
        return run

    def _segment(self) -> _Segment:
        current = self._current
        if current is None or current.written >= _SEGMENT_BYTES:
            if current is not None:
                current.seal()
            current = self._current = _Segment(self._folder)
        elif not current.live:
            current.start_over()
        return current


class _Segment:
    """One unlinked file. It is closed, and thereby deleted, when it is sealed and no run in it is in use."""

    __slots__ = ("_descriptor", "_sealed", "live", "written")

    def __init__(self, folder: Path) -> None:
        self._descriptor, name = tempfile.mkstemp(prefix="spill-", dir=folder)
        os.unlink(name)  # a crash leaves nothing behind
        self._sealed = False
        self.live = 0  # runs that may still be read
        self.written = 0

    def write(self, data: bytes) -> SpillFileRange:
        offset, view = self.written, memoryview(data)
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, view[done:], offset + done)
        self.written = offset + len(data)
        self.live += 1
        return SpillFileRange(self, offset, len(data), crc32(data, 0))

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                raise OSError(errno.EIO, f"the spill file ends {size - len(data)} bytes too early")
            data += more
        return data

    def start_over(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self.written = 0

    def seal(self) -> None:
        self._sealed = True
        if not self.live:
            self._close()

    def release(self) -> None:
        self.live -= 1
        if self._sealed and not self.live:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self._close()


class SpillFileRange:
    """Bytes in a spill file; they are released with this object."""

    __slots__ = ("_checksum", "_offset", "_segment", "_size")

    def __init__(self, segment: _Segment, offset: int, size: int, checksum: int) -> None:
        self._segment = segment
        self._offset = offset
        self._size = size
        self._checksum = checksum  # in memory, so that a run written over by another is noticed, too

    def read(self) -> bytes:
        """The bytes that were written; OSError when the disk does not return them."""
        data = self._segment.read(self._offset, self._size)
        if crc32(data, 0) != self._checksum:
            raise OSError(errno.EIO, "the checksum of a run in the spill file does not match")
        return data

    def __del__(self) -> None:
        self._segment.release()
