"""The statement that appends one row, as fast as the driver allows.

Owns: its text, preparing it on a connection, and running it with libpq calls: half the CPU time of
``connection.execute`` (bench/README.md, "Failover"), and the local write can run between request and answer.
Must not touch: what to do when no row was inserted.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from secrets import token_hex
from struct import Struct
from typing import Final

import psycopg
from psycopg import errors, pq, sql

from . import schema
from .session import PatientConnection

_ENOUGH_STANDBYS: Final = (
    " AND (SELECT count(*) FROM pg_stat_get_wal_senders() WHERE sync_state IN ('sync', 'quorum')) >= {}"
)
_BINARY: Final = (1, 1, 1)
_OK: Final = pq.ExecStatus.COMMAND_OK
_ENDS_SESSION: Final = (b"FATAL", b"PANIC")
_pack: Final = Struct(">q").pack


class RowStatement:
    """Appends to one part at a time. It is prepared again for another part or another connection."""

    def __init__(self, log: int, min_standbys: int) -> None:
        self._log = log
        # Behind a pooler a session may be another node's the next moment: never run what that one prepared.
        self._name = b"holt_append_" + token_hex(8).encode()
        self._min_standbys = min_standbys
        self._prepared: tuple[PatientConnection, int] | None = None
        self._poll = select.poll()
        self._result: pq.abc.PGresult | None = None  # the last one of the statement that was sent
        self._is_answered = False  # nothing follows the result

    def run(
        self,
        connection: PatientConnection,
        part: int,
        position: int,
        epoch: int,
        piece: bytes,
        meanwhile: Callable[[], None],
    ) -> bool:
        """Insert a row if the epoch is right; False when it was not inserted.

        ``meanwhile`` runs after the statement was sent and before its answer is awaited.
        """
        if not self.is_prepared(connection, part):
            self._prepare(connection, part)
        self.send(connection, position, epoch, piece)
        meanwhile()
        return self.answer(connection)

    def is_prepared(self, connection: PatientConnection, part: int) -> bool:
        """Whether ``send`` may be called for this part."""
        return self._prepared == (connection, part)

    def send(self, connection: PatientConnection, position: int, epoch: int, piece: bytes) -> None:
        """Send the statement. A small one does not block: nothing else is in the socket's buffer."""
        self._result, self._is_answered = None, False
        values = (_pack(position), _pack(epoch), piece)
        connection.pgconn.send_query_prepared(self._name, values, _BINARY)
        self._flush(connection)

    def is_inserted(self, connection: PatientConnection) -> bool:
        """Whether the answer is there and says that the row was inserted. Does not block."""
        pgconn = connection.pgconn
        pgconn.consume_input()
        if not self._has_answer(pgconn):
            return False
        result = self._result
        return result is not None and result.status == _OK and result.command_tuples == 1

    def answer(self, connection: PatientConnection) -> bool:
        """Wait for the answer to ``send``; False when no row was inserted."""
        return self._success(connection).command_tuples == 1

    def _flush(self, connection: PatientConnection) -> None:
        pgconn = connection.pgconn
        while pgconn.flush():
            self._wait(connection, select.POLLIN | select.POLLOUT)
            pgconn.consume_input()

    def _success(self, connection: PatientConnection) -> pq.abc.PGresult:
        """Wait for the answer to what was sent; raise what it reports, if that is an error."""
        pgconn = connection.pgconn
        while not self._has_answer(pgconn):
            self._wait(connection, select.POLLIN)
            pgconn.consume_input()
        result = self._result
        if result is None:
            raise psycopg.OperationalError("the connection was lost")
        if result.status == _OK:
            return result
        severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        if pgconn.status == pq.ConnStatus.BAD or severity in _ENDS_SESSION:
            # libpq's own words have no code of PostgreSQL that would say what kind of error it is. And the
            # kind does not matter when the session has ended.
            raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
        raise errors.error_from_result(result)

    def _has_answer(self, pgconn: pq.abc.PGconn) -> bool:
        """Take the results that have arrived; True when none can follow. Does not block.

        PostgreSQL sends the statement's result before it commits. If the commit fails, a second result says
        so (for instance: no room for its log, or the session was ended). So the last one counts, and only
        when the server has said that it is ready for the next statement.
        """
        while not self._is_answered and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self._is_answered = True
            else:
                self._result = result
        return self._is_answered

    def forget(self, connection: PatientConnection) -> None:
        """After a rollback, at which the driver may have dropped all prepared statements."""
        connection.execute("DEALLOCATE ALL", prepare=False)
        self._prepared = None

    def _wait(self, connection: PatientConnection, events: int) -> None:
        self._poll.register(connection.pgconn.socket, events)
        try:
            if not self._poll.poll(connection.answer_seconds * 1000):
                raise psycopg.OperationalError(f"no answer for {connection.answer_seconds:g} s")
        finally:
            self._poll.unregister(connection.pgconn.socket)

    def _prepare(self, connection: PatientConnection, part: int) -> None:
        if self._prepared is not None and self._prepared[0] is connection:
            connection.execute(b"DEALLOCATE " + self._name, prepare=False)
        self._prepared = None
        self._result, self._is_answered = None, False
        connection.pgconn.send_prepare(self._name, self._text(part))  # ``prepare`` would wait for ever
        self._flush(connection)
        self._success(connection)
        self._prepared = (connection, part)

    def _text(self, part: int) -> bytes:
        condition: sql.Composable = sql.SQL("")
        if self._min_standbys:
            condition = sql.SQL(_ENOUGH_STANDBYS).format(self._min_standbys)
        text = sql.SQL(
            "INSERT INTO {} SELECT $1::int8, $2::int8, $3::bytea FROM holtmq.log"
            " WHERE id = {} AND epoch = $2::int8{} FOR SHARE"
        )
        return text.format(schema.rows_table(part), self._log, condition).as_bytes(None)
