"""Changes of topology, users and parameters, written to the journal.

Owns: which changes form one record. Must not touch: what the changes mean.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from holtmq.broker.records.changes import (
    AnyChange,
    Kind,
    encode_change,
)
from holtmq.journal.encoded_batch import EncodedBatch
from holtmq.journal.interface import Journal


class ChangeLog:
    """Journals changes that the caller has made."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._together: list[tuple[int, bytes]] | None = None  # records of an open ``one_record``

    def refuse_if_failed(self) -> None:
        """Raise if the journal has failed. Call it before a change, which could not be journalled."""
        if self._journal.failed is not None:
            raise self._journal.failed

    def record(self, change: AnyChange) -> None:
        """Journal one change."""
        record = (int(Kind.CHANGE), encode_change(change))
        if self._together is not None:
            self._together.append(record)
        else:
            self._journal.append(*record)

    @contextmanager
    def one_record(self, behind: EncodedBatch | None = None) -> Iterator[None]:
        """Journal all changes made meanwhile as one record: a crash keeps all of them or none.

        The same record gets ``behind``: changes that are encoded already, and are made afterwards.
        """
        assert self._together is None
        self._together = []
        try:
            yield
        except BaseException:
            behind = None
            raise
        finally:
            records, self._together = self._together, None
            batch = EncodedBatch()
            for kind, payload in records:
                batch.add(kind, payload)
            if behind is not None:
                batch.extend(behind)
            if not batch.is_empty:
                self._journal.append_encoded(batch)
