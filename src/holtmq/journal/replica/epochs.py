"""Where each epoch of a log began: what a folder may keep that was written in an earlier one.

Owns: the table ``holtmq.epoch``, and how many rows it keeps (docs/decisions/0232). Must not touch: who owns
the log. The caller has the transaction.
"""

from __future__ import annotations

from typing import Final

from .session import PatientConnection

KEPT: Final = 1_000  # an owner that reconnects begins one, too


def begin(connection: PatientConnection, log: int, epoch: int, start: int, owner: str) -> None:
    """Note that an epoch begins where the log ends now."""
    connection.execute(
        "INSERT INTO holtmq.epoch (log, epoch, start, owner) VALUES (%s, %s, %s, %s)",
        (log, epoch, start, owner),
    )
    # The oldest one left gets the lowest start of the deleted ones.
    connection.execute(
        "WITH old AS (SELECT epoch FROM holtmq.epoch WHERE log = %(log)s AND epoch <= %(upto)s"
        " ORDER BY epoch LIMIT 1000),"
        " gone AS (DELETE FROM holtmq.epoch WHERE log = %(log)s AND epoch IN (SELECT epoch FROM old)"
        " RETURNING start)"
        " UPDATE holtmq.epoch SET start = least(start, (SELECT min(start) FROM gone))"
        " WHERE log = %(log)s AND epoch = (SELECT min(epoch) FROM holtmq.epoch WHERE log = %(log)s"
        " AND epoch > (SELECT max(epoch) FROM old))",
        {"log": log, "upto": epoch - KEPT},
    )


def owners(connection: PatientConnection, log: int) -> list[tuple[str, float]]:
    """The node that began each epoch, and when (by PostgreSQL's clock, since 1970), the oldest first."""
    query = "SELECT owner, extract(epoch FROM began)::float8 FROM holtmq.epoch WHERE log = %s ORDER BY epoch"
    return [(owner, began) for owner, began in connection.execute(query, (log,))]


def lowest_start_after(connection: PatientConnection, log: int, epoch: int) -> int | None:
    """Where the log ended when the next epoch began, or lower if that is long ago; None: there is none."""
    found = connection.execute(
        "SELECT min(start) FROM holtmq.epoch WHERE log = %s AND epoch > %s", (log, epoch)
    ).fetchone()
    return None if found is None else found[0]
