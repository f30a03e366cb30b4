"""Commits that the event loop's thread has sent and that fail: none is lost, doubled or falsely confirmed."""

from __future__ import annotations

import math
import os
import socket
import threading
from collections.abc import Callable

import psycopg
import pytest
from polling_owner import WRITER, Polling
from psycopg import sql
from psycopg.pq import ConnStatus
from replica_support import PATIENCE, log_of, until

from holtmq.journal import JournalError
from holtmq.journal.disk import OsFile
from holtmq.journal.replica.appending import Appender
from holtmq.journal.replica.replicated_writer import ReplicatedWriter
from holtmq.journal.replica.row_statement import RowStatement
from holtmq.journal.replica.store import Kind

SENDERS = ("the loop's thread", WRITER)


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

    assert owner.appended_by[-1] == WRITER
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

    assert owner.appended_by[-1] == WRITER
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

    assert owner.appended_by[-1] == WRITER
    assert is_stored_once()


def test_a_session_that_ends_in_a_commit_after_the_statements_result_is_settled(
    owner: Polling, is_stored_once: Callable[[], bool]
) -> None:
    """PostgreSQL sends the result of an INSERT before it commits: an error of the commit follows it.

    The writer thread, which sleeps until there is something to read, mostly reads the end of the connection
    together with the result. The loop's thread may see the result first.
    """
    owner.begin()
    owner.settle()
    on_each_commit(owner, "IF nextval('{0}') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF")

    owner.begin()
    connection = owner.connection
    assert connection is not None
    owner.loop.run_until(
        lambda: owner.told[-1] or connection.pgconn.status == ConnStatus.BAD, "the session has ended"
    )
    owner.end_polling()
    owner.settle()

    assert owner.appended_by[-1] == WRITER
    assert is_stored_once()


@pytest.mark.parametrize("sender", SENDERS)
def test_a_commit_that_fails_for_want_of_room_after_the_statements_result_is_tried_again(
    owner: Polling, is_stored_once: Callable[[], bool], sender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.begin()
    owner.settle()
    no_room = "RAISE 'no room for the log' USING ERRCODE = 'disk_full'"
    on_each_commit(owner, f"IF nextval('{{0}}') = 1 THEN {no_room}; END IF")

    write_by(owner, sender, monkeypatch)

    assert owner.appended_by[-1] == WRITER
    assert is_stored_once()


@pytest.mark.parametrize("sender", SENDERS)
def test_a_commit_that_postgresql_refuses_is_not_confirmed(
    owner: Polling, sender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.begin()
    owner.settle()
    on_each_commit(owner, "RAISE 'a constraint does not hold'")

    write_by(owner, sender, monkeypatch)

    assert "a constraint does not hold" in str(owner.journal.failed)
    assert owner.told[-1] == [owner.journal.failed]


def write_by(owner: Polling, sender: str, patch: pytest.MonkeyPatch) -> None:
    """Commit one more payload; it is sent by this thread."""
    if sender == WRITER:
        patch.setattr(Appender, "begin", lambda *_: False)
        owner.write()
    else:
        owner.begin()
    owner.end_polling()
    owner.settle()


def on_each_commit(owner: Polling, action: str) -> None:
    """PostgreSQL runs this at the commit of each transaction that has inserted a row."""
    with log_of(owner.replica.url, owner.replica.name) as store:
        part = max(part.id for part in store.parts() if part.kind is Kind.PLAIN)
    table, name = f"holtmq.rows_{part}", f"at_commit_{part}"
    with psycopg.connect(owner.replica.url, autocommit=True) as other:
        other.execute(f"CREATE SEQUENCE {name}")
        other.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {action.format(name)}; RETURN NULL; END $$"
        )
        other.execute(
            f"CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
            f" FOR EACH ROW EXECUTE FUNCTION {name}()"
        )


@pytest.mark.parametrize("error", [OSError, MemoryError])
def test_a_local_write_that_fails_ends_the_journal(
    owner: Polling, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, loop_thread = OsFile.pwrite, threading.current_thread()

    def failing(*arguments: object) -> None:
        if threading.current_thread() is loop_thread:
            raise error("the disk is gone")
        pwrite(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(OsFile, "pwrite", failing)
    owner.begin()
    owner.end_polling()
    owner.settle()

    assert "the disk is gone" in str(owner.journal.failed)
    assert owner.told[-1] == [owner.journal.failed]


def test_nothing_is_begun_after_the_heartbeat_has_failed(
    owner: Polling, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, go_on = threading.Event(), threading.Event()

    def failing(_: ReplicatedWriter) -> None:
        raise JournalError("another node owns the log")

    def slow_abandon(writer: ReplicatedWriter) -> None:
        failed.set()
        assert go_on.wait(PATIENCE)
        abandon(writer)

    owner.begin()
    owner.settle()
    abandon = ReplicatedWriter.abandon
    monkeypatch.setattr(ReplicatedWriter, "abandon", slow_abandon)
    monkeypatch.setattr(ReplicatedWriter, "idle", failing)
    assert failed.wait(PATIENCE)
    writer = owner.journal._writer_thread._writer
    assert isinstance(writer, ReplicatedWriter)
    writer._beaten_at = math.inf  # so that no heartbeat is due, for which a commit would go to the thread
    begun = owner.write()
    go_on.set()
    owner.settle()

    assert not begun
    assert "another node owns the log" in str(owner.journal.failed)


def test_an_owner_that_fails_while_it_polls_does_not_release_the_log(
    owner: Polling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(appender: Appender) -> bool:
        if end_begun(appender):
            raise MemoryError("no memory")
        return False

    end_begun = Appender.end_begun
    monkeypatch.setattr(Appender, "end_begun", failing)
    owner.begin()
    owner.settle()
    owner.journal.close()

    assert "no memory" in str(owner.journal.failed)
    with log_of(owner.replica.url, owner.replica.name) as store:
        assert not store.state().released
