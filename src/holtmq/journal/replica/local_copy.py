"""The data folder as a copy of the log in PostgreSQL.

Owns: what is kept of the folder at a start, what is fetched, and writing the rows that come later.
Must not touch: ownership, and what records mean.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import zip_longest
from uuid import UUID, uuid4

from holtmq.journal.checkpoint import Checkpoint, checkpoint_name, position_of, verify_checkpoint
from holtmq.journal.disk import Disk, File
from holtmq.journal.interface import JournalCorrupt
from holtmq.journal.manifest import NAME as MANIFEST
from holtmq.journal.recovery import walk_segment
from holtmq.journal.replacing import replace_file
from holtmq.journal.segment import (
    HEADER_SIZE,
    SegmentHeader,
    base_of,
    read_header,
    segment_name,
)

from .downloading import download, rows_of
from .errors import ReplicaRefused, StartAgain
from .mark import NAME, Mark, read_mark, write_mark
from .store import Kind, LogState, LogStore, Part

log = logging.getLogger(__name__)

NOTE_SECONDS = 1.0  # between marks while a folder is restored


class LocalCopy:
    """One folder, locked by the caller. Call ``restore`` first."""

    def __init__(self, disk: Disk, store: LogStore) -> None:
        self._disk = disk
        self._store = store
        self._file: File | None = None  # of the last segment
        self._base = 0
        self._parts: dict[int, Part] = {}
        self._fetched_from = 0  # everything from here on was fetched since the start
        self.mark = Mark(UUID(int=0), uuid4(), 0, 0)
        self.headers: dict[int, SegmentHeader] = {}  # by base
        self.unusable: set[int] = set()  # checkpoints in PostgreSQL, by the number of the part
        self.written = 0  # the copy ends here
        self.walked = 0  # records below this have been read
        self._problem = ""

    @property
    def has_segments(self) -> bool:
        """Whether the folder holds any part of a journal."""
        return any(base_of(name) is not None for name in self._disk.list())

    @property
    def last_base(self) -> int:
        """The base of the last segment."""
        return max(self.headers)

    @property
    def part_ids(self) -> dict[int, int]:
        """The part number in PostgreSQL of each plain segment, by base."""
        return {base: part.id for base, part in self._parts.items() if part.kind is Kind.PLAIN}

    def own_mark(self, state: LogState, *, adopted: bool = False) -> Mark | None:
        """The folder's mark for this log, or None; ReplicaRefused if its journal conflicts with this log.

        ``adopted``: what the log holds was uploaded from this folder.
        """
        mark = read_mark(self._disk)
        if mark is not None and mark.log == state.identity:
            self.mark = mark
            return mark
        if self.has_segments:
            if mark is None and NAME in self._disk.list():
                raise ReplicaRefused(
                    f"the file {NAME} in {self._disk.folder} is damaged, so which log in PostgreSQL this "
                    "folder copies is unknown: remove the folder, the node fetches everything again"
                )
            what = "of another log" if mark is not None else "of its own"
            if mark is not None or (state.newest_part and not adopted):
                raise ReplicaRefused(
                    f"{self._disk.folder} holds a journal {what}, and the log {self._store.name} in "
                    "PostgreSQL is not empty: start with an empty folder to copy that log, or with another "
                    "journal.replica_name to keep this folder's messages"
                )
        self.mark = Mark(state.identity, self.mark.folder, 0, 0)
        return None

    def restore(self, state: LogState) -> Checkpoint | None:
        """Make the folder equal to PostgreSQL as it is now; return the checkpoint to start from, if any."""
        end = self._store.end()
        parts = self._store.parts()
        trusted = min(self.mark.position, end)
        cut = self._store.epoch_after(self.mark.epoch)
        if cut is not None:
            trusted = min(trusted, cut)
        if trusted < self.mark.position:
            log.warning(
                "the end of this folder's journal was replaced by another owner",
                extra={"position": self.mark.position, "kept": trusted},
            )
        self._note(trusted, state.epoch)
        self._fetched_from = trusted
        segments = [part for part in parts if part.kind is not Kind.CHECKPOINT]
        checkpoints = [part for part in parts if part.kind is Kind.CHECKPOINT]
        self._remove_others({part.base for part in segments}, {part.base for part in checkpoints})
        self._parts = {part.base: part for part in segments}
        self.headers = {}
        self.written = 0
        noted_at = time.monotonic()
        ends = [part.base for part in segments[1:]]
        for part, end in zip_longest(segments, ends):
            self._leave()
            if time.monotonic() - noted_at >= NOTE_SECONDS:
                # A lost connection must not cost what was fetched so far.
                self._disk.sync_dir()
                self._note(max(trusted, part.base), state.epoch)
                noted_at = time.monotonic()
            self._bring(part, trusted, end)
        checkpoint = self._bring_checkpoint(checkpoints, segments)
        self._disk.sync_dir()
        self.sync(state.epoch)
        self.walked = 0 if checkpoint is None else checkpoint.position
        return checkpoint

    def _remove_others(self, segments: set[int], checkpoints: set[int]) -> None:
        for name in self._disk.list():
            if name == MANIFEST:  # for folders without a replica; here PostgreSQL says what must exist
                self._disk.remove(name)
            base, position = base_of(name), position_of(name)
            if (base is not None and base not in segments) or (
                position is not None and position not in checkpoints
            ):
                self._disk.remove(name)

    def _bring(self, part: Part, trusted: int, end: int | None) -> None:
        """Make a segment equal to PostgreSQL's; ``end``: where the next one begins."""
        name = segment_name(part.base)
        if part.kind is Kind.COMPACTED:
            if not self._is_same_file(name, part):
                download(self._disk, self._store, name, part)
        else:
            have = self._usable(part, trusted)
            if have is None:
                download(self._disk, self._store, name, part)
            if have is not None and have == end:
                self.written = have  # complete, and synced when the mark was set
            else:
                self._open_last(part, have)
                for position, data in rows_of(self._store, part, self.written):
                    self._write(position, data)
        file = self._disk.open(name)
        try:
            self.headers[part.base] = read_header(file, part.base, self._disk.folder)
        finally:
            file.close()

    def _usable(self, part: Part, trusted: int) -> int | None:
        """Up to where the folder's plain segment can be kept; None when it must be fetched as a whole.

        A full segment's file has exactly its size; the file of the last one may extend beyond the mark.
        """
        try:
            file = self._disk.open(segment_name(part.base))
        except FileNotFoundError:
            return None
        try:
            have = min(trusted, part.base + file.size() - HEADER_SIZE)
            same = file.pread(HEADER_SIZE, 0) == part.header
            return have if part.base < have and same and self._ends_alike(file, part, have) else None
        finally:
            file.close()

    def _ends_alike(self, file: File, part: Part, end: int) -> bool:
        """Whether a row in PostgreSQL ends at ``end``, and the file has the same bytes there.

        Each row begins with a SYNC record that has a time in it, so equal rows mean equal histories. After
        PostgreSQL has lost rows (docs/failover.md), another owner may have written others.
        """
        found = self._store.last_row(part.id, end)
        if found is None:
            return False
        position, length, digest = found
        here = file.pread(length, position - part.base + HEADER_SIZE)
        return position + length == end and sha256(here).digest() == digest

    def require_same_history(self) -> None:
        """StartAgain if PostgreSQL does not have the end of the copy."""
        part = self._parts.get(self._base) if self._file is not None else None
        if part is None or self.written == part.base:
            return
        assert self._file is not None
        if not self._ends_alike(self._file, part, self.written):
            raise StartAgain(f"PostgreSQL has another history before {self.written} than this node's copy")

    def _is_same_file(self, name: str, part: Part) -> bool:
        try:
            file = self._disk.open(name)
        except FileNotFoundError:
            return False
        try:
            return file.size() == part.size and file.pread(HEADER_SIZE, 0) == part.header
        finally:
            file.close()

    def _bring_checkpoint(self, parts: Sequence[Part], segments: Sequence[Part]) -> Checkpoint | None:
        """The newest usable checkpoint; None: the records of the whole log are replayed.

        PostgreSQL keeps two, and everything that the older one needs.
        """
        bases = {part.base for part in segments}
        for part in reversed(parts):
            try:
                return self._usable_checkpoint(part, bases)
            except JournalCorrupt as exc:
                self.unusable.add(part.id)
                log.error("a checkpoint in PostgreSQL cannot be used", extra={"problem": str(exc)})
        if parts and (not segments or segments[0].base or any(p.kind is not Kind.PLAIN for p in segments)):
            raise JournalCorrupt(
                f"no checkpoint of the log {self._store.name} in PostgreSQL can be used, and the records "
                "before them have been reclaimed: restore PostgreSQL from a backup"
            )
        return None

    def _usable_checkpoint(self, part: Part, bases: set[int]) -> Checkpoint:
        name = checkpoint_name(part.base)
        if not (self._is_same_file(name, part) and self._is_sound_checkpoint(part.base)):
            download(self._disk, self._store, name, part)
        found = verify_checkpoint(self._disk, part.base)
        if missing := set(found.segments) - bases:
            raise JournalCorrupt(f"{name} needs the segment {segment_name(min(missing))}, which is gone")
        return found

    def _is_sound_checkpoint(self, position: int) -> bool:
        try:
            verify_checkpoint(self._disk, position)
        except JournalCorrupt as exc:
            log.error("a damaged checkpoint in this folder is fetched again", extra={"problem": str(exc)})
            return False
        return True

    def _open_last(self, part: Part, have: int | None) -> None:
        self._file, self._base = self._disk.open(segment_name(part.base), write=True), part.base
        size = self._file.size() if have is None else have - part.base + HEADER_SIZE
        self._file.truncate(size)
        self.written = part.base + size - HEADER_SIZE

    def enter(self, part: Part, epoch: int) -> None:
        """Continue the copy in this segment. ``epoch``: one in which the log was as the copy is now."""
        if self._file is not None:
            self.sync(epoch)
            self._leave()
        self._parts[part.base] = part
        self.create(part.base, part.header)

    def create(self, base: int, header: bytes) -> None:
        """Create an empty segment."""
        name = segment_name(base)
        replace_file(self._disk, name, header)
        self._file, self._base = self._disk.open(name, write=True), base
        self.headers[base] = read_header(self._file, base, self._disk.folder)
        self.written = base

    def add(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Write more rows of the last segment."""
        for position, data in rows:
            self._write(position, data)

    def _write(self, position: int, data: bytes) -> None:
        if position != self.written:
            raise StartAgain(f"a row at {position}, but the copy ends at {self.written}")
        assert self._file is not None
        self._file.pwrite([data], position - self._base + HEADER_SIZE)
        self.written += len(data)

    def _leave(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None

    def sync(self, epoch: int) -> None:
        """Sync and mark everything so far, so that it can be trusted after a power cut."""
        if self._file is not None:
            self._file.sync()
        self._note(self.written, epoch)

    def _note(self, position: int, epoch: int) -> None:
        self.mark = Mark(self.mark.log, self.mark.folder, position, epoch)
        write_mark(self._disk, self.mark)

    def mirror(self, parts: Sequence[Part]) -> bool:
        """The owner has reclaimed space: delete and replace segments here as in PostgreSQL.

        False when it has reclaimed more meanwhile: ask for the parts again.
        """
        found = {part.base: part for part in parts if part.kind is not Kind.CHECKPOINT}
        for base in sorted(self._parts):
            if base not in found and base != self.last_base:
                self._disk.remove(segment_name(base))
                del self._parts[base], self.headers[base]
        try:
            for base, part in found.items():
                old = self._parts.get(base)
                if part.kind is Kind.COMPACTED and old is not None and old.id != part.id:
                    download(self._disk, self._store, segment_name(base), part)
                    self._parts[base] = part
        except StartAgain:
            return False
        self._disk.sync_dir()
        return True

    def walk(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the records from ``walked`` to the last whole one of the copy."""
        bases = sorted(self.headers)
        for base, stop in zip(bases, [*bases[1:], self.written], strict=False):
            if stop <= self.walked:
                continue
            file = self._disk.open(segment_name(base))
            try:
                walk = yield from walk_segment(file, self.headers[base], max(self.walked, base), stop)
            finally:
                file.close()
            self.walked = walk.position
            if walk.position != stop:
                self._problem = walk.problem or "it ends here"
                return

    def require_whole(self) -> None:
        """Raise if ``walk`` could not read everything: the copy is complete, so the rest is damaged."""
        if self.walked < self.written:
            self._damaged(
                max(base for base in self.headers if base <= self.walked), self.walked, self._problem
            )

    def _damaged(self, base: int, position: int, problem: str) -> None:
        if position >= self._fetched_from and self._is_as_fetched(base, position):
            raise JournalCorrupt(
                f"the log {self._store.name} in PostgreSQL is damaged at position {position}: {problem}"
            )
        log.error(
            "a damaged segment in this folder is fetched again",
            extra={"segment": segment_name(base), "position": position, "problem": problem},
        )
        self._note(base, 0)
        raise StartAgain(f"the segment at {base} is damaged at {position}: {problem}")

    def _is_as_fetched(self, base: int, position: int) -> bool:
        """Whether the file has the bytes of PostgreSQL's row there: then the row is damaged, not the file."""
        part = self._parts.get(base)
        if part is None or part.kind is not Kind.PLAIN:
            return True
        found = self._store.last_row(part.id, position + 1)
        if found is None:
            return True
        start, length, digest = found
        file = self._disk.open(segment_name(base))
        try:
            return sha256(file.pread(length, start - base + HEADER_SIZE)).digest() == digest
        finally:
            file.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
