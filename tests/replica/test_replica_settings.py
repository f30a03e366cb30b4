"""What a PostgreSQL server or its administrator may have set, and what a node makes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from replica_support import PATIENCE, Member, log_of, new_log, until

from holtmq.journal import JournalFailed
from holtmq.journal.checkpoint import Checkpoint
from holtmq.journal.replica.errors import ReplicaRefused, Unreachable
from holtmq.journal.replica.local_copy import LocalCopy
from holtmq.journal.replica.session import PatientConnection, Session
from holtmq.journal.replica.store import LogState, LogStore
from postgres import Cluster


@contextmanager
def new_role(postgres: Cluster) -> Iterator[tuple[str, str]]:
    """The name and the address of a user who may do what a node needs."""
    name = f"role_{uuid4().hex[:8]}"
    postgres.execute(f"CREATE ROLE {name} LOGIN")
    postgres.execute(f"CREATE DATABASE {name} OWNER {name}")
    base = postgres.url.removesuffix("/postgres").replace("postgres@", f"{name}@")
    yield name, f"{base}/{name}"


def connect_once(url: str) -> None:
    session = Session(url, 10.0, "test")
    try:
        with session.connection():
            pass
    finally:
        session.close()


def test_a_session_does_not_take_over_limits_that_would_harm_it(postgres: Cluster) -> None:
    with new_role(postgres) as (name, url):
        # Not shorter: they apply to the new session until its first statement lifts them.
        postgres.execute(f"ALTER ROLE {name} SET statement_timeout = '10min'")
        postgres.execute(f"ALTER ROLE {name} SET idle_session_timeout = '10min'")
        postgres.execute(f"ALTER ROLE {name} SET client_min_messages = error")
        postgres.execute(f"ALTER ROLE {name} SET synchronous_commit = off")
        session = Session(url, 10.0, "test")
        try:
            with session.connection() as connection:
                shown = [
                    connection.execute(f"SHOW {setting}".encode()).fetchone()
                    for setting in (
                        "statement_timeout",
                        "idle_session_timeout",
                        "client_min_messages",
                        "synchronous_commit",
                    )
                ]
                connection.execute("DO $$ BEGIN RAISE WARNING 'not replicated'; END $$")
        finally:
            session.close()

    assert shown == [("0",), ("0",), ("warning",), ("on",)]
    assert session.warned


def test_a_connection_that_fails_while_it_is_prepared_is_closed(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PatientConnection] = []
    real = PatientConnection.connect

    def connect(*arguments: object, **options: object) -> PatientConnection:
        made.append(real(*arguments, **options))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(PatientConnection, "connect", connect)
    monkeypatch.setattr(Session, "_settings", lambda *_: b"SELECT pg_terminate_backend(pg_backend_pid())")
    session = Session(postgres.url, 10.0, "test")

    with pytest.raises(Unreachable), session.connection():
        pass

    assert [connection.closed for connection in made] == [True]


def test_a_server_made_read_only_by_its_administrator_is_not_written_to(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    owner.write(b"before")
    told: list[JournalFailed | None] = []
    with log_of(postgres.url, log.name) as store:
        end = store.end()
        postgres.configure("default_transaction_read_only", "on")
        try:
            owner.journal.append(20, b"during")
            owner.journal.on_durable(told.append)
            committing = threading.Thread(target=owner.journal.flush, name="commit", daemon=True)
            committing.start()
            until(lambda: "read-only" in owner.opening.view.trouble, "the owner says why it waits")
            during = store.end()
        finally:
            postgres.configure("default_transaction_read_only", None)
        committing.join(PATIENCE)

        assert (during, told) == (end, [None])
        assert store.end() > end


def test_an_address_that_has_worked_is_tried_again_whatever_the_server_says(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    with new_role(postgres) as (name, url):
        owner = Member(new_log(url), tmp_path / "a").own()
        members.append(owner)
        postgres.execute(f"ALTER ROLE {name} RENAME TO {name}_away")
        owner.opening._store.session.close()
        told: list[JournalFailed | None] = []
        owner.journal.append(20, b"one")
        owner.journal.on_durable(told.append)
        committing = threading.Thread(target=owner.journal.flush, name="commit", daemon=True)
        committing.start()
        until(lambda: "does not exist" in owner.opening.view.trouble, "the owner is refused and waits")

        postgres.execute(f"ALTER ROLE {name}_away RENAME TO {name}")
        committing.join(PATIENCE)

    assert told == [None]
    assert owner.opening.view.epoch == 2  # what operators see


@pytest.mark.parametrize(
    ("done", "said"),
    [
        ("ALTER ROLE {name} NOLOGIN", "is not permitted to log in"),
        ("ALTER DATABASE {name} CONNECTION LIMIT 0", None),
        ("REVOKE CONNECT ON DATABASE {name} FROM PUBLIC, {name}", "permission denied for database"),
    ],
)
def test_a_login_that_is_refused_ends_the_node_and_a_busy_server_does_not(
    postgres: Cluster, done: str, said: str | None
) -> None:
    with new_role(postgres) as (name, url):
        postgres.execute(done.format(name=name))

        with pytest.raises(ReplicaRefused if said else Unreachable, match=said):
            connect_once(url)


def test_an_address_that_asks_for_what_the_server_cannot_do_is_refused(postgres: Cluster) -> None:
    with pytest.raises(ReplicaRefused, match="does not support SSL"):
        connect_once(postgres.url + "?sslmode=require")


@pytest.mark.parametrize(
    "said",
    [
        "connection failed: fe_sendauth: no password supplied",
        'FATAL:  pg_hba.conf rejects connection for host "10.0.0.1", user "holt"',
        "SSL error: certificate verify failed",
        'root certificate file "/home/holt/.postgresql/root.crt" does not exist',
        'server certificate for "db" does not match host name "10.0.0.1"',
    ],
)
def test_a_server_that_will_never_take_the_node_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    def refuse(*_: object, **__: object) -> PatientConnection:
        raise psycopg.OperationalError(said)

    monkeypatch.setattr(PatientConnection, "connect", refuse)

    with pytest.raises(ReplicaRefused, match="PostgreSQL refuses"):
        connect_once("postgresql://holt@db/holt")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sesame@[::1]x/db",
        "postgresql://u:sesame%zz@h/db",
        "postgresql://u:open@sesame@h/db",
        "postgresql://u:open/sesame@h/db",
        "postgresql://u:sesame@[::1/db",
        "mysql://u:sesame@h/db",
        "u:sesame@h/db",
        "host=h password=open sesame",
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ReplicaRefused, match="no PostgreSQL address") as refused:
        connect_once(url)

    assert "sesame" not in str(refused.value)


def test_an_address_with_an_unknown_parameter_is_refused_with_its_name() -> None:
    with pytest.raises(ReplicaRefused, match='"sslmod"'):
        connect_once("postgresql://u:sesame@h/db?sslmod=require")


def test_a_database_without_an_encoding_can_be_used(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    name = f"ascii_{uuid4().hex[:8]}"
    postgres.execute(
        f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    log = new_log(postgres.url.removesuffix("postgres") + name, node="Köln")
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    owner.write(b"one")
    owner.journal.close()

    again = Member(log, tmp_path / "b").own()
    members.append(again)

    assert again.payloads == [b"one"]
    with log_of(log.url, log.name) as store:
        assert store.state().owner == "Köln"


def test_a_node_that_copies_the_log_no_longer_says_that_it_waits_for_postgresql(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    opened, restore = LogStore.open, LocalCopy.restore

    def open_later(store: LogStore, *, create: bool = True) -> LogState:
        if member.opening.view.trouble:
            return opened(store, create=create)
        raise Unreachable("no route to host")

    def look(copy: LocalCopy, state: LogState) -> Checkpoint | None:
        said.append(member.opening.view.trouble)
        return restore(copy, state)

    monkeypatch.setattr(LogStore, "open", open_later)
    monkeypatch.setattr(LocalCopy, "restore", look)
    member = Member(new_log(postgres.url), tmp_path / "a")
    members.append(member)

    member.own()

    assert said == [""]


def test_a_user_who_cannot_see_the_standbys_is_told_which_role_is_missing(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    with new_role(postgres) as (name, url):
        with pytest.raises(ReplicaRefused, match=f'GRANT pg_monitor TO "{name}"'):
            Member(new_log(url, min_standbys=1), tmp_path / "a").own()

        postgres.execute(f"GRANT pg_monitor TO {name}")
        members.append(Member(new_log(url, min_standbys=1), tmp_path / "a").own())


def test_a_right_that_was_taken_away_is_named(postgres: Cluster, tmp_path: Path) -> None:
    with new_role(postgres) as (name, url):
        log = new_log(url)
        Member(log, tmp_path / "a").own().journal.close()
        with psycopg.connect(postgres.url.removesuffix("postgres") + name, autocommit=True) as connection:
            connection.execute("ALTER TABLE holtmq.part OWNER TO postgres")

        with pytest.raises(ReplicaRefused, match="permission denied for table part"):
            Member(log, tmp_path / "b").own()


def test_a_server_without_fsync_is_warned_about(
    postgres: Cluster, tmp_path: Path, members: list[Member], caplog: pytest.LogCaptureFixture
) -> None:
    members.append(Member(new_log(postgres.url), tmp_path / "a").own())  # the tests' server has none

    assert [record.message for record in caplog.records if "fsync" in record.message] == [
        "PostgreSQL runs with fsync = off: a crash of its machine loses what was confirmed"
    ]
