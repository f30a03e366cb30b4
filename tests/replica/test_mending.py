"""Damage in a folder or in PostgreSQL's checkpoints is mended with the other's copy."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from replica_support import Member, log_of, new_log

from holtmq.config import Amqp, Config, Data, Http, Limits, Secret
from holtmq.config.settings import Journal
from holtmq.journal import JournalError
from holtmq.journal.file_journal import FileJournal
from holtmq.journal.interface import Framed, JournalFailed, RecordUnreadable
from holtmq.journal.records import record_at
from holtmq.journal.replica.errors import Unreachable
from holtmq.journal.replica.shipping import Shipper
from holtmq.journal.replica.store import Kind, LogStore, Part
from holtmq.journal.segment import HEADER_SIZE
from holtmq.node import Node
from holtmq.verify.http_client import HttpClient
from postgres import Cluster

PAYLOADS = [b"%d" % number * 50 for number in range(200)]


def spoil(file: Path, at: int = 1000) -> None:
    spoilt = bytearray(file.read_bytes())
    spoilt[at] ^= 0xFF
    file.write_bytes(spoilt)


def segment(folder: Path, number: int = 0) -> Path:
    return sorted(folder.glob("*.seg"))[number]


def checkpoints(url: str, name: str) -> list[Part]:
    with log_of(url, name) as store:
        return [part for part in store.parts() if part.kind is Kind.CHECKPOINT]


def spoil_checkpoint(url: str, part: Part) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"UPDATE holtmq.rows_{part.id} SET bytes = set_byte(bytes, 90, 255)".encode())


def runs(journal: FileJournal, positions: array[int]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for run in journal.run_reader()(positions):
        assert isinstance(run, Framed)
        found += [record_at(run.data, position - run.base) for position in run.positions]
    return found


READERS: list[Callable[[FileJournal, array[int]], list[tuple[int, bytes]]]] = [
    lambda journal, positions: [journal.read(position) for position in positions],
    FileJournal.read_many,
    runs,
]


def test_a_record_that_has_become_unreadable_is_read_from_postgresql(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    owner = Member(new_log(postgres.url), tmp_path / "a").own()
    members.append(owner)
    positions = array("Q", owner.write(*PAYLOADS))

    for read in READERS:
        spoil(segment(tmp_path / "a"))
        spoil(segment(tmp_path / "a", 2))
        owner.journal._reader.close()

        assert read(owner.journal, positions) == [(20, payload) for payload in PAYLOADS]


def test_damage_in_the_segment_that_is_being_written_is_overwritten_and_the_writer_goes_on(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    small = [b"%d" % number * 50 for number in range(8)]
    positions = array("Q", owner.write(*small))
    assert len(list((tmp_path / "a").glob("*.seg"))) == 1

    for read in READERS:
        spoil(segment(tmp_path / "a"), positions[2] + HEADER_SIZE + 20)
        owner.journal._reader.close()
        assert read(owner.journal, positions) == [(20, payload) for payload in small]

    more = array("Q", owner.write(*PAYLOADS))
    assert owner.journal.read_many(more) == [(20, payload) for payload in PAYLOADS]
    with log_of(postgres.url, log.name) as store:
        rows = b"".join(data for _, data in store.rows(store.parts()[0].id, 0))
    assert segment(tmp_path / "a").read_bytes()[HEADER_SIZE:].startswith(rows)


def test_a_segment_that_is_missing_is_fetched_and_trimming_goes_on(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    kept = owner.write(b"live" * 900)[0]
    lost = segment(tmp_path / "a")
    lost.unlink()

    for _ in range(4):
        last = owner.write(*PAYLOADS)[-1]
        assert owner.journal.checkpoint([(40, b"state")], [array("Q", [kept, last])])

    with log_of(postgres.url, log.name) as store:
        assert len(store.parts()) < 12  # of more than 30
    assert owner.journal.read(kept) == (20, b"live" * 900)
    assert lost.exists()


def test_damage_that_postgresql_has_too_is_reported_once_and_not_fetched_again_and_again(
    postgres: Cluster, tmp_path: Path, members: list[Member], caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    positions = [owner.write(payload)[0] for payload in PAYLOADS]
    with (
        log_of(postgres.url, log.name) as store,
        psycopg.connect(postgres.url, autocommit=True) as connection,
    ):
        part = store.parts()[0]
        connection.execute(
            f"UPDATE holtmq.rows_{part.id} SET bytes = set_byte(bytes, 70, 255) WHERE position = %s".encode(),
            (store.rows(part.id, 0)[3][0],),
        )
    for position in positions[:2]:
        spoil(segment(tmp_path / "a"), position + HEADER_SIZE + 20)
    owner.journal._reader.close()

    for position in positions[:2]:
        with pytest.raises(RecordUnreadable):
            owner.journal.read(position)

    assert owner.journal.read_many(positions[2:]) == [(20, payload) for payload in PAYLOADS[2:]]
    assert [record.message for record in caplog.records].count(
        "a segment is damaged in this folder and in PostgreSQL"
    ) == 1


def test_a_node_that_cannot_reach_postgresql_ends_rather_than_give_a_message_up(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    positions = owner.write(*PAYLOADS)
    spoil(segment(tmp_path / "a"))
    owner.journal._reader.close()

    def lost(*_: object, **__: object) -> None:
        raise Unreachable("no route")

    with monkeypatch.context() as change:
        change.setattr(LogStore, "open", lost)
        with pytest.raises(JournalFailed, match="PostgreSQL is out of reach: no route"):
            owner.journal.read_many(positions)
    assert owner.journal.failed is not None
    owner.crash()

    again = Member(log, tmp_path / "a").own()
    members += [owner, again]
    assert again.payloads == PAYLOADS


def test_a_node_starts_from_the_older_checkpoint_when_the_newest_cannot_be_used(
    postgres: Cluster, tmp_path: Path, members: list[Member], caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    live: list[int] = []
    for round in range(4):
        live.append(owner.write(*PAYLOADS)[-1])
        assert owner.journal.checkpoint([(40, b"state %d" % round)], [array("Q", live)])
    owner.write(b"tail")
    owner.journal.close()
    older, newest = checkpoints(postgres.url, log.name)
    spoil_checkpoint(postgres.url, newest)

    again = Member(log, tmp_path / "b").own()
    members += [owner, again]

    assert again.checkpoint == [(40, b"state 2")]
    assert again.payloads == [*PAYLOADS, b"tail"]
    assert again.journal.read_many(live[:3]) == [(20, PAYLOADS[-1])] * 3
    assert "a checkpoint in PostgreSQL cannot be used" in [record.message for record in caplog.records]

    assert again.journal.checkpoint([(40, b"state 4")], [array("Q", live)])
    kept, new = checkpoints(postgres.url, log.name)
    assert kept == older
    assert new.id != newest.id


def test_the_only_checkpoint_can_be_replaced_by_the_whole_log(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    live = array("Q", owner.write(*PAYLOADS))
    assert owner.journal.checkpoint([(40, b"state")], [live])
    owner.journal.close()
    (only,) = checkpoints(postgres.url, log.name)
    spoil_checkpoint(postgres.url, only)

    again = Member(log, tmp_path / "b").own()
    members += [owner, again]

    assert (again.checkpoint, again.payloads) == ([], PAYLOADS)
    assert again.journal.checkpoint([(40, b"state")], [live])  # at the same position, perhaps
    (new,) = checkpoints(postgres.url, log.name)
    assert new.id != only.id


def test_no_usable_checkpoint_and_a_trimmed_log_are_refused_with_a_reason(
    postgres: Cluster, tmp_path: Path
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    for _ in range(3):
        last = owner.write(*PAYLOADS)[-1]
        assert owner.journal.checkpoint([(40, b"state")], [array("Q", [last])])
    owner.journal.close()
    for part in checkpoints(postgres.url, log.name):
        spoil_checkpoint(postgres.url, part)

    with pytest.raises(JournalError, match=r"no checkpoint of the log .* can be used"):
        Member(log, tmp_path / "b").own()


def test_both_checkpoints_in_postgresql_can_be_used_although_an_upload_has_failed(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    states: list[int] = []

    def checkpoint() -> None:
        live = owner.write(*PAYLOADS)[-3:]
        assert owner.journal.checkpoint([(40, b"state %d" % len(states))], [array("Q", live)])
        states.append(owner.journal.checkpoint_position)

    def lost(*_: object) -> None:
        raise Unreachable("no route")

    checkpoint()
    checkpoint()
    with monkeypatch.context() as change:
        change.setattr(Shipper, "_ship_checkpoints", lost)
        checkpoint()
    assert [part.base for part in checkpoints(postgres.url, log.name)] == states[:2]
    checkpoint()

    # The log has been trimmed to what the last two need.
    assert [part.base for part in checkpoints(postgres.url, log.name)] == states[-2:]


def test_an_upload_survives_that_its_idle_connection_was_closed(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    for _ in range(2):
        live = array("Q", owner.write(b"one"))
        assert owner.journal.checkpoint([(40, b"state")], [live])
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE application_name = 'holtmq checkpoints'"
            )
            assert ended.rowcount >= 1

    assert owner.journal.stats().checkpoint_failures == 0
    assert len(checkpoints(postgres.url, log.name)) == 2


async def test_the_scrub_of_an_owner_fetches_a_damaged_segment_and_gives_no_message_up(
    postgres: Cluster, tmp_path: Path
) -> None:
    node = Node(
        Config(
            data=Data(dir=tmp_path / "a"),
            amqp=Amqp(host=("127.0.0.1",), port=0),
            http=Http(host=("127.0.0.1",), port=0),
            journal=Journal(segment_bytes=65536, replica=Secret(postgres.url), replica_name=uuid4().hex),
            limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        )
    )
    await node.start()
    client = await HttpClient.connect(node.http_port)
    try:
        for number in range(20):
            item = {"queue": "q", "partition": "p", "payload": f"{number}" + "." * 10_000}
            assert (await client.post("/api/v1/push", {"items": [item]}))[0] == 201
        spoil(segment(tmp_path / "a"), 30_000)

        found = [await node.scrubber.once(), await node.scrubber.once()]

        status, body = await client.get("/api/v1/pop/queue/q?consumerGroup=g&batch=100")
        numbers = [int(message["data"].rstrip(".")) for message in json.loads(body)["messages"]]
    finally:
        client.close()
        await node.stop(0)
    assert found == [1, 0]
    assert (status, numbers) == (200, list(range(20)))


def test_a_missing_file_of_the_segment_that_is_being_written_is_replaced(
    postgres: Cluster, tmp_path: Path, members: list[Member]
) -> None:
    log = new_log(postgres.url)
    owner = Member(log, tmp_path / "a").own()
    members.append(owner)
    small = [b"%d" % number * 50 for number in range(6)]
    lost, positions, written = segment(tmp_path / "a"), array("Q"), list[tuple[int, bytes]]()

    for read in READERS:
        positions.extend(owner.write(*small))
        written += [(20, payload) for payload in small]
        lost.unlink()
        owner.journal._reader.close()
        assert read(owner.journal, positions) == written  # the file is fetched
        positions.extend(owner.write(b"later"))  # to the file that has no name
        written.append((20, b"later"))
        assert read(owner.journal, positions) == written  # and fetched again

    owner.journal.close()
    again = Member(log, tmp_path / "a").own()
    members.append(again)
    assert again.payloads == [payload for _, payload in written]
    assert again.journal.read_many(positions) == written
