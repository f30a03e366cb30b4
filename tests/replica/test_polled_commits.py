"""Small commits that the event loop's thread sends itself, with a loop that the test steps."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from polling_owner import WRITER, Polling, Told
from replica_support import PATIENCE, Member, until

from holtmq.journal.polled_commits import PolledCommits
from holtmq.journal.replica.errors import Unreachable
from holtmq.journal.replica.replicated_writer import ReplicatedWriter
from holtmq.journal.replica.row_statement import RowStatement
from holtmq.journal.replica.session import PatientConnection, Session
from postgres import Cluster


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
    assert set(owner.appended_by) == {threading.current_thread().name, WRITER}
    assert is_stored_once()


def test_a_connection_lost_while_a_statement_is_prepared_does_not_end_the_owner(
    owner: Polling, is_stored_once: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = RowStatement._prepare
    lost: list[int] = []

    def losing(statement: RowStatement, connection: PatientConnection, part: int) -> None:
        if not lost:
            lost.append(part)
            with socket.socket(fileno=os.dup(connection.pgconn.socket)) as link:
                link.shutdown(socket.SHUT_RDWR)
        prepare(statement, connection, part)

    monkeypatch.setattr(RowStatement, "_prepare", losing)
    while not lost:  # up to the next segment
        owner.write(size=200)
        owner.settle()

    assert owner.journal.failed is None
    assert is_stored_once()


def test_a_server_that_hangs_while_a_statement_is_prepared_is_given_up(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowStatement, "_text", lambda *_: b"SELECT 1")
    session = Session(postgres.url, answer_seconds=PATIENCE, purpose="test")
    with session.connection() as connection:
        connection.answer_seconds = 0.1
        server = connection.info.backend_pid

    def prepare() -> None:
        with session.connection() as connection:
            RowStatement(1, 0)._prepare(connection, 1)

    os.kill(server, signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match="no answer"):
            prepare()
    finally:
        os.kill(server, signal.SIGCONT)


def test_a_commit_with_which_a_heartbeat_is_due_is_left_to_the_writer_thread(owner: Polling) -> None:
    """A busy owner has no idle moment: without this, standbys would not hear of it and take over."""
    owner.begin()
    owner.settle()
    writer = owner.journal._writer_thread._writer
    assert isinstance(writer, ReplicatedWriter)
    writer._beaten_at = -math.inf

    assert not owner.write()
    owner.settle()

    assert owner.appended_by[-1] == WRITER
    assert writer._beaten_at > 0


def test_a_polled_commit_ends_the_report_of_too_few_standbys(owner: Polling) -> None:
    owner.begin()
    owner.settle()
    writer = owner.journal._writer_thread._writer
    assert isinstance(writer, ReplicatedWriter)
    writer.appender._view.short_of_standbys = True

    owner.begin()
    owner.settle()

    assert owner.appended_by[-1] == threading.current_thread().name
    assert not writer.appender._view.short_of_standbys


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

    assert owner.appended_by[handed - 1] == WRITER
    assert is_stored_once()


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

    assert owner.appended_by == [WRITER] * 3


def test_results_come_in_order_even_if_the_writer_thread_is_faster(
    owner: Polling, is_stored_once: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop's thread may be held up after it has left the groups that came meanwhile to the thread."""
    commit, done = ReplicatedWriter.commit, threading.Event()

    def watched_commit(*arguments: object) -> object:
        found = commit(*arguments)  # type: ignore[arg-type]
        done.set()
        return found

    def slow_hand_over(polled: PolledCommits) -> None:
        hand_over(polled)
        assert done.wait(PATIENCE)
        results = owner.journal._writer_thread._results
        until(lambda: results, "the writer thread has noted its result")
        noted.append(len(results))

    noted: list[int] = []
    hand_over = PolledCommits._hand_over_waiting
    with owner.begun_and_held_up():
        owner.write(size=17 << 10)  # too large for the loop's thread
        monkeypatch.setattr(ReplicatedWriter, "commit", watched_commit)
        monkeypatch.setattr(PolledCommits, "_hand_over_waiting", slow_hand_over)
    owner.settle()

    assert noted
    assert owner.journal.durable == owner.journal.end
    assert is_stored_once()


def test_a_client_that_publishes_one_by_one_gets_its_confirm_before_the_next_turn(
    owner: Polling, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled = owner.journal._writer_thread._polled
    assert polled is not None
    at_flush: list[Told] = []
    monkeypatch.setattr(polled, "_flush", lambda: at_flush.append(list(owner.told[-1])))

    polled._ended_at = math.inf  # the last confirm was sent just now
    while not owner.write():
        owner.settle()
        polled._ended_at = math.inf
    owner.settle()

    assert at_flush == [[None]]
