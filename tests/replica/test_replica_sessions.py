"""Locks, settings and lost answers between a node and PostgreSQL."""

from __future__ import annotations

import shutil
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import TupleRow
from replica_support import PATIENCE, SILENCE, Member, log_of, new_log, until

from holtmq.journal import JournalFailed
from holtmq.journal.replica.session import PatientConnection, Session
from holtmq.journal.replica.shipping import Shipper
from holtmq.journal.replica.store import Kind, Owner
from postgres import Cluster


def test_an_answer_lost_when_a_segment_begins_is_settled(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    owner.write(b"first" * 700)
    real, lost = PatientConnection.transaction, [True]

    @contextmanager
    def forgetful(connection: PatientConnection) -> Iterator[object]:
        with real(connection) as transaction:
            yield transaction
        if lost.pop() if lost else False:
            raise psycopg.OperationalError("the answer to COMMIT was lost")

    monkeypatch.setattr(PatientConnection, "transaction", forgetful)
    owner.write(b"second" * 200)  # in the next segment
    owner.write(b"third")  # in the same

    assert not lost
    assert owner.journal.failed is None
    owner.journal.close()
    again = Member(log, tmp_path / "b").own()
    members.append(again)
    assert again.payloads == [b"first" * 700, b"second" * 200, b"third"]


def test_a_takeover_sees_the_append_it_waited_for_whatever_the_default_isolation(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    option = quote("-c default_transaction_isolation=repeatable\\ read")
    strict = f"{postgres.url}?options={option}"
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    owner.write(b"first")
    with log_of(strict, log.name) as store, psycopg.connect(postgres.url) as append:
        part = next(part for part in store.parts() if part.kind is Kind.PLAIN)
        state, end = store.state(), store.end()
        append.execute(
            sql.SQL("INSERT INTO {} SELECT %s, epoch, 'x' FROM holtmq.log WHERE id = %s FOR SHARE").format(
                sql.Identifier("holtmq", f"rows_{part.id}")
            ),
            (end, store.id),
        )
        taken: list[int | None] = []
        other = Owner("two", uuid4(), uuid4())
        takeover = threading.Thread(target=lambda: taken.append(store.take_over(other, state, end)))
        takeover.start()
        with psycopg.connect(postgres.url, autocommit=True) as watch:
            query = (
                "SELECT FROM pg_stat_activity"
                " WHERE application_name = 'holtmq test' AND wait_event_type = 'Lock'"
            )
            until(lambda: watch.execute(query).fetchone() is not None, "the takeover waits for the append")

        append.commit()
        takeover.join(PATIENCE)

    assert taken == [None]


def test_a_session_keeps_waiting_for_commits_when_the_server_is_told_not_to(postgres: Cluster) -> None:
    session = Session(postgres.url, 10.0, "test")
    with session.connection() as connection:
        connection.execute("SELECT 1")
    try:
        postgres.configure("synchronous_commit", "off")

        with session.connection() as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    finally:
        session.close()
        postgres.configure("synchronous_commit", None)


def test_a_commit_whose_wait_for_a_standby_was_cut_short_is_not_confirmed(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    told: list[JournalFailed | None] = []
    owner.journal.append(20, b"waits")
    owner.journal.on_durable(told.append)
    committing = threading.Thread(target=owner.journal.flush, name="commit", daemon=True)
    waiting = (
        "SELECT pid, xact_start FROM pg_stat_activity"
        " WHERE application_name = 'holtmq log' AND wait_event = 'SyncRep' AND NOT xact_start = ANY(%s)"
    )
    cancelled: list[datetime] = []

    def cancel(watch: psycopg.Connection[TupleRow]) -> bool:
        found = watch.execute(waiting, (cancelled,)).fetchone()
        if found is not None:
            cancelled.append(found[1])
            watch.execute("SELECT pg_cancel_backend(%s)", (found[0],))
        return found is not None

    try:
        postgres.configure("synchronous_standby_names", "absent")
        until(lambda: _commits_wait(postgres), "commits wait for the standby")
        committing.start()
        with psycopg.connect(postgres.url, autocommit=True) as watch:
            watch.execute("SET synchronous_commit = local")
            for _ in range(4):  # the commit, and the ones by which the owner makes sure
                until(lambda: cancel(watch), "it waits for the standby")
        assert told == []
    finally:
        postgres.configure("synchronous_standby_names", None)
    committing.join(PATIENCE)

    assert told == [None]


def _commits_wait(postgres: Cluster) -> bool:
    """A changed ``synchronous_standby_names`` is in force only when PostgreSQL's checkpointer has read it."""
    state = "SELECT state, wait_event FROM pg_stat_activity WHERE pid = %s"
    with psycopg.connect(postgres.url) as probe, psycopg.connect(postgres.url, autocommit=True) as watch:
        pid = probe.info.backend_pid
        probe.pgconn.send_query(b"CREATE TEMPORARY TABLE probe ()")
        while (found := watch.execute(state, (pid,)).fetchone()) == ("active", None):
            pass
        probe.pgconn.finish()
        watch.execute("SELECT pg_terminate_backend(%s)", (pid,))
    return found == ("active", "SyncRep")


def test_a_table_in_use_holds_up_neither_trimming_nor_heartbeats(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)

    def round() -> None:
        last = owner.write(*[b"%d" % number * 50 for number in range(200)])[-1]
        assert owner.journal.checkpoint([(40, b"state")], [array("Q", [last])])

    def tables() -> set[int]:
        query = r"SELECT substring(relname from 6)::int FROM pg_class WHERE relname ~ '^rows_\d+$'"
        with psycopg.connect(postgres.url) as connection:
            return {number for (number,) in connection.execute(query)}

    with log_of(postgres.url, log.name) as store, psycopg.connect(postgres.url) as dump:
        round()
        first = store.parts()[0].id
        dump.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("holtmq", f"rows_{first}")))
        round()
        round()  # the first segment is dead, and its table in use
        assert first not in {part.id for part in store.parts()}
        assert first in tables()

        dump.rollback()
        round()

        assert first not in tables()


def test_a_user_who_owns_the_schema_needs_no_right_to_create_one(postgres: Cluster, tmp_path: Path) -> None:
    name = f"modest_{uuid4().hex[:8]}"
    postgres.execute(f"CREATE ROLE {name} LOGIN")
    postgres.execute(f"CREATE DATABASE {name}")
    mine = postgres.url.removesuffix("postgres") + name
    with psycopg.connect(mine, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA holtmq AUTHORIZATION {name}".encode())

    owner = Member(new_log(mine.replace("postgres@", f"{name}@")), tmp_path / "a").own()

    owner.write(b"one")
    owner.journal.close()


def test_a_copied_folder_is_not_the_owners(postgres: Cluster, tmp_path: Path, members: list[Member]) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"one")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "lock").unlink(missing_ok=True)
    copy = Member(replace(log, node="two"), tmp_path / "b").follow()
    members += [owner, copy]
    until(lambda: copy.opening.view.role == "standby", "the copy stands by")

    owner.write(b"two")
    until(lambda: copy.payloads == [b"one", b"two"], "the copy follows")

    assert owner.journal.failed is None
    assert copy.opening.view.role == "standby"


