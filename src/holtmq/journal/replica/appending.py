"""The append: one transaction per commit, fenced by the epoch.

Owns: the transaction of a commit, and resolving one whose answer was lost.
Must not touch: the local files, the journal's state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import psycopg
from psycopg import Rollback, errors

from holtmq.journal.interface import JournalError
from holtmq.journal.writer import Stretch

from .errors import Unreachable
from .row_statement import RowStatement
from .session import PatientConnection
from .store import ROW_BYTES, Kind, LogStore, Owner, Part
from .view import ReplicaView

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.2


class Appender:
    """Appends as one owner. One thread at a time."""

    def __init__(
        self,
        store: LogStore,
        owner: Owner,
        epoch: int,
        end: int,
        parts: dict[int, int],
        min_standbys: int,
        view: ReplicaView,
    ) -> None:
        self.epoch = epoch
        self.end = end  # everything below is committed
        self.give_up_at: float | None = None  # monotonic: a stopping node waits no longer than this
        self._store = store
        self._owner = owner
        self._parts = parts  # base of a segment -> number of its part
        self._min_standbys = min_standbys
        self._statement = RowStatement(store.id, min_standbys)
        self._known = store.session.current  # the connection on which the end of the log was compared
        self._view = view
        self._wait = threading.Event()  # never set: its wait() is a sleep
        self._begun: Stretch | None = None  # what was sent and is not yet appended

    def begin(self, stretch: Stretch) -> bool:
        """Send the statement of an append, if it is one statement and needs no preparation.

        ``end_begun`` or ``append``, with the same stretch, must follow.
        """
        connection, part = self._known, self._parts.get(stretch.header.base)
        if connection is None or part is None or not self._is_connected or stretch.start != self.end:
            return False
        if not self._statement.is_prepared(connection, part):
            return False
        self._store.session.warned = False
        piece = b"".join(stretch.parts)
        self._begun = stretch
        try:
            self._statement.send(connection, stretch.start, self.epoch, piece)
        except Exception as exc:
            # It is unknown whether it was sent. ``append`` finds the connection closed and reads where the
            # log ends.
            log.debug("an append was perhaps not sent", extra={"reason": str(exc)})
            self._store.session.close()
        return True

    def end_begun(self) -> bool:
        """End the append that was begun, if its answer is there and reports success. Does not block.

        False: ``append`` must follow, now or later. It gets the same answer, or the same error.
        """
        session, connection, begun = self._store.session, self._known, self._begun
        if begun is None or connection is None or session.current is not connection:
            return False
        try:
            is_inserted = self._statement.is_inserted(connection)
        except psycopg.Error:
            return False
        if not is_inserted or session.warned:
            return False
        self._begun = None
        self.end = begun.end
        if self._view.short_of_standbys:
            self._has_standbys()
        return True

    def append(self, stretches: Sequence[Stretch], meanwhile: Callable[[], None]) -> None:
        """Return when PostgreSQL has committed all of it. Fenced when another node owns the log.

        ``meanwhile`` is called once in any case, if possible while PostgreSQL works.
        """
        if stretches[0].start != self.end:
            raise JournalError(f"an append at {stretches[0].start}, but the log ends at {self.end}")
        begun, self._begun = self._begun, None
        if begun is not None and (len(stretches) > 1 or begun is not stretches[0]):
            raise JournalError(f"an append at {stretches[0].start}, but another one was begun")
        local = _Once(meanwhile)
        try:
            self._insert(stretches, local, is_begun=begun is not None)
        except (Unreachable, errors.UniqueViolation) as exc:
            local()
            self._settle(stretches, exc)
        self.end = stretches[-1].end

    def reconnect(self) -> None:
        """After a lost connection: take a new epoch, unless the connection is still the one that is known."""
        if not self._is_connected:
            self._renew(self.end)

    @property
    def _is_connected(self) -> bool:
        """Whether the connection is the one on which the end of the log was compared."""
        return self._known is not None and self._store.session.current is self._known

    def _settle(self, stretches: Sequence[Stretch], reason: Exception) -> None:
        """The answer was lost. Read where the log ends; insert again only if nothing was inserted."""
        log.warning("commit without an answer", extra={"reason": str(reason), "position": self.end})
        began = time.monotonic()
        while True:
            try:
                end = self._renew(stretches[0].start, stretches[-1].end)
                if end == stretches[0].start:
                    self._insert(stretches, lambda: None)
                log.info("commit settled", extra={"seconds": round(time.monotonic() - began, 3), "end": end})
                return
            except Unreachable as exc:
                self._pause(exc)

    def _renew(self, *ends: int) -> int:
        """Take a new epoch and return where the log ends: at one of ``ends``, or PostgreSQL has lost rows."""
        session = self._store.session
        session.warned = False
        self.epoch, end = self._store.renew(self._owner)
        if session.warned:  # this commit, too, did not wait for a synchronous standby
            raise Unreachable("PostgreSQL committed with a warning")
        if end not in ends:
            raise JournalError(
                f"PostgreSQL's log ends at {end}, but it had confirmed {self.end}: its server was replaced "
                "by one that had not received everything (an asynchronous standby?)"
            )
        # The lost answer may have been that of a transaction that created a part.
        self._parts = {part.base: part.id for part in self._store.parts() if part.kind is Kind.PLAIN}
        self._known = session.current
        self._view.epoch, self._view.trouble = self.epoch, ""
        return end

    def _pause(self, reason: Exception) -> None:
        self._view.trouble = str(reason)
        if self.give_up_at is not None and time.monotonic() > self.give_up_at:
            raise JournalError(f"stopped while PostgreSQL was out of reach: {reason}") from reason
        self._wait.wait(_RETRY_SECONDS)

    def _insert(
        self, stretches: Sequence[Stretch], meanwhile: Callable[[], None], *, is_begun: bool = False
    ) -> None:
        session = self._store.session
        if not is_begun:
            session.warned = False
        while True:
            if not self._is_connected:
                # Behind a new connection may be another server: where its log ends has to be read first.
                raise Unreachable("the connection was lost")
            with session.connection() as connection:
                if is_begun:
                    meanwhile()
                    done = self._statement.answer(connection) or self._owns(connection)
                else:
                    done = self._insert_once(connection, stretches, meanwhile)
            if done:
                break
            is_begun = False
            self._wait_for_standbys()
        if self._view.short_of_standbys:
            self._has_standbys()
        if session.warned:
            # A warning on a commit means that the wait for a synchronous standby was cut short. ``renew``
            # commits after it, and that commit waits again.
            raise Unreachable("PostgreSQL committed with a warning")

    def _insert_once(
        self, connection: PatientConnection, stretches: Sequence[Stretch], meanwhile: Callable[[], None]
    ) -> bool:
        """Insert all or nothing; False when there are too few standbys."""
        first = stretches[0]
        if len(stretches) == 1 and first.end - first.start <= ROW_BYTES and first.header.base in self._parts:
            # One statement is one transaction and one round trip.
            part = self._parts[first.header.base]
            return self._row(connection, part, first.start, b"".join(first.parts), meanwhile)
        meanwhile()
        made: dict[int, int] = {}
        done = False
        with connection.transaction():
            for stretch in stretches:
                base = stretch.header.base
                number = self._parts.get(base) or made.get(base)
                if number is None:
                    self._store.require(connection, self._owner)
                    new = Part(0, Kind.PLAIN, base, stretch.header.encode(), 0)
                    number = made[base] = self._store.new_part(connection, new, self.epoch, ready=True)
                position = stretch.start
                for piece in pieces_of(stretch.parts):
                    if not self._row(connection, number, position, piece):
                        raise Rollback
                    position += len(piece)
            done = True
        if done:
            self._parts |= made
        else:
            self._statement.forget(connection)
        return done

    def _row(
        self,
        connection: PatientConnection,
        part: int,
        position: int,
        piece: bytes,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """Insert a row; False when there are too few standbys."""
        if self._statement.run(connection, part, position, self.epoch, piece, meanwhile):
            return True
        return self._owns(connection)

    def _owns(self, connection: PatientConnection) -> bool:
        """Fenced if another node owns the log; else False, since no row was inserted for want of standbys."""
        now = self._store.state_on(connection)
        if now.epoch != self.epoch:
            raise now.fenced()
        return False

    def _has_standbys(self) -> None:
        self._view.short_of_standbys = False
        log.warning("PostgreSQL has enough synchronous standbys again", extra={})

    def _wait_for_standbys(self) -> None:
        if not self._view.short_of_standbys:
            self._view.short_of_standbys = True
            log.error(
                "nothing is confirmed: PostgreSQL has too few synchronous standbys",
                extra={"wanted": self._min_standbys},
            )
        self._store.beat(self._owner)
        self._pause(Unreachable("PostgreSQL has too few synchronous standbys"))


class _Once:
    """Runs the action at the first call only."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def __call__(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


def pieces_of(parts: Sequence[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of at most ``ROW_BYTES``."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        for at in range(0, len(part), ROW_BYTES):
            piece = part[at : at + ROW_BYTES]
            if size + len(piece) > ROW_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
            waiting.append(piece)
            size += len(piece)
    if waiting:
        yield b"".join(waiting)
