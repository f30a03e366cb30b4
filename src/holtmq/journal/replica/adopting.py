"""Uploads a journal that existed before its replica to PostgreSQL, once.

Owns: that upload. Must not touch: a log that is not empty.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Final

from holtmq.journal.checkpoint import checkpoint_name
from holtmq.journal.disk import Disk
from holtmq.journal.recovery import FoundSegment, TailWalk, survey
from holtmq.journal.segment import HEADER_SIZE, segment_name

from .errors import ReplicaRefused
from .mark import Mark, write_mark
from .store import ROW_BYTES, Kind, LogState, LogStore, Owner, Part

log = logging.getLogger(__name__)

BEAT_SECONDS: Final = 0.2


def adopt(disk: Disk, store: LogStore, state: LogState, owner: Owner, mark: Mark) -> None:
    """Take over the empty log, upload the folder's journal to it, and mark the folder as its copy.

    After a lost connection or a crash in the middle the folder is unchanged: the upload begins again, and the
    owner's next checkpoint drops the unfinished one.
    """
    is_mine = state.owner_process == owner.process or state.owner == owner.name
    if state.connected and not state.released and not is_mine:
        raise ReplicaRefused(
            f"{disk.folder} holds a journal of its own, and {state.owner} owns the log {store.name}: start "
            "this node first to bring its messages into PostgreSQL, or with an empty folder"
        )
    found = survey(disk)
    end = 0
    if found.segments:
        walk = TailWalk(disk, found)
        for _ in walk.records():
            pass
        end = walk.end
    if state.newest_part:  # all of it was uploaded, only the answer was lost
        write_mark(disk, Mark(mark.log, mark.folder, end, state.epoch))
        return
    epoch = store.take_over(owner, state, 0)
    if epoch is None:
        return  # another node was faster: the caller tries again
    log.warning("bringing this folder's journal into PostgreSQL", extra={"folder": disk.folder, "bytes": end})
    alive = _Heartbeat(store, owner)
    numbers = [_upload_segment(disk, alive, epoch, segment, end) for segment in found.segments]
    if found.checkpoint is not None:
        position = found.checkpoint.position
        numbers.append(_upload_file(disk, alive, epoch, checkpoint_name(position), Kind.CHECKPOINT, position))
    _sync_last(disk, found.segments)
    store.swap(owner, numbers, [])
    write_mark(disk, Mark(mark.log, mark.folder, end, epoch))


class _Heartbeat:
    """Uploads, with a heartbeat now and then: another node must not take over the log meanwhile."""

    def __init__(self, store: LogStore, owner: Owner) -> None:
        self._store = store
        self._owner = owner
        self._beaten_at = time.monotonic()

    def upload(self, epoch: int, part: Part, pieces: Iterable[bytes], at: int = 0) -> int:
        """As ``LogStore.upload``."""
        return self._store.upload(epoch, part, self._between(pieces), at)

    def _between(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            now = time.monotonic()
            if now - self._beaten_at >= BEAT_SECONDS:
                self._beaten_at = now
                self._store.beat(self._owner)
            yield piece


def _upload_segment(disk: Disk, alive: _Heartbeat, epoch: int, segment: FoundSegment, end: int) -> int:
    base = segment.header.base
    if segment.header.compacted:
        return _upload_file(disk, alive, epoch, segment.name, Kind.COMPACTED, base)
    file = disk.open(segment.name)
    try:
        stop = min(base + segment.size - HEADER_SIZE, end)

        def pieces() -> Iterator[bytes]:
            for at in range(base, stop, ROW_BYTES):
                yield file.pread(min(ROW_BYTES, stop - at), at - base + HEADER_SIZE)

        part = Part(0, Kind.PLAIN, base, file.pread(HEADER_SIZE, 0), 0)
        return alive.upload(epoch, part, pieces(), base)
    finally:
        file.close()


def _upload_file(disk: Disk, alive: _Heartbeat, epoch: int, name: str, kind: Kind, base: int) -> int:
    file = disk.open(name)
    try:
        size = file.size()
        pieces = (file.pread(min(ROW_BYTES, size - at), at) for at in range(0, size, ROW_BYTES))
        return alive.upload(epoch, Part(0, kind, base, file.pread(HEADER_SIZE, 0), size), pieces)
    finally:
        file.close()


def _sync_last(disk: Disk, segments: list[FoundSegment]) -> None:
    if segments:
        file = disk.open(segment_name(segments[-1].header.base), write=True)
        try:
            file.sync()
        finally:
            file.close()
