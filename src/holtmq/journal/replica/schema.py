"""The tables in PostgreSQL, and the version of their schema.

Owns: the names and the definition of everything in the schema ``holtmq``. Must not touch: what is in a log.

Each part of a log (a segment, a compacted segment, a checkpoint) has its own table of rows, which inherits
from ``holtmq.rows``. Dropping it locks no other table (docs/decisions/0044).
"""

from __future__ import annotations

from typing import Any, Final

from psycopg import Connection, sql

from .errors import ReplicaRefused

VERSION: Final = 1
_CREATION_LOCK: Final = (
    0x484F4C54  # "HOLT": two nodes that start at once create the schema one after the other
)

_DEFINITION: Final = """
CREATE TABLE holtmq.version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version integer NOT NULL
);
CREATE TABLE holtmq.log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    identity uuid NOT NULL DEFAULT gen_random_uuid(),
    epoch bigint NOT NULL DEFAULT 0,            -- who may append: only a session that knows this number
    owner text NOT NULL DEFAULT '',
    owner_folder uuid,                          -- the data folder of the owner
    owner_process uuid,                         -- drawn anew by each process
    owner_pid integer NOT NULL DEFAULT 0,       -- PostgreSQL's backend of the owner
    released boolean NOT NULL DEFAULT true,     -- the owner has ended in good order
    successor text NOT NULL DEFAULT '',         -- the node that is to take over, by `holt cluster promote`
    beat bigint NOT NULL DEFAULT 0,             -- grows while the owner lives and is idle
    beat_at timestamptz NOT NULL DEFAULT now()  -- for people; no node compares it with its own clock
) WITH (fillfactor = 20);
CREATE TABLE holtmq.epoch (
    log bigint NOT NULL REFERENCES holtmq.log ON DELETE CASCADE,
    epoch bigint NOT NULL,
    start bigint NOT NULL,                      -- where the log ended when the epoch began
    owner text NOT NULL,
    began timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (log, epoch)
);
CREATE TABLE holtmq.part (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    log bigint NOT NULL REFERENCES holtmq.log ON DELETE CASCADE,
    kind text NOT NULL CHECK (kind IN ('plain', 'compacted', 'checkpoint')),
    base bigint NOT NULL,                       -- first position; of a checkpoint the position it stands for
    epoch bigint NOT NULL,
    header bytea NOT NULL,                      -- the first 64 bytes of the file
    size bigint NOT NULL DEFAULT 0,             -- of the file; 0 for a plain segment, whose rows tell
    ready boolean NOT NULL
);
CREATE UNIQUE INDEX part_ready ON holtmq.part (log, (kind = 'checkpoint'), base) WHERE ready;
CREATE TABLE holtmq.rows (
    position bigint NOT NULL,                   -- in the log; of other parts the offset in the file
    epoch bigint NOT NULL,
    bytes bytea NOT NULL
);
ALTER TABLE holtmq.rows ALTER COLUMN bytes SET STORAGE EXTERNAL;
CREATE TABLE holtmq.node (
    log bigint NOT NULL REFERENCES holtmq.log ON DELETE CASCADE,
    name text NOT NULL,
    role text NOT NULL,
    address text NOT NULL,
    position bigint NOT NULL,                   -- how far its copy goes
    behind_seconds double precision NOT NULL DEFAULT 0,
    seen timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (log, name)
);
"""


def ensure(connection: Connection[Any]) -> None:
    """Create the schema if it does not exist; ReplicaRefused if it has another version."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION_LOCK,))
        if connection.execute("SELECT to_regclass('holtmq.version')").fetchone() == (None,):
            # IF NOT EXISTS would demand the right to create schemas even when there is nothing to create.
            if connection.execute("SELECT to_regnamespace('holtmq')").fetchone() == (None,):
                connection.execute("CREATE SCHEMA holtmq")
            connection.execute(_DEFINITION, prepare=False)
            connection.execute("INSERT INTO holtmq.version (version) VALUES (%s)", (VERSION,))
            return
        found = connection.execute("SELECT version FROM holtmq.version").fetchone()
    if found is None or found[0] != VERSION:
        version = "none" if found is None else found[0]
        advice = "update this node" if found and found[0] > VERSION else "update the other nodes first"
        raise ReplicaRefused(
            f"the schema holtmq in PostgreSQL has version {version}, this program works with {VERSION}: "
            f"{advice}"
        )


def rows_table(part: int) -> sql.Identifier:
    """The table with the rows of one part."""
    return sql.Identifier("holtmq", f"rows_{part}")


def create_rows_table(connection: Connection[Any], part: int) -> None:
    """Create the table for the rows of a new part."""
    connection.execute(
        sql.SQL("CREATE TABLE {} (PRIMARY KEY (position)) INHERITS (holtmq.rows)").format(rows_table(part)),
        prepare=False,
    )


def drop_rows_table(connection: Connection[Any], part: int) -> None:
    """Drop the table with the rows of a part."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(rows_table(part)), prepare=False)
