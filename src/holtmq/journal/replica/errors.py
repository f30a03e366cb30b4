"""What can go wrong between a node and the PostgreSQL that keeps its log.

Owns: the four answers a caller must tell apart. Must not touch: connections.
"""

from __future__ import annotations

from holtmq.journal.interface import JournalError


class Unreachable(Exception):
    """No connection, or it was lost: what was under way has happened or has not."""


class ReplicaRefused(JournalError):
    """PostgreSQL answers and trying again cannot help: wrong password, wrong schema, foreign data."""


class Fenced(JournalError):
    """Another node owns the log now. This one must confirm nothing more."""


class StartAgain(JournalError):
    """The copy in the folder cannot be continued: it has to begin again from the newest checkpoint."""
