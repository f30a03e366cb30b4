"""One log in PostgreSQL, in terms of epochs, parts and rows.

Owns: every SQL statement about a log except the append of rows (``row_statement``). Must not touch: files,
threads, and the decision when to take over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from psycopg import errors, sql

from . import epochs, schema
from .errors import Fenced, ReplicaRefused, StartAgain
from .session import PatientConnection, Session

log = logging.getLogger(__name__)

ROW_BYTES: Final = 1 << 20  # maximum per row: PostgreSQL copies a value several times
FETCH_ROWS: Final = 64


class Kind(StrEnum):
    PLAIN = "plain"
    COMPACTED = "compacted"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class LogState:
    """The log's row, and its newest part and number of parts: while those two stay, only rows were added."""

    id: int
    identity: UUID
    epoch: int
    owner: str
    owner_folder: UUID | None
    owner_process: UUID | None
    owner_pid: int
    released: bool
    successor: str
    beat: int
    connected: bool  # the owner's session exists: only a hint, a lost connection does not end an owner
    newest_part: int
    part_count: int

    def fenced(self) -> Fenced:
        """The error for an owner that was replaced, with the name of the new one."""
        return Fenced(f"{self.owner or 'another node'} owns the log since epoch {self.epoch}")


@dataclass(frozen=True, slots=True)
class Part:
    """A segment or a checkpoint in PostgreSQL."""

    id: int
    kind: Kind
    base: int
    header: bytes
    size: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as ``holt cluster status`` shows it."""

    name: str
    role: str
    address: str
    position: int
    behind_seconds: float
    seen_seconds_ago: float


@dataclass(frozen=True, slots=True)
class Owner:
    """The node that owns the log or wants to."""

    name: str
    folder: UUID
    process: UUID


class LogStore:
    """The log of this name. Call ``open`` first."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.name = name
        self.id = 0
        self.needs_statistics = False  # whether ``open`` requires the right to see PostgreSQL's standbys

    def open(self, *, create: bool = True) -> LogState:
        """Find the log, with ``create`` also create schema and log; ReplicaRefused if it does not exist."""
        with self.session.connection() as connection:
            if create:
                try:
                    schema.ensure(connection)
                except errors.InsufficientPrivilege as exc:
                    raise ReplicaRefused(
                        f"PostgreSQL does not allow to create the schema holtmq: {exc}; create it with "
                        "CREATE SCHEMA holtmq AUTHORIZATION the user of journal.replica"
                    ) from None
                insert = "INSERT INTO holtmq.log (name) VALUES (%s) ON CONFLICT DO NOTHING"
                connection.execute(insert, (self.name,))
            try:
                found = connection.execute(
                    "SELECT id FROM holtmq.log WHERE name = %s", (self.name,)
                ).fetchone()
            except (errors.UndefinedTable, errors.InvalidSchemaName):
                found = None
            if found is None:
                raise ReplicaRefused(
                    f"PostgreSQL holds no log named {self.name}: no node has started with it"
                )
            self.id = found[0]
            if self.needs_statistics:
                self._require_statistics(connection)
            return self.state_on(connection)

    @property
    def is_unsafe(self) -> bool:
        """Whether the server confirms what its machine may lose."""
        with self.session.connection() as connection:
            return connection.execute("SHOW fsync").fetchone() == ("off",)

    @staticmethod
    def _require_statistics(connection: PatientConnection) -> None:
        query = "SELECT current_user, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"
        found = connection.execute(query).fetchone()
        assert found is not None
        if not found[1]:
            raise ReplicaRefused(
                "journal.replica_min_standbys needs the right to see PostgreSQL's standbys: "
                f'GRANT pg_monitor TO "{found[0]}"'
            )

    def state(self) -> LogState:
        """Read the log's row."""
        with self.session.connection() as connection:
            return self.state_on(connection)

    def state_on(self, connection: PatientConnection, lock: str = "") -> LogState:
        """Read the log's row, inside the caller's transaction."""
        found = connection.execute(
            "SELECT id, identity, epoch, owner, owner_folder, owner_process, owner_pid, released, successor,"
            " beat, EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = l.owner_pid),"
            " (SELECT coalesce(max(p.id), 0) FROM holtmq.part p WHERE p.log = l.id AND p.ready),"
            " (SELECT count(*) FROM holtmq.part p WHERE p.log = l.id AND p.ready)"
            f" FROM holtmq.log l WHERE id = %s {lock}",
            (self.id,),
        ).fetchone()
        if found is None:
            raise ReplicaRefused(f"the log {self.name} has been removed from PostgreSQL")
        return LogState(*found)

    def parts(self) -> list[Part]:
        """All parts, checkpoints among them, by base."""
        with self.session.connection() as connection:
            found = connection.execute(
                "SELECT id, kind, base, header, size FROM holtmq.part WHERE log = %s AND ready"
                " ORDER BY base, id",
                (self.id,),
                binary=True,
            )
            return [Part(part, Kind(kind), base, header, size) for part, kind, base, header, size in found]

    def end(self) -> int:
        """Where the log ends."""
        with self.session.connection() as connection:
            return self._end(connection)

    def _end(self, connection: PatientConnection) -> int:
        last = connection.execute(
            "SELECT id, base FROM holtmq.part WHERE log = %s AND ready AND kind = 'plain'"
            " ORDER BY base DESC LIMIT 1",
            (self.id,),
        ).fetchone()
        if last is None:
            return 0
        query = sql.SQL("SELECT position + octet_length(bytes) FROM {} ORDER BY position DESC LIMIT 1")
        found = connection.execute(query.format(schema.rows_table(last[0]))).fetchone()
        return int(last[1] if found is None else found[0])

    def rows(self, part: int, start: int) -> list[tuple[int, bytes]]:
        """The next rows of a part from a position (or offset) on; StartAgain when the part was dropped."""
        query = sql.SQL("SELECT position, bytes FROM {} WHERE position >= %s ORDER BY position LIMIT %s")
        try:
            with self.session.connection() as connection:
                found = connection.execute(
                    query.format(schema.rows_table(part)), (start, FETCH_ROWS), binary=True
                )
                return found.fetchall()
        except errors.UndefinedTable:
            raise StartAgain(f"PostgreSQL no longer has the rows from {start} on") from None

    def last_row(self, part: int, before: int) -> tuple[int, int, bytes] | None:
        """Position, length and SHA-256 of the last row before a position; None if there is none."""
        query = sql.SQL(
            "SELECT position, octet_length(bytes), sha256(bytes) FROM {} WHERE position < %s"
            " ORDER BY position DESC LIMIT 1"
        )
        try:
            with self.session.connection() as connection:
                return connection.execute(query.format(schema.rows_table(part)), (before,)).fetchone()
        except errors.UndefinedTable:
            raise StartAgain(f"PostgreSQL no longer has the rows before {before}") from None

    def epoch_after(self, epoch: int) -> int | None:
        """Where the log ended when the next epoch began; None when there is no later epoch."""
        with self.session.connection() as connection:
            return epochs.lowest_start_after(connection, self.id, epoch)

    def owners(self) -> list[tuple[str, float]]:
        """The node that began each epoch, and when, the oldest first."""
        with self.session.connection() as connection:
            return epochs.owners(connection, self.id)

    def take_over(self, owner: Owner, seen: LogState, end: int) -> int | None:
        """Take the log over and return the new epoch; None when it has changed since ``seen``.

        The row lock waits for running appends, and new appends wait for it: when this returns an epoch, the
        log ends at ``end`` and no other session can append to it.
        """
        with self.session.connection() as connection, connection.transaction():
            now = self.state_on(connection, "FOR UPDATE")
            unchanged = (now.epoch, now.beat, now.released) == (seen.epoch, seen.beat, seen.released)
            if not unchanged or self._end(connection) != end:
                return None
            return self._raise(connection, owner, now.epoch, end)

    def renew(self, owner: Owner) -> tuple[int, int]:
        """After a lost connection: return a new epoch and where the log ends; Fenced if replaced.

        The new epoch also fences off an append of the lost session that may still arrive. The commit waits
        for a synchronous standby, if there is one, so everything up to the returned end is durable too.
        """
        with self.session.connection() as connection, connection.transaction():
            now = self.state_on(connection, "FOR UPDATE")
            if now.owner_process != owner.process:
                raise now.fenced()
            end = self._end(connection)
            return self._raise(connection, owner, now.epoch, end), end

    def _raise(self, connection: PatientConnection, owner: Owner, epoch: int, end: int) -> int:
        connection.execute(
            "UPDATE holtmq.log SET epoch = %s, owner = %s, owner_folder = %s, owner_process = %s,"
            " owner_pid = pg_backend_pid(), released = false, beat = beat + 1, beat_at = now(),"
            " successor = CASE WHEN owner_process = %s THEN successor ELSE '' END WHERE id = %s",
            (epoch + 1, owner.name, owner.folder, owner.process, owner.process, self.id),
        )
        epochs.begin(connection, self.id, epoch + 1, end, owner.name)
        return epoch + 1

    def end_backend(self, pid: int) -> None:
        """Terminate the session of an owner that holds a lock on the log and does not answer."""
        try:
            with self.session.connection() as connection:
                # Not any session that has the same number by now.
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM (SELECT DISTINCT pid FROM pg_locks"
                    " WHERE pid = %s AND relation = 'holtmq.log'::regclass) AS holder",
                    (pid,),
                )
        except errors.InsufficientPrivilege as exc:  # the owner's own time limits end it a little later
            log.warning("the session of the silent owner cannot be ended", extra={"reason": str(exc)})

    def beat(self, owner: Owner, *, has_written: bool = False) -> str:
        """Send a heartbeat (rows are one, too); return the node that should take over, or "". Or Fenced."""
        change = "UPDATE holtmq.log SET beat = beat + 1, beat_at = now() {} RETURNING successor"
        query = "SELECT successor FROM holtmq.log {}" if has_written else change
        mine = sql.SQL("WHERE id = %s AND owner_process = %s")
        with self.session.connection() as connection:
            found = connection.execute(sql.SQL(query).format(mine), (self.id, owner.process)).fetchone()
        if found is None:
            raise self.state().fenced()
        return str(found[0])

    def release(self, owner: Owner) -> None:
        """Release the log, so that a standby can take over at once."""
        with self.session.connection() as connection:
            connection.execute(
                "UPDATE holtmq.log SET released = true, beat = beat + 1 WHERE id = %s AND owner_process = %s",
                (self.id, owner.process),
            )

    def upload(self, epoch: int, part: Part, pieces: Iterable[bytes], at: int = 0) -> int:
        """Store a file as a part that is not ready; return its number. ``at``: the first position."""
        with self.session.connection() as connection:
            with connection.transaction():
                number = self.new_part(connection, part, epoch, ready=False)
            insert = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s)").format(schema.rows_table(number))
            for piece in pieces:
                connection.execute(insert, (at, epoch, piece), binary=True)
                at += len(piece)
            return number

    def new_part(self, connection: PatientConnection, part: Part, epoch: int, *, ready: bool) -> int:
        """Add a part and its table, inside the caller's transaction; return its number."""
        found = connection.execute(
            "INSERT INTO holtmq.part (log, kind, base, epoch, header, size, ready)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING id",
            (self.id, part.kind, part.base, epoch, part.header, part.size, ready),
        ).fetchone()
        assert found is not None
        schema.create_rows_table(connection, found[0])
        return int(found[0])

    def swap(self, owner: Owner, add: Sequence[int], drop: Sequence[int]) -> None:
        """In one transaction: make the uploads in ``add`` ready and the parts in ``drop`` not ready."""
        with self.session.connection() as connection, connection.transaction():
            self.require(connection, owner)
            if drop:
                connection.execute("UPDATE holtmq.part SET ready = false WHERE id = ANY(%s)", (list(drop),))
            if add:
                connection.execute("UPDATE holtmq.part SET ready = true WHERE id = ANY(%s)", (list(add),))

    def drop(self, owner: Owner, part: int) -> bool:
        """Drop a part that is not ready; False when its table is in use, for instance by ``pg_dump``.

        The lock on the table comes before the lock on the log's row, and does not wait: a drop that waits
        for a reader must not hold up heartbeats and takeovers.
        """
        with self.session.connection() as connection, connection.transaction():
            lock = sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(schema.rows_table(part))
            try:
                with connection.transaction():
                    connection.execute(lock)
            except errors.LockNotAvailable:
                return False
            except errors.UndefinedTable:
                pass
            self.require(connection, owner)
            connection.execute("DELETE FROM holtmq.part WHERE id = %s AND NOT ready", (part,))
            schema.drop_rows_table(connection, part)
            return True

    def not_ready(self) -> list[int]:
        """The parts that are not ready: unfinished uploads, and what is to be dropped."""
        query = "SELECT id FROM holtmq.part WHERE log = %s AND NOT ready"
        with self.session.connection() as connection:
            return [row[0] for row in connection.execute(query, (self.id,))]

    def require(self, connection: PatientConnection, owner: Owner) -> None:
        """Lock the log's row for the rest of the transaction; Fenced when it has another owner."""
        found = connection.execute(
            "SELECT 1 FROM holtmq.log WHERE id = %s AND owner_process = %s FOR SHARE",
            (self.id, owner.process),
        ).fetchone()
        if found is None:
            raise self.state_on(connection).fenced()

    def remove(self) -> None:
        """Drop the log and all its data. Only for test logs: a node that runs on it stops."""
        with self.session.connection() as connection, connection.transaction():
            for (part,) in connection.execute(
                "SELECT id FROM holtmq.part WHERE log = %s", (self.id,)
            ).fetchall():
                schema.drop_rows_table(connection, part)
            connection.execute("DELETE FROM holtmq.log WHERE id = %s", (self.id,))

    def report(self, name: str, role: str, address: str, position: int, behind_seconds: float) -> None:
        """Record that this node is alive, and how far its copy goes."""
        with self.session.connection() as connection:
            connection.execute(
                "INSERT INTO holtmq.node (log, name, role, address, position, behind_seconds)"
                " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (log, name) DO UPDATE SET role = excluded.role,"
                " address = excluded.address, position = excluded.position,"
                " behind_seconds = excluded.behind_seconds, seen = now()",
                (self.id, name, role, address, position, behind_seconds),
            )

    def nodes(self) -> list[NodeRow]:
        """All nodes that have reported, the most recently seen first."""
        with self.session.connection() as connection:
            found = connection.execute(
                "SELECT name, role, address, position, behind_seconds,"
                " extract(epoch FROM now() - seen)::float8"
                " FROM holtmq.node WHERE log = %s ORDER BY seen DESC",
                (self.id,),
            )
            return [NodeRow(*row) for row in found]

    def forget(self, name: str) -> bool:
        """Remove a node from the list; False when it is not there."""
        with self.session.connection() as connection:
            done = connection.execute("DELETE FROM holtmq.node WHERE log = %s AND name = %s", (self.id, name))
            return done.rowcount > 0

    def promote(self, name: str) -> None:
        """Ask the owner to hand over to this node."""
        with self.session.connection() as connection:
            connection.execute("UPDATE holtmq.log SET successor = %s WHERE id = %s", (name, self.id))
