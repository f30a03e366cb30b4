"""PostgreSQL clusters of the tests' own, from Debian's package.

Owns: making, starting, killing and replicating clusters in temporary folders. Must not touch: a PostgreSQL
that runs on this machine already.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from ports import free_port

_START_SECONDS: Final = 180.0
_SYNCHRONOUS: Final = """
synchronous_standby_names = 'second'
synchronous_commit = on
wal_retrieve_retry_interval = 100ms
"""
# The tests kill processes, never the machine: what was written survives without fsync.
_SETTINGS: Final = """
listen_addresses = '127.0.0.1'
max_connections = 60
shared_buffers = 64MB
wal_level = replica
max_wal_senders = 4
hot_standby = on
log_min_messages = warning
fsync = off
full_page_writes = off
autovacuum = off
"""


def programs() -> Path:
    """The folder of Debian's PostgreSQL, newest version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise RuntimeError("no PostgreSQL in /usr/lib/postgresql: scripts/setup-system.sh installs it")
    return found[-1].parent


class Cluster:
    """One PostgreSQL server. It refuses to run as root, so root runs it as the package's user."""

    def __init__(self, folder: Path | None = None, port: int = 0) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="holt-pg-"))
        self.data = self.folder / "data"
        self.port = port or free_port()
        self._user = pwd.getpwnam("postgres") if os.getuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)

    @property
    def url(self) -> str:
        """For clients."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def create(self, more: str = "") -> Cluster:
        """Make a new database cluster and start it."""
        self._run("initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres", "--no-sync")
        self._configure(_SETTINGS + more)
        return self.start()

    def create_standby_of(self, primary: Cluster, name: str) -> Cluster:
        """Make a streaming standby that calls itself ``name``, and start it."""
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name={name}"
        self._run("pg_basebackup", "-D", str(self.data), "-R", "-d", source, "-c", "fast", "--no-sync")
        return self.start()

    def _configure(self, text: str) -> None:
        with open(self.data / "postgresql.conf", "a", encoding="ascii") as file:
            file.write(text)

    def start(self) -> Cluster:
        """Start, and wait until it takes connections."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [programs() / "postgres", "-D", self.data, "-p", str(self.port), "-k", self.folder],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._identity(),
            )
        deadline = time.monotonic() + _START_SECONDS
        probe: list[str | Path] = [programs() / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(probe, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("PostgreSQL did not start: " + (self.folder / "log").read_text()[-2000:])
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """End it as a crash does: every process of it at once, no checkpoint."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)  # "immediate": the next start replays the WAL
        self._process.wait()

    def promote(self) -> None:
        """A standby becomes the primary."""
        self._run("pg_ctl", "promote", "-D", str(self.data), "-w")

    def execute(self, statement: str) -> None:
        """Run one statement as the administrator."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement.encode())

    def configure(self, name: str, value: str | None) -> None:
        """Change a setting of the server (None: back to the default) and wait until it is in force.

        The server reads its configuration some time after ``pg_reload_conf``. It tells all processes before
        it starts another one: what a new session sees, the older ones see with their next statement.
        """
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")  # the setting may concern the standbys
            connection.execute("SET default_transaction_read_only = off")
            setting = sql.Identifier(name)
            change = sql.SQL("RESET {}").format(setting)
            if value is not None:
                change = sql.SQL("SET {} = {}").format(setting, sql.Literal(value))
            connection.execute(sql.SQL("ALTER SYSTEM {}").format(change))
            wanted = "SELECT setting FROM pg_file_settings WHERE name = %s ORDER BY seqno DESC LIMIT 1"
            default = "SELECT boot_val FROM pg_settings WHERE name = %s"
            found = (
                connection.execute(wanted, (name,)).fetchone()
                or connection.execute(default, (name,)).fetchone()
            )
            connection.execute("SELECT pg_reload_conf()")
        deadline = time.monotonic() + _START_SECONDS
        while self._setting_of_a_new_session(name) != found:
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not read its configuration: {name}")
            time.sleep(0.01)

    def _setting_of_a_new_session(self, name: str) -> object:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute("SELECT setting FROM pg_settings WHERE name = %s", (name,)).fetchone()

    def destroy(self) -> None:
        """End and remove it."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [programs() / program, *arguments],
            check=False,
            capture_output=True,
            cwd=self.folder,
            **self._identity(),
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.decode()}")

    def _identity(self) -> dict[str, Any]:
        return {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid}


class Pair:
    """A primary and its synchronous standby."""

    def __init__(self) -> None:
        self._primary, self._standby = Cluster(), Cluster()

    @property
    def url(self) -> str:
        """Of the primary, as it is now."""
        return self._primary.url

    def create(self) -> Pair:
        """Make both and start them."""
        self._primary.create(_SYNCHRONOUS)
        self._standby.create_standby_of(self._primary, "second")
        return self

    def restart(self) -> None:
        """The primary crashes and starts again."""
        self._primary.kill()
        self._primary.start()

    def fail_over(self) -> str:
        """The primary is gone for good, the standby takes its place and gets a standby; return its address.

        Until that one is there, no commit is answered.
        """
        self._primary.kill()
        self._standby.promote()
        self._primary.destroy()
        self._primary, self._standby = self._standby, Cluster()
        self._standby.create_standby_of(self._primary, "second")
        return self._primary.url

    def destroy(self) -> None:
        """Stop and remove both."""
        self._standby.destroy()
        self._primary.destroy()
