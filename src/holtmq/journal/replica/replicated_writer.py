"""The owner's writer: each commit goes to the folder and to PostgreSQL; it is durable when PostgreSQL has it.

Owns: the order of the two, the heartbeat, the mark in the folder. Must not touch: the journal's state.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holtmq.journal.disk import Disk, File
from holtmq.journal.segment import SegmentHeader
from holtmq.journal.writer import BegunCommit, Commit, Group, LogWriter, Stretch

from .appending import Appender
from .errors import Unreachable
from .mark import Mark, write_mark
from .store import LogStore, Owner
from .view import GONE, Peer, ReplicaView, Role

log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 3.0
_SMALL_BYTES: Final = 16 << 10
_LOOK_SECONDS: Final = 0.2  # how often an idle owner looks whether its connection is alive


class ReplicatedWriter(LogWriter):
    """A ``LogWriter`` that does not sync: PostgreSQL decides what is durable."""

    def __init__(
        self,
        disk: Disk,
        file: File,
        header: SegmentHeader,
        capacity: int,
        clock: Callable[[], float],
        appender: Appender,
        store: LogStore,
        owner: Owner,
        mark: Mark,
        view: ReplicaView,
        takeover_after: float,
        address: str,
        poll_seconds: float,
    ) -> None:
        super().__init__(disk, file, header, capacity, appender.end, appender.epoch, clock)
        self.syncs = False
        self.poll_seconds = poll_seconds
        self._beat_seconds = min(takeover_after / 5, 1.0)
        self.idle_seconds = min(self._beat_seconds, _LOOK_SECONDS)
        self.appender = appender
        self._store = store
        self._owner = owner
        self._mark = mark
        self._view = view
        self._address = address
        self._beaten_at = 0.0
        self._left_at: int | None = None  # the end of a full segment, synced here and not yet marked

    def commit(self, groups: Sequence[Group]) -> Commit:
        """Write to the folder, commit in PostgreSQL; update the mark after each full segment."""
        stretches = self.lay_out(groups)
        began = time.perf_counter()
        written: list[Commit] = []
        self.appender.append(stretches, lambda: written.append(self.write(stretches, len(groups))))
        (written_here,) = written
        done = self.committed(written_here, began)
        if self._left_at is not None:
            self._note(self._left_at)
            self._left_at = None
        if self._view.answered_at - self._beaten_at >= self._beat_seconds:
            self._beat(has_written=True)
        return done

    def committed(self, written: Commit, began: float) -> Commit:
        self._view.answered_at = time.monotonic()
        # Not ``replace``, which takes three times as long.
        return Commit(
            written.groups, written.durable, written.written, written.syncs, time.perf_counter() - began
        )

    def begin(self, groups: Sequence[Group]) -> BegunCommit | None:
        """Send a small commit and write it to the folder; None if it needs more than one statement.

        The local write goes to the page cache. When the disk is so busy that this takes time, so did the last
        commit, and the caller does not begin another one.
        """
        first, last = groups[0], groups[-1]
        fits = first.base == last.base == self._header.base and last.capacity == self._capacity
        if not fits or last.end - first.start > _SMALL_BYTES:
            return None
        if time.monotonic() - self._beaten_at >= self._beat_seconds:
            return None  # ``commit`` also sends the heartbeat
        stretches = self.lay_out(groups)
        began = time.perf_counter()
        if not self.appender.begin(stretches[0]):
            return None
        try:
            return _BegunCommit(self, began, stretches, self.write(stretches, len(groups)))
        except Exception as exc:  # the statement was sent: the commit must be ended as one that was begun
            return _BegunCommit(self, began, stretches, exc)

    def idle(self) -> None:
        """Send a heartbeat when one is due, or when the connection seems to be lost: a standby sees that at
        once and does not wait long for a new one."""
        due = time.monotonic() - self._beaten_at >= self._beat_seconds
        if due or self._store.session.has_news:
            self._beat(has_written=False)

    def _beat(self, *, has_written: bool) -> None:
        """Send a heartbeat; its answer says whether another node was asked to take over.

        An owner that has written makes no new version of the log's row. Every append reads that row, and
        PostgreSQL keeps all its versions for as long as somebody's transaction is open.
        """
        self._beaten_at = time.monotonic()
        try:
            self.appender.reconnect()
            self._ask_for_successor()
            self._view.successor = self._store.beat(self._owner, has_written=has_written)
            self._store.report(self._owner.name, Role.OWNER, self._address, self._durable, 0.0)
            self._view.peers = self._peers()
        except Unreachable as exc:
            # No commit was running; the next one finds out whether this node still owns the log.
            if not self._view.trouble:
                log.warning("PostgreSQL is out of reach", extra={"reason": str(exc)})
            self._view.trouble = str(exc)
            return
        self._view.trouble = ""
        self._view.answered_at = time.monotonic()

    def _ask_for_successor(self) -> None:
        wanted = self._view.hand_over_to
        if wanted:
            self._store.promote(wanted)
            self._view.hand_over_to = ""

    def _peers(self) -> tuple[Peer, ...]:
        return tuple(
            Peer(
                row.name,
                GONE if row.role == Role.OWNER else row.role,
                row.address,
                max(self._durable - row.position, 0),
                round(row.behind_seconds, 3),
                round(row.seen_seconds_ago, 3),
            )
            for row in self._store.nodes()
            if row.name != self._owner.name
        )

    def seal(self) -> None:
        """Do nothing: the row in PostgreSQL proves that a commit is durable."""

    def closing(self) -> None:
        """Limit the wait for PostgreSQL. Called in the loop's thread."""
        self.appender.give_up_at = time.monotonic() + _CLOSE_SECONDS

    def finish(self) -> None:
        """Mark the whole folder as trusted, then release the log."""
        super().finish()
        self._note(self._durable)
        try:
            self._store.release(self._owner)
        except Unreachable as exc:
            log.warning("the log was not released: a standby waits", extra={"reason": str(exc)})
        self._store.session.close()

    def abandon(self) -> None:
        """Close without releasing the log."""
        super().abandon()
        self._store.session.close()

    def _leave_segment(self, end: int) -> None:
        super()._leave_segment(end)
        self._left_at = end

    def _note(self, position: int) -> None:
        self._mark = Mark(self._mark.log, self._mark.folder, position, self.appender.epoch)
        write_mark(self._disk, self._mark)


@dataclass(slots=True)
class _BegunCommit:
    writer: ReplicatedWriter
    began: float
    stretches: Sequence[Stretch]
    written: Commit | Exception  # the local write

    def poll(self) -> Commit | None:
        if isinstance(self.written, Exception) or not self.writer.appender.end_begun():
            return None
        return self.writer.committed(self.written, self.began)

    def finish(self) -> Commit:
        if isinstance(self.written, Exception):
            raise self.written
        self.writer.appender.append(self.stretches, lambda: None)
        return self.writer.committed(self.written, self.began)
