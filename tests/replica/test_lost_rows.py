"""A PostgreSQL that has lost its last rows, as an asynchronous standby may, and gaps in copies."""

from __future__ import annotations

import shutil
from array import array
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from replica_support import Member, log_of, new_log, until

from holtmq.journal import JournalFailed
from holtmq.journal.replica import epochs, local_copy
from holtmq.journal.replica.errors import StartAgain, Unreachable
from holtmq.journal.replica.following import Follower
from holtmq.journal.replica.local_copy import LocalCopy
from holtmq.journal.replica.session import Session
from holtmq.journal.replica.store import Kind, LogState, LogStore, Owner
from postgres import Cluster


def lose_last_row(url: str, name: str) -> None:
    """What an asynchronous standby had not received when it was promoted."""
    with log_of(url, name) as store, psycopg.connect(url, autocommit=True) as connection:
        part = [part for part in store.parts() if part.kind is Kind.PLAIN][-1]
        table = sql.Identifier("holtmq", f"rows_{part.id}")
        query = sql.SQL("DELETE FROM {0} WHERE position = (SELECT max(position) FROM {0})").format(table)
        assert connection.execute(query).rowcount == 1


def fill(owner: Member, kept: int) -> int:
    """Segments of which only the one message at ``kept`` and the last are live, twice checkpointed."""
    last = kept
    for _ in range(3):
        last = owner.write(*[b"%d" % number * 50 for number in range(200)])[-1]
        assert owner.journal.checkpoint([(40, b"state")], [array("Q", [kept, last])])
    return last


def test_an_idle_owner_that_reconnects_writes_nothing_behind_a_gap(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    owner.write(b"kept")
    owner.write(b"lost")
    with log_of(postgres.url, log.name) as store:
        lose_last_row(postgres.url, log.name)
        end = store.end()
        owner.opening._store.session.close()  # no commit was running

        told: list[JournalFailed | None] = []
        owner.journal.append(20, b"after")
        owner.journal.on_durable(told.append)
        owner.journal.flush()

        assert told == [owner.journal.failed]
        assert "had not received everything" in str(owner.journal.failed)
        assert store.end() == end


def test_a_connection_lost_right_after_the_takeover_is_noticed(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url)
    real = Follower._take

    def take(follower: Follower, state: LogState) -> bool:
        taken = real(follower, state)
        follower._store.session.close()
        return taken

    monkeypatch.setattr(Follower, "_take", take)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)

    owner.write(b"one")

    with log_of(postgres.url, log.name) as store:
        assert store.state().epoch == 2  # the end of the log was compared on the new connection


def test_a_standby_ahead_of_postgresql_begins_again(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    standby = Member(replace(log, node="two"), tmp_path / "b").follow()
    members += [owner, standby]
    owner.write(b"kept")
    owner.write(b"lost")
    until(lambda: standby.payloads == [b"kept", b"lost"], "the standby follows")

    lose_last_row(postgres.url, log.name)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holtmq log'"
        )

    with pytest.raises(StartAgain, match="another history"):
        standby.owns()


def test_a_folder_with_another_history_below_its_mark_is_fetched_again(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"kept")
    owner.write(b"lost")
    owner.journal.close()  # all of it is marked
    lose_last_row(postgres.url, log.name)
    other = Member(replace(log, node="two"), tmp_path / "b").own()
    other.write(b"made")  # as long as what was lost, in an epoch of its own
    with psycopg.connect(postgres.url, autocommit=True) as connection:  # whose number is not known to be new
        connection.execute(
            "DELETE FROM holtmq.epoch WHERE epoch = 2 AND log = (SELECT id FROM holtmq.log WHERE name = %s)",
            (log.name,),
        )
    other.journal.close()

    again = Member(log, tmp_path / "a").own()
    members += [owner, other, again]

    assert again.payloads == [b"kept", b"made"]


def test_a_standby_whose_disk_spoils_what_it_has_just_fetched_begins_again(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"first" * 20)
    standby = Member(replace(log, node="two"), tmp_path / "b").follow()
    members += [owner, standby]
    until(lambda: standby.payloads == [b"first" * 20], "the standby follows")
    write = LocalCopy._write

    def spoiling(copy: LocalCopy, position: int, data: bytes) -> None:
        write(copy, position, data[:-9] + b"\0" * 9)

    with monkeypatch.context() as patch:
        patch.setattr(LocalCopy, "_write", spoiling)
        owner.write(b"second" * 20)
        with pytest.raises(StartAgain, match="damaged"):
            standby.owns()
    standby.end()

    owner.journal.close()
    again = Member(replace(log, node="two"), tmp_path / "b").own()
    members.append(again)
    assert again.payloads == [b"first" * 20, b"second" * 20]


