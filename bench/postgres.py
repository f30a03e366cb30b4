"""PostgreSQL doing a partitioned queue's work: batches inserted, claimed with SKIP LOCKED, acked by a cursor.

Owns: a private cluster (unix socket, fsync on) and the statements: what Queen does in its procedures, with
less around it (partitions are known numbers, no namespaces, no traces). Must not touch: a PostgreSQL that
already runs here. Driven by the same connections as every other broker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from time import perf_counter

from bench import debian
from psycopg import pq

from holtmq.load.errors import LoadError
from holtmq.load.http_connections import LoadConnection, LoadEngine
from holtmq.load.http_workers import Flow, Popper, Pusher
from holtmq.load.http_workloads import PAYLOAD, HttpMode, HttpWorkload

_START_SECONDS = 60.0
_EMPTY_SECONDS = 0.005  # before a pop that found nothing is tried again
_SCHEMA = """
DROP TABLE IF EXISTS messages, cursors;
CREATE TABLE messages (
    partition_id int NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    transaction_id text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (partition_id, id),
    UNIQUE (partition_id, transaction_id)
);
CREATE TABLE cursors (
    group_id int NOT NULL,
    partition_id int NOT NULL,
    cursor bigint NOT NULL DEFAULT 0,
    lease_id uuid,
    lease_expires_at timestamptz,
    PRIMARY KEY (group_id, partition_id)
) WITH (fillfactor = 50);
"""
_PUSH = b"""
INSERT INTO messages (partition_id, transaction_id, payload)
SELECT $1::int, t, p::jsonb FROM unnest($2::text[], $3::text[]) AS given(t, p)
ON CONFLICT DO NOTHING RETURNING id
"""
# The sub-select asks the index once a partition; as EXISTS it may become a join over all messages.
_POP = b"""
WITH free AS (
    SELECT c.partition_id FROM cursors c
    WHERE c.group_id = $1::int AND (c.lease_id IS NULL OR c.lease_expires_at < now())
      AND (SELECT m.id FROM messages m WHERE m.partition_id = c.partition_id AND m.id > c.cursor
           ORDER BY m.id LIMIT 1) IS NOT NULL
    LIMIT 1 FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE cursors c SET lease_id = gen_random_uuid(), lease_expires_at = now() + interval '60 seconds'
    FROM free WHERE c.group_id = $1::int AND c.partition_id = free.partition_id
    RETURNING c.partition_id, c.cursor, c.lease_id
)
SELECT l.partition_id, l.lease_id, m.id, m.transaction_id, m.payload, m.created_at
FROM leased l CROSS JOIN LATERAL (
    SELECT * FROM messages m WHERE m.partition_id = l.partition_id AND m.id > l.cursor
    ORDER BY m.id LIMIT $2::int
) m
"""
# By transaction ids, as a client knows its messages; all must be there and inside the lease.
_ACK = b"""
WITH found AS (
    SELECT max(id) AS upto, count(*) AS known FROM messages
    WHERE partition_id = $2::int AND transaction_id = ANY ($4::text[])
)
UPDATE cursors SET cursor = found.upto, lease_id = CASE WHEN $5::bool THEN NULL ELSE lease_id END
FROM found
WHERE group_id = $1::int AND partition_id = $2::int AND lease_id = $3::uuid AND lease_expires_at > now()
  AND found.known = cardinality($4::text[]) AND found.upto > cursor
RETURNING found.known
"""

Query = tuple[bytes, list[bytes]]  # a prepared statement's name and its parameters
Rows = pq.abc.PGresult


class PgWire:
    """One connection to the cluster, without psycopg's cursors: libpq and a socket."""

    def __init__(self, conninfo: str) -> None:
        self._conn = pq.PGconn.connect(conninfo.encode())
        if self._conn.status != pq.ConnStatus.OK:
            raise LoadError(f"PostgreSQL: {self._conn.error_message.decode(errors='replace')}")
        for name, statement in ((b"push", _PUSH), (b"pop", _POP), (b"ack", _ACK)):
            _check(self._conn.prepare(name, statement))

    def fileno(self) -> int:
        return self._conn.socket

    def send(self, request: Query) -> None:
        self._conn.send_query_prepared(*request)
        while self._conn.flush():
            pass

    def receive(self) -> Rows | None:
        conn = self._conn
        conn.consume_input()
        if conn.is_busy():
            return None
        rows = conn.get_result()
        assert rows is not None
        while conn.get_result() is not None:
            pass
        _check(rows)
        return rows

    def close(self) -> None:
        self._conn.finish()


def _check(rows: Rows) -> None:
    if rows.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise LoadError(f"PostgreSQL: {rows.error_message.decode(errors='replace')}")


