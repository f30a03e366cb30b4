"""Applies the owner's checkpoints and compactions to PostgreSQL.

Owns: uploading checkpoints and compacted segments, dropping parts. Must not touch: the rows of the open
segment, and the decision what is reclaimed.

It compares PostgreSQL with the journal's segments, so what a lost connection or a crash left undone is done
next time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator

from holtmq.journal.checkpoint import checkpoint_name
from holtmq.journal.disk import Disk
from holtmq.journal.interface import JournalCorrupt, JournalError
from holtmq.journal.segment import HEADER_SIZE, read_header, segment_name

from .errors import Unreachable
from .refetching import Refetching
from .store import ROW_BYTES, Kind, LogStore, Owner, Part

log = logging.getLogger(__name__)


class Shipper:
    """Runs in the checkpointer's thread, on a session of its own."""

    def __init__(
        self,
        disk: Disk,
        store: LogStore,
        owner: Owner,
        epoch: Callable[[], int],
        refetching: Refetching,
        unusable: Collection[int] = (),
    ) -> None:
        self._disk = disk
        self._store = store
        self._owner = owner
        self._epoch = epoch
        self._refetching = refetching
        self._unusable = unusable  # numbers of checkpoints that could not be read at the start

    def published(self, position: int, older: int | None) -> None:
        """A checkpoint is valid in the folder: upload it before anything is reclaimed."""
        self._asking(lambda: self._ship_checkpoints(position, older))

    def refetch(self, base: int, *, is_open: bool) -> bool:
        """Replace a damaged segment of the folder by PostgreSQL's copy."""
        return self._refetching.replace(base, is_open=is_open)

    def reclaimed(self, sealed: Collection[int], deleted: Collection[int]) -> None:
        """Segments were deleted or compacted in the folder: do the same in PostgreSQL."""
        self._asking(lambda: self._compare(frozenset(sealed), frozenset(deleted)))

    def close(self) -> None:
        """Close the session."""
        self._store.session.close()

    def _asking(self, work: Callable[[], None]) -> None:
        # The connection was idle since the last checkpoint: the server may have been restarted since then.
        tries = 2 if self._store.session.current is not None else 1
        for left in reversed(range(tries)):
            try:
                if not self._store.id:
                    self._store.open(create=False)
                work()
                return
            except Unreachable as exc:
                if not left:
                    raise JournalError(f"PostgreSQL is out of reach: {exc}") from exc

    def _ship_checkpoints(self, position: int, older: int | None) -> None:
        """Upload this checkpoint. The one beside it must be at least as new as the folder's ``older``.

        Reclaiming keeps what that one needs. If an upload failed, PostgreSQL only has one from before.
        """
        found = [part for part in self._store.parts() if part.kind is Kind.CHECKPOINT]
        usable = [part for part in found if part.id not in self._unusable]
        beside = [part for part in usable if older is not None and older <= part.base < position][-1:]
        same = [part for part in usable if part.base == position and self._is_same(part)]
        new = [] if older is None or beside else [older]
        new += [] if same else [position]
        numbers = [self._upload(checkpoint_name(base), Kind.CHECKPOINT, base) for base in new]
        gone = [part.id for part in found if part not in beside + same]
        if numbers or gone:
            self._store.swap(self._owner, numbers, gone)

    def _is_same(self, part: Part) -> bool:
        """Whether this is the folder's checkpoint, and not another one at the same position."""
        file = self._disk.open(checkpoint_name(part.base))
        try:
            return file.size() == part.size and file.pread(HEADER_SIZE, 0) == part.header
        finally:
            file.close()

    def _compare(self, sealed: frozenset[int], deleted: frozenset[int]) -> None:
        # The writer owns the segments after these.
        parts = [part for part in self._store.parts() if part.base <= max(sealed, default=-1)]
        for part in parts:
            if part.kind is Kind.CHECKPOINT:
                continue
            # What the journal has given up, now or in a step that was interrupted. A file that is merely
            # missing in the folder is damage, and PostgreSQL has the only copy.
            if part.base in deleted or part.base not in sealed:
                self._store.swap(self._owner, [], [part.id])
            elif self._is_compacted_anew(part):
                number = self._upload(segment_name(part.base), Kind.COMPACTED, part.base)
                self._store.swap(self._owner, [number], [part.id])
        kept = [part for part in self._store.not_ready() if not self._store.drop(self._owner, part)]
        if kept:
            log.info("tables in use are dropped after a later checkpoint", extra={"tables": len(kept)})

    def _is_compacted_anew(self, part: Part) -> bool:
        try:
            file = self._disk.open(segment_name(part.base))
        except FileNotFoundError:
            return False
        try:
            header = read_header(file, part.base, self._disk.folder)
            return header.compacted and file.pread(HEADER_SIZE, 0) != part.header
        except JournalCorrupt:
            return False  # damaged here: PostgreSQL's copy is the better one
        finally:
            file.close()

    def _upload(self, name: str, kind: Kind, base: int) -> int:
        file = self._disk.open(name)
        try:
            size = file.size()

            def pieces() -> Iterator[bytes]:
                for at in range(0, size, ROW_BYTES):
                    yield file.pread(min(ROW_BYTES, size - at), at)

            part = Part(0, kind, base, file.pread(HEADER_SIZE, 0), size)
            return self._store.upload(self._epoch(), part, pieces())
        finally:
            file.close()
