"""Changes of topology, users and parameters, written to the journal.

Owns: nothing but the count. Must not touch: what the changes mean.
"""

from holtmq.broker.records.changes import AnyChange, Kind, encode_change
from holtmq.journal.interface import Journal


class ChangeLog:
    """Journals changes that the caller has made."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.changes = 0  # how many were recorded

    @property
    def has_failed(self) -> bool:
        return self._journal.failed is not None

    def refuse_if_failed(self) -> None:
        """Raise if the journal has failed. Call it before a change, which could not be journalled."""
        if self._journal.failed is not None:
            raise self._journal.failed

    def record(self, change: AnyChange) -> None:
        """Journal one change."""
        self.changes += 1
        self._journal.append(Kind.CHANGE, encode_change(change))
