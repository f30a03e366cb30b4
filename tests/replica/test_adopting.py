"""A journal that existed before its replica is uploaded once, whatever interrupts that."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from replica_support import SMALL, Member, log_of, new_log, until

from holtmq.journal import open_journal
from holtmq.journal.replica import adopting
from holtmq.journal.replica.errors import ReplicaRefused, Unreachable
from holtmq.journal.replica.store import LogStore, Owner, Part
from postgres import Cluster

PAYLOADS = [b"%d" % number * 50 for number in range(100)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal of its own."""
    journal, recovery = open_journal(tmp_path / "a", SMALL)
    recovery.drain()
    for payload in PAYLOADS:
        journal.append(20, payload)
        journal.flush()
    journal.close()
    return tmp_path / "a"


def test_a_journal_that_was_there_before_is_taken_into_postgresql(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    journal, recovery = open_journal(tmp_path / "a", SMALL)
    recovery.drain()
    positions = array("Q", [journal.append(20, b"%d" % number * 50) for number in range(300)])
    journal.flush()
    assert journal.checkpoint([(40, b"state")], [positions[::60]])
    journal.append(20, b"tail")
    journal.close()
    log = new_log(postgres.url)

    owner = Member(log, tmp_path / "a").own()
    more = owner.write(b"more")[0]
    owner.journal.close()
    copy = Member(replace(log, node="two"), tmp_path / "b").own()
    members += [owner, copy]

    assert owner.checkpoint == copy.checkpoint == [(40, b"state")]
    assert owner.payloads == [b"tail"]
    assert copy.payloads == [b"tail", b"more"]
    assert copy.journal.read(more) == (20, b"more")
    assert copy.journal.read_many(positions[::60]) == [(20, b"%d" % n * 50) for n in range(0, 300, 60)]


def test_a_big_journal_is_uploaded_with_heartbeats(
    postgres: Cluster, folder: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[str] = []
    real = LogStore.beat

    def beat(store: LogStore, owner: Owner) -> str:
        beats.append(owner.name)
        return real(store, owner)

    monkeypatch.setattr(adopting, "BEAT_SECONDS", 0.0)
    monkeypatch.setattr(LogStore, "beat", beat)
    owner = Member(new_log(postgres.url), folder).own()
    members.append(owner)

    assert len(beats) > 2
    assert owner.payloads == PAYLOADS


def test_an_upload_goes_on_after_a_lost_connection(
    postgres: Cluster, folder: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = LogStore.upload, [True]

    def upload(store: LogStore, epoch: int, part: Part, pieces: Iterable[bytes], at: int = 0) -> int:
        if part.base > 0 and failures:
            failures.pop()
            raise Unreachable("lost")
        return real(store, epoch, part, pieces, at)

    monkeypatch.setattr(LogStore, "upload", upload)
    owner = Member(new_log(postgres.url), folder).own()
    members.append(owner)

    assert not failures
    assert owner.payloads == PAYLOADS


def test_an_upload_whose_last_answer_was_lost_is_not_repeated(
    postgres: Cluster, folder: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = LogStore.swap, [True]

    def swap(store: LogStore, owner: Owner, add: list[int], drop: list[int]) -> None:
        real(store, owner, add, drop)
        if failures:
            failures.pop()
            raise Unreachable("lost")

    monkeypatch.setattr(LogStore, "swap", swap)
    log = new_log(postgres.url)
    owner = Member(log, folder).own()
    members.append(owner)

    assert owner.payloads == PAYLOADS
    with log_of(postgres.url, log.name) as store:
        assert len(store.parts()) == len(list(folder.glob("*.seg")))


def test_a_node_killed_during_the_upload_begins_again(
    postgres: Cluster, folder: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr(LogStore, "swap", die)
        with pytest.raises(KeyboardInterrupt):
            Member(log, folder).own()

    owner = Member(log, folder).own()
    members.append(owner)
    assert owner.payloads == PAYLOADS


def test_a_journal_is_not_uploaded_while_another_node_owns_the_log(
    postgres: Cluster, folder: Path, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    other = Member(replace(log, node="two"), tmp_path / "b").own()
    members.append(other)

    with pytest.raises(ReplicaRefused, match="two owns the log"):
        Member(log, folder).own()

    other.crash()  # it has never written anything
    with log_of(postgres.url, log.name) as store:
        until(lambda: not store.state().connected, "its session has ended")
    owner = Member(log, folder).own()
    members.append(owner)
    assert owner.payloads == PAYLOADS


def test_a_folder_whose_mark_is_damaged_is_refused_with_advice(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    owner.write(b"one")
    owner.journal.close()
    (tmp_path / "a" / "replica").write_bytes(b"?" * 60)
    members.append(owner)

    with pytest.raises(ReplicaRefused, match=r"the file replica in .* is damaged.*remove the folder"):
        Member(log, tmp_path / "a").own()
