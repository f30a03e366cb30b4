"""A node that does not own the log: it copies and replays the log, watches the owner, and takes over.

Owns: the order of fetching, replaying and checking the owner, and the decision to take over.
Must not touch: what records mean; the caller replays what ``records`` yields.

The owner is alive while its row or the log changes, timed by this node's monotonic clock. Wall clocks that
jump, here or on the owner, have no effect. When PostgreSQL no longer has a session of the owner, most likely
its process has died: then this node waits only as long as a live owner needs to reconnect. Safety rests on
neither (docs/decisions/0170).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .errors import Locked, StartAgain, Unreachable
from .local_copy import LocalCopy
from .store import FETCH_ROWS, Kind, LogState, LogStore, Owner
from .view import ReplicaView, Role, StoppedWaiting

log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.05
_REPORT_SECONDS: Final = 1.0
_NAMED_ALIKE: Final = (
    "the owner has the name of this node: no command can tell them apart; set journal.replica_node"
)
_RECONNECT_SECONDS: Final = 0.5  # for an owner whose session is gone


@dataclass(frozen=True, slots=True)
class Watching:
    """How a standby waits."""

    takeover_after: float
    standby: bool  # do not take a released log at once: let another node have it
    address: str


class Follower:
    """Follows the owner. When ``records`` is exhausted, this node owns the log and ``epoch`` is set."""

    def __init__(
        self, store: LogStore, copy: LocalCopy, owner: Owner, watching: Watching, view: ReplicaView
    ) -> None:
        self._store = store
        self._copy = copy
        self._owner = owner
        self._watching = watching
        self._view = view
        self._stop = threading.Event()
        self._began = self._alive_at = self._whole_at = time.monotonic()
        self._reported_at = 0.0
        self._seen: tuple[object, ...] = ()
        self._parts_seen = (0, 0)
        self._compared_on = store.session.current
        self._lost_seen: tuple[object, ...] = ()
        self._lost_at = self._began
        self.epoch = 0
        self.was_released = False

    def stop(self) -> None:
        """Stop waiting. May be called from any thread."""
        self._stop.set()

    def records(self, state: LogState) -> Iterator[tuple[int, int, bytes]]:
        """Yield the records from the copy's ``walked`` on; ends when this node owns the log."""
        self._parts_seen = (state.newest_part, state.part_count)
        yield from self._copy.walk()
        while not self._stop.is_set():
            try:
                state = self._store.state()
                self._compare_history()
                fetched = self._fetch(state)
                if fetched:
                    yield from self._copy.walk()
                    self._note_behind(state)
                    continue
                self._copy.require_whole()
                self._note(state)
                if self._is_free(state) and self._take(state):
                    return
            except Unreachable as exc:
                self._lost(exc)
            self._stop.wait(_POLL_SECONDS)
        raise StoppedWaiting

    def _compare_history(self) -> None:
        """After a reconnect: StartAgain if PostgreSQL no longer has what this node has copied.

        The server may have been replaced by one that had not received everything.
        """
        connection = self._store.session.current
        if connection is not self._compared_on:
            self._copy.require_same_history()
            self._compared_on = connection

    def _fetch(self, state: LogState) -> bool:
        """Copy what is new; False when there was nothing."""
        copy = self._copy
        parts = (state.newest_part, state.part_count)
        gone: StartAgain | None = None
        current: int | None = None
        if copy.headers:
            current = copy.part_ids.get(copy.last_base)
            asked_at = time.monotonic()
            try:
                rows = [] if current is None else self._store.rows(current, copy.written)
            except StartAgain as exc:  # reclaimed, perhaps after this node had copied all of it
                rows, gone = [], exc
            if rows:
                copy.add(rows)
                if len(rows) < FETCH_ROWS and parts == self._parts_seen:
                    self._whole_at = asked_at  # there were no more: under load there always are some
                return True
        if parts == self._parts_seen and gone is None:
            return False
        found = self._store.parts()
        last = copy.last_base if copy.headers else -1
        later = [part for part in found if part.kind is not Kind.CHECKPOINT and part.base > last]
        if later:
            # A later segment exists, so the last one here is complete in PostgreSQL.
            if current is not None and gone is None and (rows := self._store.rows(current, copy.written)):
                copy.add(rows)
            elif later[0].kind is Kind.PLAIN and later[0].base == copy.written:
                copy.enter(later[0], state.epoch)
            else:
                raise StartAgain(f"PostgreSQL no longer has the rows from {copy.written} on")
            self._parts_seen = (0, 0)  # more may follow
            return True
        if gone is not None:
            raise gone
        if copy.mirror(found):
            self._parts_seen = parts
        return False

    def _note(self, state: LogState) -> None:
        """The copy is complete: note whether the owner is alive, and report this node."""
        now = time.monotonic()
        view, copy = self._view, self._copy
        seen = (state.epoch, state.beat, state.released, copy.written)
        if seen != self._seen:
            self._seen, self._alive_at = seen, now
        if state.connected or seen != self._lost_seen:
            self._lost_seen, self._lost_at = seen, now
        self._whole_at = now
        self._stand_by(state)
        self._report(now)
        view.behind_bytes, view.behind_seconds, view.answered_at = 0, 0.0, now

    def _note_behind(self, state: LogState) -> None:
        """Rows were fetched, and more may follow."""
        now = time.monotonic()
        view = self._view
        view.behind_seconds, view.answered_at = now - self._whole_at, now
        if view.role is not Role.STARTING or self._whole_at > self._began:
            self._stand_by(state)
        if now - self._reported_at >= _REPORT_SECONDS:
            view.behind_bytes = max(self._store.end() - self._copy.written, 0)
            self._report(now)

    def _stand_by(self, state: LogState) -> None:
        """The copy is complete, or was so a moment ago."""
        view = self._view
        if view.role is Role.STARTING:
            log.info("standing by", extra={"owner": state.owner, "position": self._copy.written})
            own = self._owner
            if state.owner == own.name and state.owner_folder != own.folder and state.connected:
                log.error(_NAMED_ALIKE, extra={"node": own.name})
        view.role, view.owner, view.epoch, view.trouble = Role.STANDBY, state.owner, state.epoch, ""

    def _report(self, now: float) -> None:
        if now - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = now
            behind = now - self._whole_at
            self._store.report(
                self._owner.name, self._view.role, self._watching.address, self._copy.written, behind
            )

    def _lost(self, reason: Exception) -> None:
        # Without PostgreSQL the owner cannot be watched: its timeout starts again after a reconnect.
        if not self._view.trouble:
            log.warning("PostgreSQL is out of reach", extra={"reason": str(reason)})
        self._view.trouble = f"PostgreSQL is out of reach: {reason}"
        self._seen = self._lost_seen = ()

    def _is_free(self, state: LogState) -> bool:
        now, takeover_after = time.monotonic(), self._watching.takeover_after
        waited = now - self._alive_at >= takeover_after
        if state.owner_process == self._owner.process or waited:
            return True
        if state.released and state.successor:
            return state.successor == self._owner.name
        if (state.owner_folder, state.owner) == (self._owner.folder, self._owner.name):
            # An earlier process on this folder; it has ended, since this one holds the lock. The name tells
            # a copy of that folder on another machine apart.
            return True
        if not state.released:
            # Without a session the owner is dead, or about to reconnect.
            return now - self._lost_at >= min(_RECONNECT_SECONDS, takeover_after / 2)
        return not self._watching.standby

    def _take(self, state: LogState) -> bool:
        if state.owner_process == self._owner.process:
            # The last attempt succeeded, but its answer was lost.
            self.epoch, end = self._store.renew(self._owner)
            if end != self._copy.written:
                raise StartAgain(f"the log ends at {end}, but the copy at {self._copy.written}")
        else:
            try:
                epoch = self._store.take_over(self._owner, state, self._copy.written)
            except Locked:
                # An owner that hangs in the middle of a transaction: end its session and try again. It has
                # been silent for long enough, so its timeout does not start again.
                self._store.end_backend(state.owner_pid)
                return False
            if epoch is None:
                return False
            self.epoch = epoch
        self.was_released = state.released
        view = self._view
        view.role, view.owner, view.epoch, view.successor = Role.OWNER, self._owner.name, self.epoch, ""
        silent = round(time.monotonic() - self._alive_at, 3)
        log.warning(
            "this node owns the log",
            extra={
                "epoch": self.epoch,
                "position": self._copy.written,
                "before": state.owner,
                "silent": silent,
            },
        )
        self._reported_at = 0.0
        self._report(time.monotonic())
        return True
