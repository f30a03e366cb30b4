"""Opens a journal with a replica: from a PostgreSQL address and a folder to a log that this node owns.

Owns: the order: connect to PostgreSQL, restore the folder, follow the owner, take over, write. Must not
touch: the decisions within each step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

import psycopg

from holtmq.journal.checkpoint import Checkpoint, read_checkpoint
from holtmq.journal.disk import Disk, OsDisk
from holtmq.journal.file_journal import FileJournal
from holtmq.journal.interface import Defer, JournalCorrupt, JournalFailed, Later, Recovery
from holtmq.journal.options import JournalOptions
from holtmq.journal.records import MARKER_SIZE
from holtmq.journal.segment import HEADER_SIZE, TEMPORARY, SegmentHeader, segment_name
from holtmq.journal.versions import WRITER, version_name
from holtmq.journal.writer import OpenLog

from .adopting import adopt
from .appending import Appender
from .errors import ReplicaRefused, StartAgain, Unreachable
from .following import Follower, Watching
from .local_copy import LocalCopy
from .refetching import Refetching
from .replicated_writer import ReplicatedWriter
from .session import Session
from .shipping import Shipper
from .store import LogStore, Owner
from .view import ReplicaView, Role, StoppedWaiting

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5
_SHIP_SECONDS: Final = 10.0  # answer timeout for uploads; a node that ends waits for the one that runs
_ANSWER_SECONDS: Final = 2.0  # minimum answer timeout
_UNSAFE: Final = "PostgreSQL runs with fsync = off: a crash of its machine loses what was confirmed"


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    url: str
    name: str = "holtmq"  # of the log
    node: str = "node"
    address: str = ""  # where clients reach this node
    takeover_after: float = 5.0
    min_standbys: int = 0
    standby: bool = False
    busy_poll: float = 0.0  # seconds to poll for the answer to a small commit


class ReplicatedOpening:
    """A journal that is being opened. Read ``recovery`` in a thread: it ends when this node owns the log."""

    def __init__(
        self,
        folder: Path | str,
        options: JournalOptions,
        replica: ReplicaOptions,
        *,
        disk: Disk | None = None,
        defer: Defer | None = None,
        notify: Defer | None = None,
        later: Later | None = None,
        clock: Callable[[], float] = time.time,
        view: ReplicaView | None = None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.view = view or ReplicaView()
        self._disk = disk or OsDisk(folder)
        self._options = replace(options, sync=False)
        self._replica = replica
        self._clock = clock
        self._process = uuid4()
        self._stopping = False
        self._follower: Follower | None = None
        self._copy: LocalCopy | None = None
        self._start_from: Checkpoint | None = None
        self._warned = False
        self._failed_before: tuple[str, int, int] | None = None
        self._answer_seconds = max(replica.takeover_after, _ANSWER_SECONDS)
        self._store = LogStore(Session(replica.url, self._answer_seconds, "log"), replica.name)
        self.journal = FileJournal(self._disk, self._options, defer, notify, later, flush=flush)
        self.recovery = Recovery(checkpoint=self._checkpoint(), records=iter(()), epoch=0)
        self.recovery.records = self._records()

    def stop(self) -> None:
        """Stop waiting for the log. May be called from any thread."""
        self._stopping = True
        if self._follower is not None:
            self._follower.stop()

    def _checkpoint(self) -> Iterator[tuple[int, bytes]]:
        self._prepare_once()
        if self._start_from is not None:
            yield from read_checkpoint(self._disk, self._start_from.position)

    def _prepare_once(self) -> None:
        if self._copy is not None:
            return
        self._disk.lock()
        with self._abandoning():
            self._copy = copy = self._prepare()
        writers = [header.writer for header in copy.headers.values()]
        writers += [self._start_from.writer] if self._start_from is not None else []
        self.recovery.writer = version_name(max(writers, default=WRITER))

    def _prepare(self) -> LocalCopy:
        for name in self._disk.list():
            if name.endswith(TEMPORARY):
                self._disk.remove(name)
        if self._replica.min_standbys:
            self._store.needs_statistics = True
        while not self._stopping:
            try:
                self._state = state = self._store.open()
                if self._store.is_unsafe and not self._warned:
                    self._warned = True
                    log.warning(_UNSAFE, extra={})
                copy = LocalCopy(self._disk, self._store)
                adopted = state.owner_process == self._process
                if copy.own_mark(state, adopted=adopted) is None and copy.has_segments:
                    owner = Owner(self._replica.node, copy.mark.folder, self._process)
                    adopt(self._disk, self._store, state, owner, copy.mark)
                    continue
                # An earlier process has reported a complete copy. No owner must hand over to this one yet.
                self._store.report(self._replica.node, Role.STARTING, self._replica.address, 0, 0.0)
                self.view.trouble = ""
                self._start_from = copy.restore(state)
                return copy
            except Unreachable as exc:
                if not self.view.trouble:
                    log.warning("PostgreSQL is out of reach", extra={"reason": str(exc)})
                self.view.trouble = f"PostgreSQL is out of reach: {exc}"
            except StartAgain as exc:  # the owner reclaimed a segment while this node fetched it
                self._begin_again(str(exc))
            time.sleep(_RETRY_SECONDS)
        raise StoppedWaiting

    def _begin_again(self, reason: str) -> None:
        """JournalCorrupt when the log has not changed since the last attempt failed for the same reason."""
        failed = (reason, self._state.newest_part, self._state.part_count)
        if failed == self._failed_before:
            raise JournalCorrupt(f"the log {self._store.name} in PostgreSQL has a gap: {reason}")
        self._failed_before = failed
        log.info("the copy begins again", extra={"reason": reason})

    @contextmanager
    def _abandoning(self) -> Iterator[None]:
        """Release everything after an error, and give the error a type that the caller knows."""
        try:
            yield
        except BaseException as exc:
            self.abandon()
            if isinstance(exc, OSError):
                raise JournalFailed(f"opening {self._disk.folder}: {exc}") from exc
            if isinstance(exc, psycopg.Error):
                raise ReplicaRefused(f"PostgreSQL refuses: {exc}") from exc
            raise

    def _records(self) -> Iterator[tuple[int, int, bytes]]:
        replica = self._replica
        self._prepare_once()
        copy = self._copy
        assert copy is not None
        with self._abandoning():
            owner = Owner(replica.node, copy.mark.folder, self._process)
            watching = Watching(replica.takeover_after, replica.standby, replica.address)
            self._follower = follower = Follower(self._store, copy, owner, watching, self.view)
            if self._stopping:
                raise StoppedWaiting
            yield from follower.records(self._state)
            self.recovery.epoch, self.recovery.clean = follower.epoch, follower.was_released
            self.journal.opened(self._open_log(copy, owner, follower.epoch))

    def _open_log(self, copy: LocalCopy, owner: Owner, epoch: int) -> OpenLog:
        capacity = self._options.segment_bytes - HEADER_SIZE
        if not copy.headers:
            copy.create(0, SegmentHeader(0, epoch, self._disk.random_bytes(MARKER_SIZE)).encode())
        copy.close()
        base, end = copy.last_base, copy.written
        capacity = max(capacity, end - base)
        file = self._disk.open(segment_name(base), write=True)
        file.preallocate(HEADER_SIZE + capacity)
        minimum = self._replica.min_standbys
        appender = Appender(self._store, owner, epoch, end, copy.part_ids, minimum, self.view)
        writer = ReplicatedWriter(
            self._disk,
            file,
            copy.headers[base],
            capacity,
            self._clock,
            appender,
            self._store,
            owner,
            copy.mark,
            self.view,
            self._replica.takeover_after,
            self._replica.address,
            self._replica.busy_poll,
        )
        sizes = [(base, self._size(base)) for base in sorted(copy.headers)[:-1]]
        sizes.append((base, HEADER_SIZE + capacity))
        shipping, mending = [
            LogStore(Session(self._replica.url, seconds, purpose, self._answer_seconds), self._replica.name)
            for seconds, purpose in (
                (max(_SHIP_SECONDS, self._answer_seconds), "checkpoints"),
                (self._answer_seconds, "repairs"),
            )
        ]
        refetch = Refetching(self._disk, mending)
        shipper = Shipper(self._disk, shipping, owner, lambda: appender.epoch, refetch, copy.unusable)
        return OpenLog(writer, epoch, sizes, capacity, end, self._start_from, shipper)

    def _size(self, base: int) -> int:
        file = self._disk.open(segment_name(base))
        try:
            return file.size()
        finally:
            file.close()

    def abandon(self) -> None:
        """Close everything without releasing the log, as a crash does."""
        self._store.session.close()
        self.journal.release()