def test_old_epochs_are_deleted_and_no_folder_trusts_more_than_before(
    postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "KEPT", 3)
    log = new_log(postgres.url)
    starts: dict[int, int] = {}  # by epoch, as nothing were ever deleted
    store = LogStore(Session(postgres.url, 10.0, "test"), log.name)
    try:
        store.open()
        for epoch in range(1, 9):
            # The fourth owner found a PostgreSQL that had lost rows: the log began again at a lower position.
            starts[epoch] = 350 if epoch == 4 else epoch * 100
            with store.session.connection() as connection, connection.transaction():
                store._raise(connection, Owner("one", uuid4(), uuid4()), epoch - 1, starts[epoch])
            for mark in range(epoch):
                true_cut = min(start for later, start in starts.items() if later > mark)
                cut = store.epoch_after(mark)
                assert cut is not None
                assert cut <= true_cut
                assert cut == true_cut or mark < epoch - 2
            assert store.epoch_after(epoch) is None
        with store.session.connection() as connection:
            left = connection.execute(
                "SELECT epoch, start FROM holtmq.epoch WHERE log = %s ORDER BY epoch", (store.id,)
            ).fetchall()
    finally:
        store.session.close()

    assert left == [(6, 100), (7, 700), (8, 800)]


def test_a_standby_before_a_dropped_segment_begins_again(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    # A whole segment that stays as it is, because most of it is live.
    kept = owner.write(b"live" * 900)[0]
    early = Member(replace(log, node="two"), tmp_path / "b")
    list(early.opening.recovery.checkpoint)  # the copy is made; then the node is away
    fill(owner, kept)
    with log_of(postgres.url, log.name) as store:
        bases = [part.base for part in store.parts() if part.kind is not Kind.CHECKPOINT]
    owner.journal.close()
    members += [owner, early]
    assert bases[0] == 0
    assert bases[1] > 4096  # the second segment is gone

    with pytest.raises(StartAgain, match="no longer has the rows"):
        early.own()

    again = Member(replace(log, node="two"), tmp_path / "b").own()
    members.append(again)
    assert again.journal.read(kept) == (20, b"live" * 900)


def test_a_segment_that_is_missing_in_the_folder_stays_in_postgresql(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    kept = owner.write(b"live" * 900)[0]
    (tmp_path / "a" / f"{0:016x}.seg").unlink()
    fill(owner, kept)
    owner.crash()
    shutil.rmtree(tmp_path / "a")

    again = Member(log, tmp_path / "a").own()
    members += [owner, again]

    assert again.journal.read(kept) == (20, b"live" * 900)


def test_a_damaged_checkpoint_is_fetched_again(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    kept = owner.write(b"one")[0]
    assert owner.journal.checkpoint([(40, b"state" * 100)], [array("Q", [kept])])
    owner.journal.close()
    (checkpoint,) = (tmp_path / "a").glob("*.ckpt")
    spoilt = bytearray(checkpoint.read_bytes())
    spoilt[200] ^= 0xFF
    checkpoint.write_bytes(spoilt)

    again = Member(log, tmp_path / "a").own()
    members += [owner, again]

    assert again.checkpoint == [(40, b"state" * 100)]


def test_a_copy_that_is_interrupted_goes_on_where_it_was(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    written = [b"%d" % number * 50 for number in range(200)]
    owner.write(*written)
    real, fetched = LogStore.rows, []

    def rows(store: LogStore, part: int, start: int) -> list[tuple[int, bytes]]:
        fetched.append(start)
        if len(fetched) == 9:
            raise Unreachable("lost")
        return real(store, part, start)

    monkeypatch.setattr(local_copy, "NOTE_SECONDS", 0.0)
    monkeypatch.setattr(LogStore, "rows", rows)
    early = Member(replace(log, node="two"), tmp_path / "b")
    members.append(early)
    list(early.opening.recovery.checkpoint)

    assert 0 in fetched[:9]
    assert 0 not in fetched[9:]
    monkeypatch.undo()
    owner.journal.close()
    assert early.own().payloads == written


def test_a_restart_asks_for_the_rows_of_the_last_segment_only(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    written = [b"%d" % number * 50 for number in range(200)]
    owner.write(*written)
    owner.journal.close()
    real, asked = LogStore.rows, set()

    def rows(store: LogStore, part: int, start: int) -> list[tuple[int, bytes]]:
        asked.add(part)
        return real(store, part, start)

    monkeypatch.setattr(LogStore, "rows", rows)
    again = Member(log, tmp_path / "a").own()
    members += [owner, again]

    assert again.payloads == written
    assert len(list((tmp_path / "a").glob("*.seg"))) > 3
    assert len(asked) == 1
