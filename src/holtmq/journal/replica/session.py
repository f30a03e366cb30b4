"""A connection to PostgreSQL with time limits.

Owns: opening it, the settings every session needs, and classifying failures: unreachable, or refused.
Must not touch: tables.
"""

from __future__ import annotations

import logging
import re
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .errors import ReplicaRefused, Unreachable

log = logging.getLogger(__name__)

Row = tuple[Any, ...]
_WAIT_READ, _WAIT_WRITE = 1, 2  # what psycopg's generators yield and are sent
# Errors that a retry cannot help. Others (server starting up, too many clients) are worth a retry.
_HOPELESS: Final = re.compile(
    r"authentication failed|role \".*\" does not exist|database \".*\" does not exist|no pg_hba.conf entry"
    r"|invalid (URI|connection option|port|sslmode)|missing \"=\""
)
_GONE: Final = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.ReadOnlySqlTransaction,  # the primary became a standby: the next connection finds the new primary
    errors.IdleInTransactionSessionTimeout,
    errors.LockNotAvailable,
    errors.QueryCanceled,
    errors.DeadlockDetected,
    errors.TooManyConnections,
)


class PatientConnection(psycopg.Connection[Row]):
    """Raises when there is no answer for ``answer_seconds``: TCP alone would wait for a server that hangs."""

    answer_seconds: float = 5.0

    def wait(self, gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
        """Run psycopg's generator, with a time limit for each step."""
        poll = select.poll()
        fileno = self.pgconn.socket
        try:
            wanted = next(gen)
            while True:
                mask = select.POLLIN if wanted & _WAIT_READ else 0
                mask |= select.POLLOUT if wanted & _WAIT_WRITE else 0
                poll.register(fileno, mask)
                found = poll.poll(self.answer_seconds * 1000)
                if not found:
                    raise psycopg.OperationalError(f"no answer for {self.answer_seconds:g} s")
                events = found[0][1]
                ready = _WAIT_READ if events & ~select.POLLOUT else 0
                ready |= _WAIT_WRITE if events & select.POLLOUT else 0
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


class Session:
    """One connection, opened when it is needed and closed when it fails. For one thread at a time."""

    def __init__(
        self, url: str, answer_seconds: float, purpose: str, lock_seconds: float | None = None
    ) -> None:
        self._url = url
        self._answer_seconds = answer_seconds
        self._lock_seconds = lock_seconds or answer_seconds
        self._purpose = purpose
        self._connection: PatientConnection | None = None
        self.warned = False  # PostgreSQL sent a warning since this was last cleared
        self.answered_at = time.monotonic()

    @contextmanager
    def connection(self) -> Iterator[PatientConnection]:
        """The connection; every error that a retry may help becomes Unreachable."""
        try:
            if self._connection is None:
                self._connection = self._open()
            yield self._connection
            self.answered_at = time.monotonic()
        except (*_GONE, errors.OperationalError, errors.InterfaceError) as exc:
            self.close()
            text = str(exc).strip()
            if _HOPELESS.search(text):
                raise ReplicaRefused(f"PostgreSQL refuses: {text}") from exc
            raise Unreachable(text) from exc
        except BaseException:
            # A connection in the middle of an exchange cannot be used again.
            self.close()
            raise

    @property
    def current(self) -> PatientConnection | None:
        """The connection, if one is open. Another object means another session, perhaps of another server."""
        return self._connection

    @property
    def has_news(self) -> bool:
        """Whether there is no connection, or something to read on it although no statement runs: most likely
        the server has closed it."""
        if self._connection is None or self._connection.closed:
            return True
        poll = select.poll()
        poll.register(self._connection.pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pgconn.finish()

    def _open(self) -> PatientConnection:
        seconds = self._answer_seconds
        connection = PatientConnection.connect(conninfo(self._url, seconds, self._purpose), autocommit=True)
        connection.answer_seconds = seconds
        connection.prepare_threshold = 2
        connection.add_notice_handler(self._noticed)
        patience = int(self._lock_seconds * 800)
        # An owner that hangs in the middle of a transaction must not block the takeover with its lock.
        connection.execute(f"SET lock_timeout = {patience}")
        connection.execute(f"SET idle_in_transaction_session_timeout = {patience}")
        # A takeover reads the end of the log after it has waited for the lock of a running append. With
        # another isolation level it would see the log as it was before the wait.
        connection.execute("SET default_transaction_isolation = 'read committed'")
        connection.execute("SET default_transaction_read_only = off")
        # Set in any case: a session follows changes of the server's configuration in what it has not set.
        found = connection.execute("SHOW synchronous_commit").fetchone()
        level = "on" if found is None or found[0] in ("off", "local") else found[0]
        connection.execute(sql.SQL("SET synchronous_commit = {}").format(sql.Literal(level)))
        return connection

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warned = True
            log.warning("PostgreSQL warns", extra={"text": notice.message_primary})


def conninfo(url: str, answer_seconds: float, purpose: str) -> str:
    """The user's URL with the settings that a session needs; settings in the URL take precedence."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError as exc:
        raise ReplicaRefused(f"journal.replica is no PostgreSQL address: {exc}") from None
    wanted: dict[str, Any] = {
        "application_name": f"holtmq {purpose}",
        "connect_timeout": max(2, round(answer_seconds)),
        "keepalives_idle": max(1, round(answer_seconds)),
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": round(answer_seconds * 1000),
        "target_session_attrs": "read-write",  # of several hosts, choose the primary
    }
    return make_conninfo(**(wanted | given))
