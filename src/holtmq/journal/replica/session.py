"""A connection to PostgreSQL with time limits.

Owns: opening it, the settings every session needs, and classifying failures: unreachable, or refused.
Must not touch: tables.
"""

from __future__ import annotations

import logging
import re
import select
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .errors import Locked, ReplicaRefused, Unreachable

log = logging.getLogger(__name__)

Row = tuple[Any, ...]
_WAIT_READ, _WAIT_WRITE = 1, 2  # what psycopg's generators yield and are sent
# Errors that a retry cannot help. Others (server starting up, too many clients) are worth a retry.
_HOPELESS: Final = re.compile(
    r"authentication failed|role \".*\" (does not exist|is not permitted to log in)|no password supplied"
    r"|database \".*\" does not exist|permission denied for database"
    r"|no pg_hba.conf entry|pg_hba.conf rejects|server does not support SSL"
    r"|certificate verify failed|root certificate file|server certificate for"
    r"|invalid (URI|connection option|port|sslmode)|missing \"=\""
)
_NO_ADDRESS: Final = "journal.replica is no PostgreSQL address"
_NAMES_PARAMETER: Final = re.compile(r"URI query parameter|invalid connection option")
_GONE: Final = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.ReadOnlySqlTransaction,  # the primary became a standby: the next connection finds the new primary
    errors.IdleInTransactionSessionTimeout,
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
        self._has_worked = False
        self.warned = False  # PostgreSQL sent a warning since this was last cleared

    @contextmanager
    def connection(self) -> Iterator[PatientConnection]:
        """The connection; every error that a retry may help becomes Unreachable."""
        try:
            if self._connection is None:
                self._connection = self._open()
            yield self._connection
        except errors.LockNotAvailable as exc:
            self.close()
            raise Locked(str(exc).strip()) from exc
        except (*_GONE, errors.OperationalError, errors.InterfaceError) as exc:
            self.close()
            text = str(exc).strip()
            # An address that has worked is right: its server is being restored, or asks a directory that is
            # down. Then a node that runs must wait, not end.
            if _HOPELESS.search(text) and not self._has_worked:
                raise ReplicaRefused(f"PostgreSQL refuses: {text}") from exc
            raise Unreachable(text) from exc
        except psycopg.Error as exc:
            is_lost = self._connection is not None and self._connection.closed
            self.close()
            if is_lost:  # in whatever words
                raise Unreachable(str(exc).strip()) from exc
            raise
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
        try:
            connection.answer_seconds = seconds
            connection.prepare_threshold = 2
            connection.add_notice_handler(self._noticed)
            found = connection.execute(self._settings(connection.info.server_version)).fetchone()
            assert found is not None
            if found[0] != connection.info.backend_pid and not self._has_worked:
                self._refuse_changing_backends(found[0])
        except BaseException:
            connection.pgconn.finish()
            raise
        self._has_worked = True
        return connection

    def _settings(self, server_version: int) -> bytes:
        """What a session must not leave to the server's or the user's configuration, in one round trip."""
        patience = int(self._lock_seconds * 800)
        wanted = {
            # An owner that hangs in the middle of a transaction must not block the takeover with its lock.
            "lock_timeout": str(patience),
            "idle_in_transaction_session_timeout": str(patience),
            # ``answer_seconds`` is the limit. A shorter one of the server would end commits that only wait
            # for a synchronous standby.
            "statement_timeout": "0",
            # A takeover reads the end of the log after it has waited for the lock of a running append. With
            # another isolation level it would see the log as it was before the wait.
            "default_transaction_isolation": "read committed",
            # A warning says that a commit has not waited for its synchronous standby: it must arrive here.
            "client_min_messages": "warning",
        }
        if server_version >= 140_000:
            wanted["idle_session_timeout"] = "0"
        if server_version >= 170_000:
            wanted["transaction_timeout"] = "0"
        calls = [f"set_config('{name}', '{value}', false)" for name, value in wanted.items()]
        # Set in any case: a session follows changes of the server's configuration in what it has not set.
        level = "current_setting('synchronous_commit')"
        safe = f"CASE WHEN {level} IN ('off', 'local') THEN 'on' ELSE {level} END"
        calls.append(f"set_config('synchronous_commit', {safe}, false)")
        return f"SELECT pg_backend_pid(), {', '.join(calls)}".encode()

    def _refuse_changing_backends(self, backend: int) -> None:
        """A pooler is in between. In its session mode, no other connection gets the backend of this one."""
        address = conninfo(self._url, self._answer_seconds, self._purpose)
        try:
            with closing(PatientConnection.connect(address, autocommit=True)) as other:
                other.answer_seconds = self._answer_seconds
                found = other.execute("SELECT pg_backend_pid()").fetchone()
        except psycopg.OperationalError:
            return  # it has no second backend to give: the first one is ours
        if found == (backend,):
            raise ReplicaRefused(
                "journal.replica leads to a pooler that lets connections share a session of PostgreSQL, as "
                "PgBouncer with pool_mode = transaction: use its session mode, or give PostgreSQL's address"
            )

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warned = True
            log.warning("PostgreSQL warns", extra={"text": notice.message_primary})


def conninfo(url: str, answer_seconds: float, purpose: str) -> str:
    """The user's URL with the settings that a session needs; settings in the URL take precedence."""
    given = parsed(url)
    wanted: dict[str, Any] = {
        "application_name": f"holtmq {purpose}",
        "connect_timeout": max(2, round(answer_seconds)),
        "keepalives_idle": max(1, round(answer_seconds)),
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": round(answer_seconds * 1000),
        "target_session_attrs": "read-write",  # of several hosts, choose the primary
    }
    # A database without an encoding of its own (SQL_ASCII: a cluster made without a locale) would otherwise
    # return every text as bytes.
    return make_conninfo(**(wanted | given | {"client_encoding": "UTF8"}))


def parsed(url: str) -> dict[str, Any]:
    """The parameters in the user's URL. ReplicaRefused, in words without any part of a password."""
    try:
        given = dict(conninfo_to_dict(url))
    except psycopg.ProgrammingError as exc:
        raise ReplicaRefused(f"{_NO_ADDRESS}: {_without_secrets(str(exc).strip(), url)}") from None
    if "@" in str(given.get("host", "")):
        raise ReplicaRefused(f"{_NO_ADDRESS}: its host has an @; write one in the password as %40")
    if not all(port.isdecimal() for port in str(given.get("port", "0")).split(",") if port):
        raise ReplicaRefused(f"{_NO_ADDRESS}: its port is no number; write a / in the password as %2F")
    return given


def _without_secrets(problem: str, url: str) -> str:
    """libpq's text without what it quotes from the address, except for the names of parameters."""
    if _NAMES_PARAMETER.search(problem):
        return problem
    return re.sub(
        r'"[^"]*"', lambda quoted: quoted[0] if len(quoted[0]) == 3 else '"..."', problem.replace(url, "...")
    )
