"""The files of a journal at one moment, kept open, so that they can be copied while the journal goes on.

Owns: which files make up a journal, and their identity. Must not touch: the running journal. An open file
keeps its content when compaction replaces it or a checkpoint deletes it; below ``size`` nothing changes.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from . import dropped, epoch
from .checkpoint import position_of
from .disk import Disk, File
from .manifest import Manifest
from .records import MARKER_SIZE
from .recovery import TailWalk, survey
from .segment import HEADER_SIZE, SegmentHeader, base_of, create_segment, read_header

_SMALL = (epoch.NAME, dropped.NAME)
_TELLING_END: Final = 16 << 10  # bytes


@dataclass(frozen=True, slots=True)
class KeptFile:
    """One file; ``identity`` is the same only for the same content, and is known without reading it all."""

    name: str
    size: int
    identity: str


@dataclass(slots=True)
class FileSet:
    """The files, and what a manifest says of them. ``close`` when they were copied."""

    end: int  # the log was durable up to here
    last_base: int
    checkpoint: int
    epoch: int
    files: list[KeptFile] = field(default_factory=list)
    _open: dict[str, File] = field(default_factory=dict)

    def read(self, name: str, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes of a file; KeyError when it is not one of these."""
        kept = next(file for file in self.files if file.name == name)
        return self._open[name].pread(min(size, kept.size - offset), offset) if offset < kept.size else b""

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


def keep_files(disk: Disk, end: int, epoch_number: int) -> FileSet:
    """Open every file of a journal whose log is durable up to ``end``. No checkpoint may run meanwhile."""
    kept = FileSet(end, 0, 0, epoch_number)
    with ExitStack() as opened:
        opened.callback(kept.close)
        names = disk.list()
        bases = sorted(base for base in map(base_of, names) if base is not None and base <= end)
        following = dict(pairwise(bases))
        for name in names:
            base, position = base_of(name), position_of(name)
            if base is not None and base <= end:
                kept.last_base = max(kept.last_base, base)
                file = kept._open[name] = disk.open(name)
                _add(kept, name, file, _segment_size(file, disk.folder, base, following.get(base, end)))
            elif position is not None and position <= end:
                kept.checkpoint = max(kept.checkpoint, position)
                file = kept._open[name] = disk.open(name)
                _add(kept, name, file, file.size())
            elif name in _SMALL:
                file = kept._open[name] = disk.open(name)
                _add(kept, name, file, file.size(), whole=True)
        opened.pop_all()
    return kept


def _segment_size(file: File, folder: str, base: int, stop: int) -> int:
    compacted = read_header(file, base, folder).compacted
    return file.size() if compacted else min(file.size(), stop - base + HEADER_SIZE)


def _add(kept: FileSet, name: str, file: File, size: int, *, whole: bool = False) -> None:
    # A segment's header has a random marker, and the number of its records once it is compacted; that of a
    # checkpoint has its position and the epoch of its owner. Two histories of one folder, before and after it
    # was put back to an earlier state, share these. The end tells them apart: the checksum of a checkpoint or
    # of an index is there, and of a log that goes on its newest records with their times.
    end = size if whole else min(size, _TELLING_END)
    telling = file.pread(HEADER_SIZE, 0) + file.pread(end, size - end)
    mark = hashlib.blake2b(telling, digest_size=10).hexdigest()
    kept.files.append(KeptFile(name, size, f"{name}-{size:x}-{mark}"))


def keep_files_of_stopped(disk: Disk) -> FileSet:
    """The same for a folder that the caller has locked and that no broker uses."""
    found = survey(disk)
    walk = TailWalk(disk, found)
    for _ in walk.records():
        pass
    return keep_files(disk, walk.end, found.epoch)


def complete_copy(disk: Disk, last_base: int, end: int, checkpoint: int, epoch_number: int) -> None:
    """Make a folder that was put together from copied files complete.

    Its broker appends to a new segment, whose marker is its own. With the copied one, it would write other
    records under the name, marker and perhaps size of a segment that the former broker has continued.
    """
    header = SegmentHeader(max(last_base, end), epoch_number, disk.random_bytes(MARKER_SIZE))
    create_segment(disk, header, 0).close()
    manifest = Manifest(disk, epoch_number)
    manifest.begin(header.base, end, checkpoint)
    manifest.close()
