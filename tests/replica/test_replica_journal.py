"""The replicated journal, without a broker: takeover, fencing, lost answers, trimming, copies."""

from __future__ import annotations

import shutil
from array import array
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from replica_support import SILENCE, SMALL, Member, log_of, new_log, until

from holtmq import __version__
from holtmq.journal import JournalError, JournalFailed, open_journal
from holtmq.journal.replica.errors import ReplicaRefused, Unreachable
from holtmq.journal.replica.session import Session
from holtmq.journal.replica.store import Kind
from postgres import Cluster


def test_a_standby_has_everything_the_owner_committed(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    standby = Member(replace(log, node="two"), tmp_path / "b").follow()
    members += [owner, standby]
    written = [b"%d" % number * 40 for number in range(300)]  # over several segments
    for payload in written:
        owner.write(payload)
    owner.crash()

    standby.owns()

    assert standby.payloads == written
    position = standby.write(b"mine")[0]
    assert standby.journal.read(position) == (20, b"mine")


@pytest.mark.parametrize("size", [1, SMALL.segment_bytes])  # in the same segment, in a new one
def test_an_owner_that_was_replaced_confirms_nothing_more(
    postgres: Cluster, tmp_path: Path, members: list[Member], size: int
) -> None:
    log = new_log(postgres.url, takeover_after=SILENCE)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"before")
    other = Member(replace(log, node="two"), tmp_path / "b").own()  # the owner shows no sign of life
    members += [owner, other]
    told: list[JournalFailed | None] = []

    owner.journal.append(20, b"x" * size)
    owner.journal.on_durable(told.append)
    owner.journal.flush()

    assert told == [owner.journal.failed]
    assert "two owns the log since epoch 2" in str(owner.journal.failed)
    assert other.payloads == [b"before"]


def test_a_folder_is_a_cache(postgres: Cluster, tmp_path: Path, members: list[Member]) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    written = [b"%d" % number * 40 for number in range(200)]
    positions = [owner.write(payload)[0] for payload in written]
    owner.journal.close()
    shutil.rmtree(tmp_path / "a")

    again = Member(log, tmp_path / "a").own()
    members += [owner, again]

    assert again.payloads == written
    assert again.journal.read_many(positions) == [(20, payload) for payload in written]


def test_what_only_the_disk_has_is_cut_off(postgres: Cluster, tmp_path: Path, members: list[Member]) -> None:
    log = new_log(postgres.url, takeover_after=SILENCE)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"kept")
    other = Member(replace(log, node="two"), tmp_path / "b").own()
    owner.write(b"never confirmed")  # written here, refused there
    other.write(b"instead")
    other.journal.close()
    owner.crash()

    again = Member(log, tmp_path / "a").own()
    members += [owner, other, again]

    assert again.payloads == [b"kept", b"instead"]


def test_a_clean_end_hands_over_at_once(postgres: Cluster, tmp_path: Path, members: list[Member]) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    standby = Member(replace(log, node="two"), tmp_path / "b").follow()
    members += [owner, standby]
    owner.write(b"one")

    owner.journal.close()

    assert standby.owns().payloads == [b"one"]
    assert standby.opening.recovery.clean


