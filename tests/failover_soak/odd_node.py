"""Nodes that break a promise of failover on purpose, or whose clock jumps. Run like ``holt serve``.

Usage: ``python odd_node.py ODDITY [FOLDER] serve ...``
"""

from __future__ import annotations

import atexit
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

OFFSET = struct.Struct("<d")


def set_clock(folder: Path, node: str, offset: float) -> None:
    """Put the clock of a node with ``jumping_clock`` this many seconds ahead, from its next look on."""
    with _clock_file(folder, node) as file:
        OFFSET.pack_into(file, 0, offset)


def _clock_file(folder: Path, node: str) -> mmap.mmap:
    path = folder / f"{node}.clock"
    with suppress(FileExistsError), path.open("xb") as file:
        file.write(bytes(OFFSET.size))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), OFFSET.size)


def jumping_clock() -> None:
    """The wall clock is ahead of the real one by what is in a file; the folder is an argument."""
    real, file = time.time, _clock_file(Path(sys.argv.pop(1)), os.environ["HOLT_JOURNAL_REPLICA_NODE"])
    time.time = lambda: real() + OFFSET.unpack_from(file)[0]


def no_fencing() -> None:
    """The owner takes no notice of another one's epoch, and keeps its clients."""
    from holtmq.journal.replica.appending import Appender
    from holtmq.journal.replica.errors import Fenced
    from holtmq.journal.replica.store import LogStore, Owner
    from holtmq.journal.writer import Stretch
    from holtmq.replica_life import ReplicaLife

    append, beat = Appender.append, LogStore.beat

    def deaf_append(appender: Appender, stretches: Sequence[Stretch], meanwhile: Callable[[], None]) -> None:
        try:
            append(appender, stretches, meanwhile)
        except Fenced:
            appender.end = stretches[-1].end

    def deaf_beat(store: LogStore, owner: Owner, *, has_written: bool = False) -> str:
        try:
            return beat(store, owner, has_written=has_written)
        except Fenced:
            return ""

    ReplicaLife.trouble = lambda _: ""  # type: ignore[assignment, method-assign]
    Appender.append = deaf_append  # type: ignore[assignment, method-assign]
    Appender.reconnect = lambda _: None  # type: ignore[assignment, method-assign]
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
    Appender.begin = lambda *_: False  # type: ignore[method-assign]
    Appender.append = late  # type: ignore[assignment, method-assign]


def gives_up() -> None:
    """The owner ends at a lost answer instead of finding out what has become of the commit.

    Its process lives on for a while, as on a busy machine: another node may be in charge before it is gone.
    """
    from holtmq.journal.interface import JournalError
    from holtmq.journal.replica.appending import Appender

    def desperate(*_: object) -> None:
        raise JournalError("this owner gives up")

    atexit.register(time.sleep, 2.0)
    Appender._settle = desperate  # type: ignore[assignment, method-assign]


def falls_silent() -> None:
    """HTTP takes every request and answers none that has to wait for the disk."""
    from holtmq.http.engine.request import HttpRequest
    from holtmq.journal.interface import Journal

    def mute(request: HttpRequest, journal: Journal, status: int, body: bytes) -> None:
        return

    HttpRequest.answer_when_durable = mute  # type: ignore[assignment, method-assign]


ODDITIES = {
    oddity.__name__: oddity
    for oddity in (jumping_clock, no_fencing, confirm_before_commit, gives_up, falls_silent)
}

if __name__ == "__main__":
    ODDITIES[sys.argv.pop(1)]()
    from holtmq.cli import main

    main()
