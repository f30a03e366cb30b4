"""Which node takes the log, and when: successors, owners that hang, standbys under load."""

from __future__ import annotations

import math
import re
from array import array
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from replica_support import SILENCE, Member, log_of, new_log, until

from holtmq.cli.cluster import cluster
from holtmq.config import Config, Journal
from holtmq.journal import JournalError, JournalOptions
from holtmq.journal.replica.errors import StartAgain
from holtmq.journal.replica.following import Follower
from holtmq.journal.replica.local_copy import LocalCopy
from holtmq.journal.replica.replicated_writer import ReplicatedWriter
from holtmq.journal.replica.store import Kind, LogState, LogStore, Part
from holtmq.journal.replica.view import Peer, Role
from holtmq.node import Node
from holtmq.replica_life import ReplicaLife
from postgres import Cluster


def test_a_node_that_only_stands_by_takes_the_log_when_it_is_named(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    standby = Member(replace(log, node="two", standby=True), tmp_path / "b").follow()
    members += [owner, standby]
    with log_of(postgres.url, log.name) as store:
        store.promote("two")
    owner.write(b"one")

    owner.journal.close()

    assert standby.owns().payloads == [b"one"]


def test_an_owner_that_restarts_does_not_take_back_what_it_has_handed_over(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"one")
    with log_of(postgres.url, log.name) as store:
        store.promote("two")
        owner.journal.close()

        again = Member(log, tmp_path / "a").follow()
        until(lambda: again.opening.view.role == Role.STANDBY, "the old owner stands by")
        successor = Member(replace(log, node="two"), tmp_path / "b").follow()
        members += [owner, again, successor]

        assert successor.owns().payloads == [b"one"]
        assert store.state().owner == "two"
        assert again.opening.view.role == Role.STANDBY


def test_a_hanging_transaction_of_the_owner_is_ended_and_its_timeout_does_not_start_again(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url, takeover_after=SILENCE)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    owner.write(b"one")
    lost: list[str] = []
    monkeypatch.setattr(Follower, "_lost", lambda _, reason: lost.append(str(reason)))
    with closing(psycopg.connect(postgres.url)) as hanging, log_of(postgres.url, log.name) as store:
        hanging.execute("SELECT FROM holtmq.log WHERE id = %s FOR SHARE", (store.id,))
        # This session is the owner's, as far as the standby knows.
        monkeypatch.setattr(LogStore, "state_on", _with_pid(LogStore.state_on, hanging.info.backend_pid))
        other = Member(replace(log, node="two"), tmp_path / "b").own()
    members.append(other)

    assert other.payloads == [b"one"]
    assert lost == []


def _with_pid(real: object, pid: int) -> object:
    def state_on(store: LogStore, connection: object, lock: str = "") -> LogState:
        found: LogState = real(store, connection, lock)  # type: ignore[operator]
        return replace(found, owner_pid=pid, connected=True)

    return state_on


def test_a_standby_under_steady_load_is_a_standby_and_seconds_behind_do_not_add_up(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    owner.write(b"first")
    standby = Member(replace(log, node="two"), tmp_path / "b")
    members.append(standby)
    list(standby.opening.recovery.checkpoint)
    records = standby.opening.recovery.records
    view = standby.opening.view

    for number in range(20):  # whenever it looks, there is more
        owner.write(b"%d" % number)
        next(records)

    follower = standby.opening._follower
    assert follower is not None
    assert view.role is Role.STANDBY
    assert view.owner == "one"
    assert follower._whole_at > follower._began
    records.close()  # type: ignore[attr-defined]


def test_a_standby_asks_again_when_the_owner_reclaims_more_meanwhile(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    standby = Member(replace(log, node="two"), tmp_path / "b").follow()
    members += [owner, standby]
    real, failures = LocalCopy.mirror, [True]

    def mirror(copy: LocalCopy, parts: list[Part]) -> bool:
        if any(part.kind is Kind.COMPACTED for part in parts) and failures:
            failures.pop()
            with monkeypatch.context() as change:
                change.setattr(LogStore, "rows", _gone)
                return real(copy, parts)
        return real(copy, parts)

    monkeypatch.setattr(LocalCopy, "mirror", mirror)
    first = owner.write(*[b"%d" % number * 50 for number in range(200)])[0]
    for round in range(3):
        last = owner.write(*[b"%d" % number * 50 for number in range(200)])[-1]
        until(lambda so_far=200 * (round + 2): len(standby.payloads) == so_far, "the standby follows")  # type: ignore[misc]
        assert owner.journal.checkpoint([(40, b"state")], [array("Q", [first, last])])

    def has_compacted() -> bool:
        return (tmp_path / "b" / f"{0:016x}.seg").stat().st_size < 1000

    until(has_compacted, "the standby has replaced the first segment")

    assert not failures
    assert standby.error is None


def _gone(*_: object) -> list[tuple[int, bytes]]:
    raise StartAgain("reclaimed")


def test_an_owner_of_another_user_that_hangs_is_waited_for(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    owner = Member(new_log(postgres.url), tmp_path / "a").own()
    members.append(owner)
    postgres.execute("CREATE ROLE stranger LOGIN")
    postgres.execute("GRANT USAGE ON SCHEMA holtmq TO stranger")
    postgres.execute("GRANT SELECT ON ALL TABLES IN SCHEMA holtmq TO stranger")
    with (
        psycopg.connect(postgres.url) as holder,
        log_of(postgres.url.replace("postgres@", "stranger@"), owner.opening._replica.name) as store,
    ):
        holder.execute("SELECT FROM holtmq.log FOR SHARE")

        store.end_backend(holder.info.backend_pid)

        assert holder.execute("SELECT 1").fetchone() == (1,)


def test_a_copy_that_can_never_be_complete_is_not_fetched_for_ever(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    for number in range(4):
        owner.write(b"%d" % number)
    with log_of(postgres.url, log.name) as store:
        (part,) = store.parts()
        row = store.rows(part.id, 0)[1][0]
        postgres.execute(f"DELETE FROM holtmq.rows_{part.id} WHERE position = {row}")

    with pytest.raises(JournalError, match="has a gap"):
        Member(replace(log, node="two"), tmp_path / "b").own()


def test_the_status_of_a_log_whose_owner_is_dead_says_so(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    where = ["status", "--replica", postgres.url, "--log", log.name]

    alive = CliRunner().invoke(cluster, where)
    owner.crash()
    postgres.execute("UPDATE holtmq.node SET seen = seen - interval '1 hour'")
    dead = CliRunner().invoke(cluster, where)

    assert (alive.exit_code, dead.exit_code) == (0, 1)
    assert "owner one\n" in alive.output
    assert re.search(r"owner one, silent for 3,6\d\d s\n", dead.output)


def test_an_owner_serves_until_the_copy_of_its_successor_is_complete() -> None:
    config = Config(journal=Journal(replica_node="one"))
    life = ReplicaLife(config, JournalOptions(), None, lambda _: None, lambda: None)
    life.view.successor = "two"
    ready: list[bool] = []
    for role, seen in ((Role.STARTING, 0.1), (Role.STANDBY, 60.0), (Role.STANDBY, 0.1)):
        life.view.peers = (Peer("two", role, "", 0, 0.0, seen), Peer("three", Role.STANDBY, "", 0, 0.0, 0.1))
        ready.append(life.has_ready_successor)

    assert ready == [False, False, True]


def test_a_node_that_starts_again_no_longer_counts_as_a_standby(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    for folder in ("b", "b"):
        standby = Member(replace(log, node="two"), tmp_path / folder)
        members.append(standby)
        list(standby.opening.recovery.checkpoint)  # it has begun to copy

        with log_of(postgres.url, log.name) as store:
            assert {row.name: row.role for row in store.nodes()} == {"one": "owner", "two": "starting"}

            standby.follow()
            until(
                lambda store=store: {row.role for row in store.nodes()} == {"owner", "standby"},  # type: ignore[misc]
                "it stands by",
            )
        standby.end()


def test_an_owner_that_writes_lives_without_new_versions_of_its_row(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    writer = owner.journal._writer_thread._writer
    assert isinstance(writer, ReplicatedWriter)
    with log_of(postgres.url, log.name) as store:
        store.promote("two")
        beat = store.state().beat
        writer._beaten_at = -math.inf

        owner.write(b"one")

        assert owner.opening.view.successor == "two"
        assert store.state().beat == beat
        writer._beaten_at = -math.inf
        writer.idle()
        assert store.state().beat == beat + 1


def test_a_standby_with_the_name_of_the_owner_says_so(
    postgres: Cluster, tmp_path: Path, members: list[Member], caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log(postgres.url)
    members.append(Member(log, tmp_path / "a").own())
    for node in ("two", "one"):
        standby = Member(replace(log, node=node), tmp_path / node).follow()
        members.append(standby)
        until(lambda: standby.opening.view.role == Role.STANDBY, "it stands by")  # noqa: B023
        said = [record.message for record in caplog.records if "journal.replica_node" in record.message]
        assert len(said) == (node == "one")


def test_an_owner_whose_own_disk_is_full_does_not_blame_postgresql() -> None:
    said: list[str] = []
    trouble = "PostgreSQL has not answered for 3 s: nothing is confirmed"
    node: Any = SimpleNamespace(
        replica=SimpleNamespace(trouble=lambda: trouble, has_ready_successor=False),
        journal=SimpleNamespace(stalled="there is no room for the next segment", failed=None),
        amqp=SimpleNamespace(refuse=said.append),
        http=SimpleNamespace(refuse=said.append),
        _cut_off=False,
        _handover=None,
    )

    Node._watch_replica(node)

    assert said == ["there is no room for the next segment: nothing is confirmed"] * 2