def test_a_log_that_is_asked_for_goes_to_the_one_who_was_named(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    first = Member(replace(log, node="two"), tmp_path / "b").follow()
    second = Member(replace(log, node="three"), tmp_path / "c").follow()
    members += [owner, first, second]
    with log_of(postgres.url, log.name) as store:
        until(lambda: len(store.nodes()) == 3, "both standbys report")
        store.promote("three")
        owner.write(b"one")
        owner.journal.close()

        second.owns()

        assert store.state().owner == "three"
        assert store.state().successor == ""


def test_checkpoints_trim_the_rows_and_a_new_node_starts_from_them(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    for round in range(4):
        positions = owner.write(*[b"%d" % number * 50 for number in range(200)])
        live = array("Q", positions[::67])
        assert owner.journal.checkpoint([(40, b"state %d" % round)], [live])
    owner.write(b"tail")
    owner.journal.close()
    with log_of(postgres.url, log.name) as store:
        parts = store.parts()
        tables = count_tables(postgres, [part.id for part in parts])

    again = Member(log, tmp_path / "b").own()
    members.append(again)

    assert [part.kind for part in parts].count(Kind.CHECKPOINT) == 2
    assert Kind.COMPACTED in [part.kind for part in parts]
    assert len(parts) < 20
    assert tables == len(parts)
    assert again.checkpoint == [(40, b"state 3")]
    assert again.payloads == [b"tail"]
    assert again.journal.read_many(live) == [(20, b"%d" % number * 50) for number in range(0, 200, 67)]


def count_tables(postgres: Cluster, parts: list[int]) -> int:
    with psycopg.connect(postgres.url) as connection:
        query = "SELECT count(*) FROM pg_class WHERE relname = ANY(%s)"
        found = connection.execute(query, ([f"rows_{part}" for part in parts],)).fetchone()
    assert found is not None
    return int(found[0])


def test_a_standby_gives_space_back_with_the_owner(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    standby = Member(replace(log, node="two"), tmp_path / "b").follow()
    members += [owner, standby]
    last = 0
    for round in range(5):
        last = owner.write(*[b"%d" % number * 50 for number in range(200)])[-1]
        until(lambda so_far=200 * (round + 1): len(standby.payloads) == so_far, "the standby follows")  # type: ignore[misc]
        assert owner.journal.checkpoint([(40, b"state")], [array("Q", [last])])

    def is_small() -> bool:
        return sum(file.stat().st_size for file in (tmp_path / "b").glob("*.seg")) < 40_000

    until(is_small, "the standby drops what the owner dropped")
    owner.journal.close()

    assert standby.owns().journal.read(last) == (20, b"199" * 50)


def test_a_standby_that_was_away_too_long_is_told_to_begin_again(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"old")
    early = Member(replace(log, node="two"), tmp_path / "b")
    list(early.opening.recovery.checkpoint)  # the copy is made; then the node sleeps
    for _ in range(3):
        owner.write(*[b"%d" % number * 50 for number in range(200)])
        assert owner.journal.checkpoint([(40, b"state")], [])
    owner.journal.close()
    members += [owner, early]

    with pytest.raises(JournalError, match=r"no longer has the rows|ends at"):
        early.own()

    again = Member(replace(log, node="two"), tmp_path / "b").own()
    members.append(again)
    assert again.checkpoint == [(40, b"state")]


def test_a_big_record_is_cut_into_rows_and_is_whole_again(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    big = bytes(range(256)) * 20_000  # five megabytes
    positions = owner.write(b"small", big, b"after")
    owner.journal.close()
    with log_of(postgres.url, log.name) as store:
        sizes = [len(row) for part in store.parts() for _, row in store.rows(part.id, part.base)]

    again = Member(log, tmp_path / "b").own()
    members += [owner, again]

    assert max(sizes) <= 1 << 20
    assert again.payloads == [b"small", big, b"after"]
    assert again.journal.read(positions[1]) == (20, big)


def test_a_damaged_copy_is_fetched_again(postgres: Cluster, tmp_path: Path, members: list[Member]) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    written = [b"%d" % number * 40 for number in range(100)]
    for payload in written:
        owner.write(payload)
    owner.journal.close()
    segment = sorted((tmp_path / "a").glob("*.seg"))[0]
    spoilt = bytearray(segment.read_bytes())
    spoilt[1000] ^= 0xFF
    segment.write_bytes(spoilt)

    with pytest.raises(JournalError, match="damaged"):
        Member(log, tmp_path / "a").own()
    again = Member(log, tmp_path / "a").own()  # what a node does by itself
    members += [owner, again]

    assert again.payloads == written


def test_another_version_of_the_schema_is_refused(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    members.append(Member(log, tmp_path / "a").own())
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("UPDATE holtmq.version SET version = 99")
        try:
            with pytest.raises(ReplicaRefused, match="version 99, this program works with 1: update"):
                Member(log, tmp_path / "b").own()
        finally:
            connection.execute("UPDATE holtmq.version SET version = 1")


def test_a_folder_of_another_log_is_refused(postgres: Cluster, tmp_path: Path, members: list[Member]) -> None:
    log, other = new_log(postgres.url), new_log(postgres.url)
    first = Member(log, tmp_path / "a").own()
    first.write(b"one")
    first.journal.close()
    second = Member(other, tmp_path / "b").own()
    second.write(b"two")
    second.journal.close()
    members += [first, second]

    with pytest.raises(ReplicaRefused, match="holds a journal of another log"):
        Member(other, tmp_path / "a").own()


def test_a_replicated_folder_is_no_journal_of_its_own(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"one")
    owner.journal.close()
    members.append(owner)

    with pytest.raises(JournalError, match=r"journal\.replica"):
        open_journal(tmp_path / "a", SMALL)


def test_an_address_that_no_retry_can_help_is_refused_at_once(postgres: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ReplicaRefused, match="nobody_here"):
        Member(new_log(postgres.url.replace("/postgres", "/nobody_here")), tmp_path / "a").own()
    with pytest.raises(ReplicaRefused, match=r"journal\.replica"):
        Member(new_log("what?"), tmp_path / "b").own()


def test_an_absent_postgresql_is_worth_waiting_for(tmp_path: Path) -> None:
    session = Session("postgresql://postgres@127.0.0.1:1/postgres", 2.0, "test")

    with pytest.raises(Unreachable), session.connection():
        pass


def test_a_node_knows_which_version_wrote_what_it_cannot_read(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"one")
    owner.journal.close()

    again = Member(log, tmp_path / "b").own()
    members.append(again)

    assert again.opening.recovery.writer == __version__
