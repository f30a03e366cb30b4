"""Errors between a node and the PostgreSQL that stores its log.

Owns: the cases that a caller must distinguish. Must not touch: connections.
"""

from __future__ import annotations

from holtmq.journal.interface import JournalError


class Unreachable(Exception):
    """No connection, or it was lost: whether the last statement was executed is unknown."""


class Locked(Unreachable):
    """Another session held a lock for too long; the statement was not executed."""


class ReplicaRefused(JournalError):
    """PostgreSQL answers, but a retry cannot help: wrong password, wrong schema, data of another log."""


class Fenced(JournalError):
    """Another node owns the log now. This node must confirm nothing more."""


class StartAgain(JournalError):
    """The copy in the folder cannot be continued: it has to start over from the newest checkpoint."""