def test_an_owner_without_a_session_is_replaced_long_before_takeover_after(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    standby = Member(replace(log, node="two"), tmp_path / "b").follow()
    members += [owner, standby]
    owner.write(b"one")

    owner.crash()

    assert standby.owns().payloads == [b"one"]


def test_only_a_session_that_uses_the_log_is_ended(postgres: Cluster, tmp_path: Path) -> None:
    owner = Member(new_log(postgres.url), tmp_path / "a").own()
    with psycopg.connect(postgres.url) as holder, psycopg.connect(postgres.url) as stranger:
        holder.execute("SELECT FROM holtmq.log FOR SHARE")
        with log_of(postgres.url, owner.opening._replica.name) as store:
            store.end_backend(stranger.info.backend_pid)
            store.end_backend(holder.info.backend_pid)

        assert stranger.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")
    owner.end()


def test_no_session_of_a_frozen_owner_holds_the_log_for_long(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    owner = Member(new_log(postgres.url, takeover_after=SILENCE), tmp_path / "a").own()
    members.append(owner)
    kept = owner.write(b"one")[0]
    assert owner.journal.checkpoint([(40, b"state")], [array("Q", [kept])])
    mirror = owner.journal._checkpointer.mirror
    assert isinstance(mirror, Shipper)

    limits = []
    for session in (owner.opening._store.session, mirror._store.session):
        with session.connection() as connection:
            shown = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
            limits.append(shown)

    assert limits == [("1600ms",), ("1600ms",)]