class PgDialect:
    """Statements and their rows."""

    def __init__(self, workload: HttpWorkload) -> None:
        self._workload = workload
        self._serials = count(1)
        self._turns = [0] * workload.pushers
        text = PAYLOAD.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        self._payloads = b"{%s}" % b",".join([b'"%s"' % text] * workload.push_batch)
        marks = [b"\0-%03d" % place for place in range(workload.push_batch)]
        self._ids = (b"{%s}" % b",".join(marks)).split(b"\0")
        self._again: dict[tuple[int, int], float] = {}

    def push(self, number: int) -> Query:
        workload = self._workload
        mine = range(number % workload.partitions, workload.partitions, workload.pushers)
        turn = self._turns[number]
        self._turns[number] = (turn + 1) % len(mine)
        ids = (b"%012d" % next(self._serials)).join(self._ids)
        return b"push", [b"%d" % mine[turn], ids, self._payloads]

    def pushed(self, answer: Rows) -> None:
        if answer.ntuples != self._workload.push_batch:
            raise LoadError(f"PostgreSQL stored {answer.ntuples} of {self._workload.push_batch}")

    def pop(self, number: int, group: int) -> Query | None:
        again = self._again.get((number, group))
        if again is not None:
            if perf_counter() < again:
                return None
            del self._again[number, group]
        return b"pop", [b"%d" % group, b"%d" % self._workload.pop_batch]

    def popped(self, answer: Rows, number: int, group: int) -> Rows | None:
        if not answer.ntuples:
            self._again[number, group] = perf_counter() + _EMPTY_SECONDS
            return None
        return answer

    def size(self, held: Rows) -> int:
        return held.ntuples

    def ack(self, held: Rows, first: int, count: int, group: int) -> Query:
        value = held.get_value
        ids = [value(row, 3) or b"" for row in range(first, first + count)]
        done = b"true" if first + count == held.ntuples else b"false"
        where = (value(0, 0) or b"", value(0, 1) or b"")
        return b"ack", [b"%d" % group, *where, b"{%s}" % b",".join(ids), done]

    def acked(self, answer: Rows, count: int) -> None:
        if answer.ntuples != 1 or answer.get_value(0, 0) != b"%d" % count:
            raise LoadError(f"PostgreSQL: an ack of {count} found its lease or its messages gone")


class PgStage:
    """Tables of one round."""

    def __init__(self, conninfo: str, workload: HttpWorkload) -> None:
        self.flow = Flow(workload)
        self._conninfo = conninfo
        self._workload = workload
        self._run(_SCHEMA)
        self._run(
            f"INSERT INTO cursors SELECT g, p FROM generate_series(0, {workload.lines - 1}) g, "
            f"generate_series(0, {workload.partitions - 1}) p"
        )
        self._run("ANALYZE cursors")
        self._dialect = PgDialect(workload)

    def _run(self, statements: str) -> None:
        conn = pq.PGconn.connect(self._conninfo.encode())
        try:
            _check(conn.exec_(statements.encode()))
        finally:
            conn.finish()

    def fill(self, messages: int) -> None:
        filler = replace(self._workload, pushers=8, push_batch=1000)
        flow, dialect = Flow(filler), PgDialect(filler)
        engine = LoadEngine([self._pusher(dialect, flow, number) for number in range(filler.pushers)])
        try:
            engine.run(lambda: flow.offered >= messages)
            flow.closed = True
            engine.run(lambda: flow.pushed == flow.offered)
        finally:
            engine.close()
        self._run("VACUUM ANALYZE messages")
        self.flow.offered = self.flow.pushed = flow.pushed

    def _pusher(self, dialect: PgDialect, flow: Flow, number: int) -> LoadConnection[Query, Rows]:
        return LoadConnection(PgWire(self._conninfo), Pusher[Query, Rows, Rows](dialect, flow, number))

    def pushers(self) -> list[LoadConnection[Query, Rows]]:
        return [self._pusher(self._dialect, self.flow, number) for number in range(self._workload.pushers)]

    def poppers(self) -> list[LoadConnection[Query, Rows]]:
        return [
            LoadConnection(
                PgWire(self._conninfo), Popper[Query, Rows, Rows](self._dialect, self.flow, number, group)
            )
            for group in range(self._workload.lines)
            for number in range(self._workload.poppers)
        ]

    def close(self) -> None:
        with suppress(LoadError):
            self._run("DROP TABLE IF EXISTS messages, cursors")


@dataclass(frozen=True, slots=True)
class PgTarget:
    """The cluster under load."""

    label: str
    pid: int | None
    conninfo: str

    def runs(self, workload: HttpWorkload) -> bool:
        # Ids by the server would be one more default; waiting pops want LISTEN. Pushes to one partition by
        # several clients would need a lock each: an identity column's order is not the order of commits. And
        # over thousands of partitions the claim above looks at each in turn: no fair peer there.
        if not workload.own_ids or workload.mode is HttpMode.WAKE:
            return False
        return workload.pushers <= workload.partitions <= 1000

    def stage(self, workload: HttpWorkload) -> PgStage:
        return PgStage(self.conninfo, workload)


@contextmanager
def postgres() -> Iterator[PgTarget]:
    """Run a cluster of our own, with the settings a busy queue gets."""
    binaries = _binaries()
    user = "postgres" if os.geteuid() == 0 else None
    with debian.folder("postgres", user) as folder:
        data = folder / "data"
        make = [
            str(binaries / "initdb"),
            "-D",
            str(data),
            "-U",
            "holt",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(make, check=True, capture_output=True, user=user, cwd=folder)
        command = [str(binaries / "postgres"), "-D", str(data), "-k", str(folder)]
        for setting in (
            "listen_addresses=",
            "fsync=on",
            "synchronous_commit=on",
            "max_connections=200",
            "shared_buffers=1GB",
            "max_wal_size=8GB",
        ):
            command += ["-c", setting]
        conninfo = f"host={folder} user=holt dbname=postgres"
        with debian.server(command, folder / "log", signal.SIGINT, user) as process:
            deadline = time.monotonic() + _START_SECONDS
            while True:
                conn = pq.PGconn.connect(conninfo.encode())
                ready = conn.status == pq.ConnStatus.OK
                version = conn.server_version if ready else 0
                conn.finish()
                if ready:
                    break
                debian.ended(process, folder / "log", "PostgreSQL")
                if time.monotonic() > deadline:
                    raise SystemExit("PostgreSQL did not start in time")
                time.sleep(0.1)
            yield PgTarget(f"PostgreSQL {version // 10000}.{version % 10000}", process.pid, conninfo)


def _binaries() -> Path:
    root = Path("/usr/lib/postgresql")
    if not list(root.glob("*/bin/initdb")):
        debian.install("postgresql")
    return max(root.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])).parent
