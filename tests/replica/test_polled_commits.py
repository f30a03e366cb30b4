"""Small commits that the event loop's thread sends itself: every outcome, with a loop that the test steps."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import TupleRow
from replica_support import PATIENCE, Loop, Member, log_of, new_log, until

from holtmq.journal import JournalFailed, polled_commits
from holtmq.journal.disk import OsFile
from holtmq.journal.replica.appending import Appender
from holtmq.journal.replica.row_statement import RowStatement
from holtmq.journal.replica.session import PatientConnection
from holtmq.journal.replica.store import Kind
from holtmq.journal.writer import Stretch
from postgres import Cluster

Told = list[JournalFailed | None]
_WRITER = "holt-journal-writer"


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
        begin, append, read = Appender.begin, Appender.append, RowStatement._read_result

        def watched_begin(appender: Appender, stretch: Stretch) -> bool:
            self._begun = begin(appender, stretch)
            self.connection = appender._begun
            return self._begun

        def watched_append(*arguments: object) -> None:
            self.appended_by.append(threading.current_thread().name)
            append(*arguments)  # type: ignore[arg-type]

        def watched_read(*arguments: object) -> None:
            read(*arguments)  # type: ignore[arg-type]
            self.has_answer = True

        patch.setattr(RowStatement, "_read_result", watched_read)
        patch.setattr(polled_commits, "monotonic", lambda: time.monotonic() + self._late)
        patch.setattr(Appender, "begin", watched_begin)
        patch.setattr(Appender, "append", watched_append)

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


@pytest.fixture
def owner(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Polling]:
    made = Polling(postgres.url, tmp_path / "a", monkeypatch)
    members.append(made.member)
    yield made
    made.journal.close()


@pytest.fixture
def is_stored_once(owner: Polling, tmp_path: Path, members: list[Member]) -> Callable[[], bool]:
    """Whether everything was confirmed once, and a node with an empty folder finds it in PostgreSQL once."""

    def check() -> bool:
        owner.journal.close()
        again = Member(owner.replica, tmp_path / "b").own()
        members.append(again)
        return owner.told == [[None]] * len(owner.written) and again.payloads == owner.written

    return check


def test_a_small_commit_is_sent_and_confirmed_by_the_loops_thread(
    owner: Polling, is_stored_once: Callable[[], bool]
) -> None:
    with owner.begun_and_held_up():
        owner.loop.step()
        assert owner.told[-1] == []
    owner.settle()

    assert owner.appended_by[-1] == threading.current_thread().name
    assert is_stored_once()


def test_groups_that_come_while_an_answer_is_awaited_follow_in_order(
    owner: Polling, is_stored_once: Callable[[], bool]
) -> None:
    with owner.begun_and_held_up():
        for _ in range(5):
            owner.write()
        assert not any(owner.told[-6:])
    owner.settle()

    assert is_stored_once()


def test_commits_of_both_threads_follow_each_other_over_segments(
    owner: Polling, is_stored_once: Callable[[], bool]
) -> None:
    for _ in range(30):
        owner.write(size=200)
        owner.write(size=200)
        owner.settle()

    assert len(owner.journal.segments()) > 2
    assert set(owner.appended_by) == {threading.current_thread().name, _WRITER}
    assert is_stored_once()


def test_an_answer_that_takes_too_long_is_left_to_the_writer_thread(
    owner: Polling, is_stored_once: Callable[[], bool]
) -> None:
    with owner.begun_and_held_up():
        owner.write()
        owner.end_polling()
        handed = len(owner.appended_by) + 1
        owner.loop.run_until(lambda: len(owner.appended_by) == handed, "the writer thread waits for it")
        owner.write()
        assert not any(owner.told[-3:])
    owner.settle()

    assert owner.appended_by[handed - 1] == _WRITER
    assert is_stored_once()


def test_an_owner_that_was_replaced_confirms_nothing_that_its_loop_has_sent(owner: Polling) -> None:
    with owner.begun_and_held_up() as other:
        other.execute(
            "UPDATE holtmq.log SET epoch = epoch + 1, owner = 'two' WHERE name = %s", (owner.replica.name,)
        )
        with log_of(owner.replica.url, owner.replica.name) as store:
            end = store.end()
    owner.loop.run_until(lambda: owner.has_answer, "the answer has come")
    assert owner.told[-1] == []
    owner.end_polling()
    owner.settle()

    assert "two owns the log since epoch" in str(owner.journal.failed)
    assert owner.told[-1] == [owner.journal.failed]
    with log_of(owner.replica.url, owner.replica.name) as store:
        assert store.end() == end


def test_a_connection_that_ends_before_the_answer_is_settled(
    owner: Polling, is_stored_once: Callable[[], bool]
) -> None:
    waits = "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    with owner.begun_and_held_up() as other, psycopg.connect(owner.replica.url, autocommit=True) as watch:
        blocker = (other.info.backend_pid,)
        until(lambda: watch.execute(waits, blocker).fetchone(), "the append waits for the lock")
        watch.execute(f"SELECT pg_terminate_backend(pid) FROM ({waits}) AS found", blocker)
        until(lambda: not watch.execute(waits, blocker).fetchone(), "its session has ended")
    owner.loop.step()
    owner.end_polling()
    owner.settle()

    assert owner.appended_by[-1] == _WRITER
    assert is_stored_once()


def test_a_connection_that_is_cut_without_a_word_is_settled(
    owner: Polling, is_stored_once: Callable[[], bool]
) -> None:
    with owner.begun_and_held_up():
        assert owner.connection is not None
        with socket.socket(fileno=os.dup(owner.connection.pgconn.socket)) as cut:
            cut.shutdown(socket.SHUT_RDWR)
        owner.loop.step()  # the loop's thread is the first to see it
        owner.end_polling()
    owner.settle()

    assert owner.appended_by[-1] == _WRITER
    assert is_stored_once()


def test_a_statement_of_which_it_is_unknown_whether_it_was_sent_is_settled(
    owner: Polling, is_stored_once: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    send, loop_thread, lost = RowStatement.send, threading.current_thread(), [True, False]

    def forgetful(*arguments: object) -> None:
        if lost[-1]:  # once it is sent, once it is not
            send(*arguments)  # type: ignore[arg-type]
        if threading.current_thread() is loop_thread and lost[:-1]:
            lost.pop()
            raise psycopg.OperationalError("the socket is gone")
        if not lost[-1]:
            send(*arguments)  # type: ignore[arg-type]

    owner.begin()
    owner.settle()
    monkeypatch.setattr(RowStatement, "send", forgetful)
    for _ in range(2):
        owner.begin()
        owner.end_polling()
        owner.settle()

    assert is_stored_once()


def test_a_commit_with_a_warning_is_not_confirmed_by_the_loops_thread(
    owner: Polling, is_stored_once: Callable[[], bool]
) -> None:
    owner.begin()
    owner.settle()
    with log_of(owner.replica.url, owner.replica.name) as store:
        part = max(part.id for part in store.parts() if part.kind is Kind.PLAIN)
    table, name = sql.Identifier("holtmq", f"rows_{part}"), sql.Identifier(f"warn_{part}")
    with psycopg.connect(owner.replica.url, autocommit=True) as other:
        other.execute(
            sql.SQL(
                "CREATE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication'; RETURN NULL; END $$"
            ).format(name)
        )
        other.execute(
            sql.SQL("CREATE TRIGGER warn AFTER INSERT ON {} EXECUTE FUNCTION {}()").format(table, name)
        )

    owner.begin()
    owner.loop.run_until(lambda: owner.has_answer, "the answer has come")
    assert owner.told[-1] == []
    owner.end_polling()
    owner.settle()

    assert owner.appended_by[-1] == _WRITER
    assert is_stored_once()


def test_a_local_write_that_fails_ends_the_journal(owner: Polling, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, loop_thread = OsFile.pwrite, threading.current_thread()

    def failing(*arguments: object) -> None:
        if threading.current_thread() is loop_thread:
            raise OSError("the disk is gone")
        pwrite(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OsFile, "pwrite", failing)
    owner.begin()
    owner.end_polling()
    owner.settle()

    assert "the disk is gone" in str(owner.journal.failed)
    assert owner.told[-1] == [owner.journal.failed]


def test_a_journal_that_closes_waits_for_what_its_loop_has_sent(
    owner: Polling, is_stored_once: Callable[[], bool]
) -> None:
    owner.begin()
    owner.write()

    owner.journal.close()

    assert is_stored_once()


def test_a_server_that_takes_longer_than_polling_lasts_is_not_polled(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Polling(postgres.url, tmp_path, monkeypatch, busy_poll=1e-9)
    members.append(owner.member)
    for _ in range(3):
        assert not owner.write()
        owner.settle()
    owner.journal.close()

    assert owner.appended_by == [_WRITER] * 3
