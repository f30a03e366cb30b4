"""An owner whose event loop a test steps, for commits that the loop's thread sends itself.

Owns: that owner, and what it was told. Must not touch: verdicts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import TupleRow
from replica_support import PATIENCE, Loop, Member, new_log

from holtmq.journal import JournalFailed, polled_commits
from holtmq.journal.replica.appending import Appender
from holtmq.journal.replica.row_statement import RowStatement
from holtmq.journal.replica.session import PatientConnection
from holtmq.journal.writer import Stretch

Told = list[JournalFailed | None]
WRITER = "holt-journal-writer"  # the thread


class Polling:
    """An owner whose loop the test steps. It polls for an answer until the test says ``end_polling``."""

    def __init__(
        self, url: str, folder: Path, patch: pytest.MonkeyPatch, busy_poll: float = 2 * PATIENCE
    ) -> None:
        self.replica = new_log(url, busy_poll=busy_poll)
        self.loop = Loop()
        self.member = Member(self.replica, folder, loop=self.loop).own()
        self.journal = self.member.journal
        self.written: list[bytes] = []
        self.told: list[Told] = []  # for each payload
        self.appended_by: list[str] = []  # threads
        self.has_answer = False
        self.connection: PatientConnection | None = None  # by which the last commit was begun
        self._begun = False
        self._late = 0.0
        begin, append, end_begun = Appender.begin, Appender.append, Appender.end_begun
        has_answer = RowStatement._has_answer

        def watched_begin(appender: Appender, stretch: Stretch) -> bool:
            self._begun = begin(appender, stretch)
            self.connection = appender._known
            return self._begun

        def watched_append(*arguments: object) -> None:
            self.appended_by.append(threading.current_thread().name)
            append(*arguments)  # type: ignore[arg-type]

        def watched_end(appender: Appender) -> bool:
            is_done = end_begun(appender)
            if is_done:
                self.appended_by.append(threading.current_thread().name)
            return is_done

        def watched_answer(*arguments: object) -> bool:
            self.has_answer = has_answer(*arguments)  # type: ignore[arg-type]
            return self.has_answer

        patch.setattr(RowStatement, "_has_answer", watched_answer)
        patch.setattr(polled_commits, "monotonic", lambda: time.monotonic() + self._late)
        patch.setattr(Appender, "begin", watched_begin)
        patch.setattr(Appender, "append", watched_append)
        patch.setattr(Appender, "end_begun", watched_end)

    def write(self, size: int = 1) -> bool:
        """Append, and run the turn that hands the group over; whether the loop's thread has sent it."""
        self.written.append(b"%d" % len(self.written) * size)
        self.told.append([])
        self.journal.append(20, self.written[-1])
        self.journal.on_durable(self.told[-1].append)
        self._begun = self.has_answer = False
        self.loop.step()
        return self._begun

    def begin(self) -> None:
        """Write until the loop's thread has sent one: not the first, nor one when a heartbeat is due."""
        while not self.write():
            self.settle()

    @contextmanager
    def begun_and_held_up(self) -> Iterator[psycopg.Connection[TupleRow]]:
        """The loop's thread has sent a commit, and PostgreSQL cannot finish it until the block ends."""
        while True:
            with psycopg.connect(self.replica.url) as other:
                other.execute("SELECT FROM holtmq.log WHERE name = %s FOR UPDATE", (self.replica.name,))
                if self.write():
                    yield other
                    return
            self.settle()

    def end_polling(self) -> None:
        """What is being polled for has taken too long."""
        self._late += 10 * PATIENCE

    def settle(self) -> None:
        """Run the loop until every callback was called."""
        self.loop.run_until(lambda: all(self.told), "all of it was reported")
