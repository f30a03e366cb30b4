"""Replaces a damaged segment in the folder by PostgreSQL's copy.

Owns: that exchange, on a connection of its own for each. Must not touch: bytes that PostgreSQL has not
committed. In the segment that is being written, the writer appends behind them meanwhile.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from holtmq.journal.disk import Disk
from holtmq.journal.interface import JournalError
from holtmq.journal.scrub import Rot, scrub_segment
from holtmq.journal.segment import HEADER_SIZE, TEMPORARY, base_of, segment_name

from .downloading import fetch
from .errors import StartAgain, Unreachable
from .store import Kind, LogStore, Part

log = logging.getLogger(__name__)

_PIECE: Final = 1 << 20


class Refetching:
    """Called by any thread, one at a time."""

    def __init__(self, disk: Disk, store: LogStore) -> None:
        self._disk = disk
        self._store = store
        self._turn = threading.Lock()
        self._useless: set[int] = set()  # numbers of parts that are damaged in PostgreSQL, too

    def replace(self, base: int, *, is_open: bool) -> bool:
        """Replace a segment; False when PostgreSQL has no better one. JournalError if it is out of reach.

        ``is_open``: the writer has the file open, so the damaged bytes in it are overwritten.
        """
        with self._turn:
            try:
                self._store.open(create=False)
                return self._replace(base, is_open)
            except StartAgain:
                return False  # reclaimed by now
            except Unreachable as exc:
                raise JournalError(
                    f"{segment_name(base)} is damaged, and PostgreSQL is out of reach: {exc}"
                ) from exc
            finally:
                self._store.session.close()

    def _replace(self, base: int, is_open: bool) -> bool:
        part = self._find(base)
        if part is None or part.id in self._useless:
            return False
        name = segment_name(base)
        fetch(self._disk, self._store, name, part)
        following = sorted(at for at in map(base_of, self._disk.list()) if at is not None and at > base)
        if is_open:
            following = [base + self._size(name + TEMPORARY) - HEADER_SIZE]
        steps = scrub_segment(self._disk, base, following, TEMPORARY)
        problems = [step for step in steps if isinstance(step, Rot)]
        if problems:
            if not is_open:  # rows will follow that are sound
                self._useless.add(part.id)
            self._disk.remove(name + TEMPORARY)
            log.error(
                "a segment is damaged in this folder and in PostgreSQL",
                extra={"segment": name, "position": problems[0].position, "reason": problems[0].reason},
            )
            return False
        if is_open:
            if not self._overwrite(name):
                return False
        else:
            self._disk.rename(name + TEMPORARY, name)
            self._disk.sync_dir()
        log.warning("a damaged segment was fetched again from PostgreSQL", extra={"segment": name})
        return True

    def _overwrite(self, name: str) -> bool:
        """Write the fetched bytes over those that differ; False when none do.

        If the file is missing, the fetched one takes its name. The writer goes on with the file that has lost
        it, until the next segment; what it writes is fetched by the first read that needs it.
        """
        try:
            file = self._disk.open(name, write=True)
        except FileNotFoundError:
            self._disk.rename(name + TEMPORARY, name)
            self._disk.sync_dir()
            return True
        fetched, differed = self._disk.open(name + TEMPORARY), False
        try:
            for at in range(0, fetched.size(), _PIECE):
                data = fetched.pread(min(_PIECE, fetched.size() - at), at)
                if file.pread(len(data), at) != data:
                    differed = True
                    file.pwrite([data], at)
            file.sync()
        finally:
            file.close()
            fetched.close()
        self._disk.remove(name + TEMPORARY)
        return differed

    def _size(self, name: str) -> int:
        file = self._disk.open(name)
        try:
            return file.size()
        finally:
            file.close()

    def _find(self, base: int) -> Part | None:
        parts = [part for part in self._store.parts() if part.kind is not Kind.CHECKPOINT]
        return next((part for part in parts if part.base == base), None)
