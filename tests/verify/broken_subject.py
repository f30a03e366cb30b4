"""Brokers that break a promise on purpose, for the check to catch. Run like ``holtmq.verify.subject``.

Usage: ``python broken_subject.py FAULT ARGUMENTS...``
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from holtmq.broker import recovery
from holtmq.journal.file_journal import FileJournal
from holtmq.journal.interface import JournalFailed
from holtmq.journal.writer import LogWriter
from holtmq.verify import subject


def confirm_before_sync() -> None:
    """Whoever waits for durability is told as soon as the records are handed over."""
    close_group = FileJournal._close_group

    def hasty(journal: FileJournal) -> None:
        callbacks, journal._callbacks = journal._callbacks, []
        close_group(journal)
        nothing: JournalFailed | None = None
        for callback in callbacks:
            callback(nothing)

    FileJournal._close_group = hasty  # type: ignore[method-assign]


def forget_acks() -> None:
    """Recovery does not read that a message was settled."""

    def settle(holding: recovery._Holding, settled: array[int], size: int) -> None:
        return

    recovery._Holding.settle = settle  # type: ignore[method-assign]


def tear_transactions() -> None:
    """A batch is written as single records, the last of them later."""

    def one_by_one(journal: FileJournal, records: Sequence[tuple[int, bytes]]) -> list[int]:
        positions = []
        for kind, payload in records:
            positions.append(journal.append(kind, payload))
            journal._close_group()
        return positions

    FileJournal.append_batch = one_by_one  # type: ignore[method-assign]
    commit = LogWriter.commit

    def group_by_group(writer: LogWriter, groups: Sequence[object]) -> object:
        for group in groups[:-1]:
            commit(writer, [group])  # type: ignore[list-item]
        last = commit(writer, groups[-1:])  # type: ignore[arg-type]
        return type(last)(len(groups), last.durable, last.written, last.syncs, last.seconds)

    LogWriter.commit = group_by_group  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    {"early": confirm_before_sync, "acks": forget_acks, "torn": tear_transactions}[sys.argv[1]]()
    sys.exit(subject.main(sys.argv[2:]))
