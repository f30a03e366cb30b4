"""Nodes that break a promise of failover on purpose, or whose clock jumps. Run like ``holt serve``.

Usage: ``python odd_node.py ODDITY serve ...``
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence


def jumping_clock() -> None:
    """SIGUSR1 sets the wall clock an hour forward, the next one two hours back, and so on."""
    real, offsets = time.time, [0.0]
    time.time = lambda: real() + offsets[-1]

    def jump(*_: object) -> None:
        offsets.append(-3600.0 if offsets[-1] > 0 else 3600.0)

    signal.signal(signal.SIGUSR1, jump)


def no_fencing() -> None:
    """The owner takes no notice of another one's epoch."""
    from holtmq.journal.replica.appending import Appender
    from holtmq.journal.replica.errors import Fenced
    from holtmq.journal.replica.store import LogStore, Owner
    from holtmq.journal.writer import Stretch

    append, beat = Appender.append, LogStore.beat

    def deaf_append(appender: Appender, stretches: Sequence[Stretch], meanwhile: Callable[[], None]) -> None:
        try:
            append(appender, stretches, meanwhile)
        except Fenced:
            appender.end = stretches[-1].end

    def deaf_beat(store: LogStore, owner: Owner) -> str:
        try:
            return beat(store, owner)
        except Fenced:
            return ""

    Appender.append = deaf_append  # type: ignore[assignment, method-assign]
    LogStore.beat = deaf_beat  # type: ignore[assignment, method-assign]


def confirm_before_commit() -> None:
    """Clients are told as soon as the folder has it; PostgreSQL gets it a little later."""
    from holtmq.journal.file_journal import FileJournal
    from holtmq.journal.replica.appending import Appender
    from holtmq.journal.writer import Stretch

    close_group, append = FileJournal._close_group, Appender.append

    def hasty(journal: FileJournal) -> None:
        callbacks, journal._callbacks = journal._callbacks, []
        close_group(journal)
        for callback in callbacks:
            callback(None)

    def late(appender: Appender, stretches: Sequence[Stretch], meanwhile: Callable[[], None]) -> None:
        time.sleep(0.05)
        append(appender, stretches, meanwhile)

    FileJournal._close_group = hasty  # type: ignore[assignment, method-assign]
    Appender.append = late  # type: ignore[assignment, method-assign]


ODDITIES = {oddity.__name__: oddity for oddity in (jumping_clock, no_fencing, confirm_before_commit)}

if __name__ == "__main__":
    ODDITIES[sys.argv.pop(1)]()
    from holtmq.cli import main

    main()
