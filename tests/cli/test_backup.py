"""Backups: consistent while the broker works, incremental, and restored byte for byte or not at all."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import httpx
import pika
import pytest
from click.testing import CliRunner, Result

from holtmq.broker.work.peeking import waiting
from holtmq.cli import main
from holtmq.cli.backup.catalogue import Catalogue
from holtmq.cli.backup.restoring import restore_into
from holtmq.cli.backup.saving import save
from holtmq.cli.backup.sources import Source, running_broker
from holtmq.cli.backup.stores import BackupError, BucketStore, open_store
from holtmq.cli.broker_api import BrokerApi
from holtmq.journal import JournalCorrupt, open_journal
from holtmq.journal.backup_format import BackupManifest
from holtmq.journal.checkpoint import publish as publish_checkpoint
from holtmq.journal.checkpoint import write_checkpoint
from holtmq.journal.compaction import write_compacted
from holtmq.journal.disk import OsDisk
from holtmq.journal.file_set import FileSet, keep_files
from holtmq.journal.segment import SegmentHeader
from holtmq.testing import TestBroker
from holtmq.testing.faulty_node import FaultyNode

State = dict[str, list[tuple[bytes, bytes]]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TestBroker]:
    with TestBroker(tmp_path / "data") as one:
        yield one


def publish(broker: TestBroker, queue: str, *bodies: bytes) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.tx_select()
        for number, body in enumerate(bodies):
            properties = pika.BasicProperties(delivery_mode=2, headers={"n": number}, app_id="é")
            channel.basic_publish("", queue, body, properties)
        channel.tx_commit()


def push(broker: TestBroker, queue: str, *ids: str) -> None:
    items = [{"queue": queue, "partition": f"p{id_}", "payload": {"id": id_}} for id_ in ids]
    assert httpx.post(f"{broker.http_url}/api/v1/push", json={"items": items}).status_code == 201


def state(broker: TestBroker) -> State:
    """Every message of every queue, as its bytes."""

    def look(node: FaultyNode) -> State:
        found: State = {}
        for queue in node.broker.work_queues():
            messages = waiting(queue, node.broker.flow.pager)
            found[queue.name] = [(message.header, message.body) for message in messages]
        store = node.partitioned.store
        for stream in store.queues.values():
            offsets = stream.log.live_offsets(0, stream.log.next_offset)
            bodies = store.bodies([stream.log.position(offset) for offset in offsets])
            found[stream.name] = [(body.transaction_id.encode(), body.payload) for body in bodies]
        return found

    return broker.call(look)


def restored(folder: Path) -> State:
    with TestBroker(folder) as again:
        return state(again)


def checkpoint(broker: TestBroker) -> None:
    made = broker.call(lambda node: node.journal.stats().checkpoints)
    broker.call(lambda node: node.checkpoints.make())
    while broker.call(lambda node: node.journal.stats().checkpoints) == made:
        pass


def holt(broker: TestBroker | None, *arguments: object) -> Result:
    env = {"HOLT_ADMIN_URL": broker.http_url if broker is not None else "http://127.0.0.1:9"}
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=env)


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def test_a_backup_is_restored_byte_for_byte_and_the_next_copies_only_what_is_new(
    broker: TestBroker, tmp_path: Path
) -> None:
    place, bodies = tmp_path / "backups", [os.urandom(60_000) for _ in range(40)]  # more than two segments
    publish(broker, "q", *bodies)
    push(broker, "s", "1", "2")
    first = json.loads(done(holt(broker, "backup", place, "--json")))
    then = state(broker)
    publish(broker, "q", b"later")
    second = json.loads(done(holt(broker, "backup", place, "--json")))
    assert first["copied"] == first["bytes"]
    assert second["copied"] < first["copied"] / 2
    now = state(broker)
    done(holt(None, "restore", place, tmp_path / "now"))
    done(holt(None, "restore", place, tmp_path / "then", "--backup", first["name"]))
    assert restored(tmp_path / "now") == now
    assert restored(tmp_path / "then") == then
    assert len(then["q"]) == 40
    assert len(then["s"]) == 2
    names = [row["name"] for row in json.loads(done(holt(None, "backup", place, "--list", "--json")))]
    assert names == [first["name"], second["name"]]
    done(holt(broker, "backup", place, "--keep", "1"))
    assert len(json.loads(done(holt(None, "backup", place, "--list", "--json")))) == 1
    done(holt(None, "restore", place, tmp_path / "kept"))
    assert restored(tmp_path / "kept") == now


def test_checkpoints_and_compaction_during_a_backup_change_nothing_in_it(
    broker: TestBroker, tmp_path: Path
) -> None:
    publish(broker, "q", *(os.urandom(60_000) for _ in range(60)))
    publish(broker, "kept", b"1")
    then = state(broker)
    catalogue = Catalogue(open_store(str(tmp_path / "backups")))
    with closing(BrokerApi(broker.http_url, "guest", "guest")) as api, running_broker(api) as source:
        httpx.delete(f"{broker.http_url}/api/queues/%2F/q/contents")
        for _ in range(3):
            publish(broker, "other", b"x")
            checkpoint(broker)
        reclaimed = broker.call(lambda node: node.journal.stats())
        assert reclaimed.deleted_segments + reclaimed.compactions > 0
        save(source, catalogue, 1.0)
    restore_into(catalogue, catalogue.choose(None, None), tmp_path / "again")
    assert restored(tmp_path / "again") == then
    made = save_now(broker, catalogue, 2.0)
    assert made.copied < made.bytes or made.bytes < 3_000_000
    restore_into(catalogue, catalogue.choose(None, None), tmp_path / "after")
    assert restored(tmp_path / "after") == state(broker)


def save_now(broker: TestBroker, catalogue: Catalogue, now: float) -> Any:
    with closing(BrokerApi(broker.http_url, "guest", "guest")) as api, running_broker(api) as source:
        return save(source, catalogue, now)


def test_a_killed_broker_leaves_no_half_backup(tmp_path: Path) -> None:
    """kill -9 in the middle of a file: no backup is listed, the earlier one is whole, the next one works."""
    data, catalogue = tmp_path / "data", Catalogue(open_store(str(tmp_path / "backups")))
    with TestBroker(data) as one:
        publish(one, "q", *(os.urandom(500_000) for _ in range(8)))
        save_now(one, catalogue, 1.0)
        publish(one, "q", *(os.urandom(500_000) for _ in range(8)))
        now = state(one)
    process, port = serve(data)
    try:
        with (
            closing(BrokerApi(f"http://127.0.0.1:{port}", "guest", "guest")) as api,
            running_broker(api) as source,
        ):
            broken = KilledMidway(source, process)
            with pytest.raises(click.ClickException):
                save(broken, catalogue, 2.0)
    finally:
        process.kill()
        process.communicate()
    assert len(catalogue.names()) == 1
    restore_into(catalogue, catalogue.choose(None, None), tmp_path / "old")
    assert len(restored(tmp_path / "old")["q"]) == 8
    done(holt(None, "backup", tmp_path / "backups", "--data-dir", data))  # of the stopped broker's folder
    done(holt(None, "restore", tmp_path / "backups", tmp_path / "new"))
    assert restored(tmp_path / "new") == now


class KilledMidway:
    """A source whose broker is killed after the first piece of a segment."""

    def __init__(self, source: Source, process: "subprocess.Popen[bytes]") -> None:
        self.files = source.files
        self._source = source
        self._process = process

    def read(self, name: str) -> Iterator[bytes]:
        pieces = self._source.read(name)
        if name.endswith(".seg"):
            yield next(pieces)
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        yield from pieces


def serve(data: Path) -> tuple["subprocess.Popen[bytes]", int]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
    settings = {"HOLT_AMQP_PORT": "0", "HOLT_HTTP_PORT": "0", "HOLT_LOG_FORMAT": "json"}
    process = subprocess.Popen(
        [sys.executable, "-m", "holtmq", "serve", "--data-dir", str(data)],
        env=env | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(b"{") and "http_port" in (entry := json.loads(line)):
            return process, int(entry["http_port"])
    raise AssertionError("the broker did not start")


def test_a_bucket_serves_as_well(broker: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moto = pytest.importorskip("moto.server")
    pytest.importorskip("obstore")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        for name, value in {
            "AWS_ENDPOINT": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }.items():
            monkeypatch.setenv(name, value)
        assert httpx.put(f"{endpoint}/bucket").status_code == 200
        publish(broker, "q", *(os.urandom(60_000) for _ in range(30)))
        assert "bytes were copied" in done(holt(broker, "backup", "s3://bucket/holt"))
        publish(broker, "q", b"later")
        second = json.loads(done(holt(broker, "backup", "s3://bucket/holt", "--json", "--keep", "1")))
        assert 0 < second["copied"] < second["bytes"]
        done(holt(None, "restore", "s3://bucket/holt", tmp_path / "again"))
        assert restored(tmp_path / "again") == state(broker)
        assert "cannot be" in holt(None, "restore", "s3://nowhere/x", tmp_path / "none").output
    finally:
        server.stop()


def test_an_upload_that_breaks_off_is_not_there() -> None:
    obstore = pytest.importorskip("obstore.store")
    store = BucketStore(obstore.MemoryStore(), "memory:")

    def pieces() -> Iterator[bytes]:
        yield b"x" * 10
        raise click.ClickException("the broker is gone")

    with pytest.raises(Exception, match="the broker is gone"):
        store.put("objects/a", pieces())
    assert store.size("objects/a") is None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_downloaded_archive_is_restored_byte_for_byte_and_a_part_of_it_is_not(
    broker: TestBroker, tmp_path: Path
) -> None:
    publish(broker, "orders", b"one", b"two" * 1000)
    push(broker, "clicks", "a", "b")
    checkpoint(broker)
    publish(broker, "orders", b"three")
    expected = state(broker)

    answer = httpx.get(f"{broker.http_url}/api/v1/operator/backups/archive")
    publish(broker, "orders", b"too late")
    archive = tmp_path / "holt-backup.tar"
    archive.write_bytes(answer.content)

    assert answer.headers["content-type"] == "application/x-tar"
    assert "holt-backup-" in answer.headers["content-disposition"]
    assert holt(None, "restore", archive, tmp_path / "again").exit_code == 0
    assert restored(tmp_path / "again") == expected
    assert json.loads(done(holt(None, "backup", archive, "--list", "--json")))[0]["files"] >= 2
    refused = holt(broker, "backup", archive)
    assert refused.exit_code == 1
    assert "is an archive: name a folder or a bucket" in refused.output
    for cut in (len(answer.content) // 2, len(answer.content) - 4000):
        archive.write_bytes(answer.content[:cut])
        refused = holt(None, "restore", archive, tmp_path / "part")
        assert refused.exit_code == 1, cut
        assert "cut off" in refused.output
        assert not (tmp_path / "part").exists()


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (flip, "its checksum does not match"),
        (Path.unlink, "cannot be read"),
    ],
)
def test_a_damaged_backup_is_not_restored(
    broker: TestBroker, tmp_path: Path, harm: Callable[[Path], None], complaint: str
) -> None:
    publish(broker, "q", b"1")
    done(holt(broker, "backup", tmp_path / "b"))
    harm(next((tmp_path / "b" / "objects").glob("*.seg-*")))
    result = holt(None, "restore", tmp_path / "b", tmp_path / "again")
    assert result.exit_code == 1
    assert complaint in result.output
    assert not (tmp_path / "again").exists()


def test_what_cannot_be_done_is_said_in_plain_words(broker: TestBroker, tmp_path: Path) -> None:
    publish(broker, "q", b"1")
    place = tmp_path / "b"
    assert "there is no folder" in holt(None, "restore", place, tmp_path / "x").output
    done(holt(broker, "backup", place))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    assert "is not empty" in holt(None, "restore", place, tmp_path / "full").output
    assert (tmp_path / "full" / "precious").read_text() == "x"
    assert (
        "there is no backup nothing"
        in holt(None, "restore", place, tmp_path / "x", "--backup", "nothing").output
    )
    early = holt(None, "restore", place, tmp_path / "x", "--at", "2001-01-01T00:00:00Z")
    assert "every backup is newer" in early.output
    done(holt(None, "restore", place, tmp_path / "x", "--at", "2099-01-01T00:00:00Z"))
    other = holt(None, "backup", tmp_path / "c", "--data-dir", tmp_path / "full")
    assert other.exit_code == 1
    assert "is not a broker's data folder: it has no journal" in other.output


def test_a_stopped_folder_is_backed_up_while_another_broker_runs(tmp_path: Path) -> None:
    with TestBroker(tmp_path / "stopped") as stopped:
        publish(stopped, "q", b"of the stopped one")
        there = state(stopped)
    with TestBroker(tmp_path / "running") as running:
        publish(running, "q", b"of the running one")
        text = done(holt(running, "backup", tmp_path / "b", "--data-dir", tmp_path / "stopped"))
        assert f"of {tmp_path / 'stopped'}, which no broker has open" in text
        text = done(holt(running, "backup", tmp_path / "c", "--data-dir", tmp_path / "running"))
        assert "which no broker has open" not in text
        now = state(running)
    done(holt(None, "restore", tmp_path / "b", tmp_path / "again"))
    assert restored(tmp_path / "again") == there
    done(holt(None, "restore", tmp_path / "c", tmp_path / "and-again"))
    assert restored(tmp_path / "and-again") == now


def test_backups_of_a_restored_broker_hold_what_happened_since_and_not_what_happened_before(
    tmp_path: Path,
) -> None:
    """Messages of one size: the log is as long as it was before, and holds other messages."""
    place = tmp_path / "backups"
    with TestBroker(tmp_path / "first") as first:
        publish(first, "q", b"common")
        made = json.loads(done(holt(first, "backup", place, "--json")))["name"]
        publish(first, "q", b"before")
        checkpoint(first)
        done(holt(first, "backup", place))
    done(holt(None, "restore", place, tmp_path / "second", "--backup", made))
    with TestBroker(tmp_path / "second") as second:
        publish(second, "q", b"after!")
        checkpoint(second)
        done(holt(second, "backup", place))
        now = state(second)
    done(holt(None, "restore", place, tmp_path / "third"))
    assert restored(tmp_path / "third") == now
    assert [body for _, body in now["q"]] == [b"common", b"after!"]


def test_files_with_equal_headers_and_sizes_are_told_apart(tmp_path: Path) -> None:
    def checkpoint_of(folder: Path, content: bytes) -> str:
        disk = OsDisk(folder)
        write_checkpoint(disk, 64, 1, [0], [(40, content)])
        publish_checkpoint(disk, 64, None)
        return only(keep_files(disk, 64, 1))

    def compacted(folder: Path, kept: int) -> str:
        disk = OsDisk(folder)
        write_compacted(disk, SegmentHeader(0, 1, b"a marker"), 1_000, iter([(kept, 40, b"same")]))
        return only(keep_files(disk, 1_000, 1))

    def only(files: FileSet) -> str:
        with closing(files):
            (one,) = files.files
            return one.identity

    folders = [tmp_path / name for name in "abcdef"]
    for folder in folders:
        folder.mkdir()
    assert checkpoint_of(folders[0], b"one") == checkpoint_of(folders[1], b"one")
    assert checkpoint_of(folders[0], b"one") != checkpoint_of(folders[2], b"two")
    assert compacted(folders[3], 100) == compacted(folders[4], 100)
    assert compacted(folders[3], 100) != compacted(folders[5], 200)


@pytest.mark.parametrize("zone", ["UTC", "Etc/GMT-5", "Etc/GMT+7"])
def test_the_time_that_a_list_of_backups_shows_restores_that_backup(
    broker: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    publish(broker, "q", b"1")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        made = json.loads(done(holt(broker, "backup", tmp_path / "b", "--json")))["name"]
        day, clock = done(holt(None, "backup", tmp_path / "b", "--list")).splitlines()[1].split()[1:3]
        restored_one = done(holt(None, "restore", tmp_path / "b", tmp_path / "x", "--at", f"{day} {clock}"))
        assert restored_one.startswith(f"Backup {made} restored")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_repaired_folder_is_backed_up_and_restored_as_it_is_after_the_repair(tmp_path: Path) -> None:
    folder, place, again = tmp_path / "data", tmp_path / "backups", tmp_path / "again"
    with TestBroker(folder) as broker:
        publish(broker, "q", b"first", b"a body that will be damaged", b"last")
        push(broker, "s", "1", "2")
    (segment,) = [path for path in folder.glob("*") if b"that will be damaged" in path.read_bytes()]
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"that will be damaged", b"that has been damaged"[:20]))
    assert holt(None, "journal", "check", folder).exit_code != 0
    done(holt(None, "journal", "repair", folder, "--yes"))

    with TestBroker(folder) as broker:
        repaired = state(broker)
        done(holt(broker, "backup", place))
        publish(broker, "q", b"after the backup")

    done(holt(None, "restore", place, again))
    done(holt(None, "journal", "check", again))
    assert restored(again) == repaired
    assert [body for _, body in repaired["q"]] == [b"first", b"last"]
    assert [id_ for id_, _ in repaired["s"]] != []
    done(holt(None, "journal", "scrub", again))


def test_two_backups_to_one_place_do_not_run_at_once(broker: TestBroker, tmp_path: Path) -> None:
    """They would write the same files, and --keep of one would delete what the other has just written."""
    publish(broker, "q", b"1")
    place = tmp_path / "backups"
    done(holt(broker, "backup", place))
    with open_store(str(place)).alone():
        refused = holt(broker, "backup", place, "--keep", "1")
    assert refused.exit_code == 1
    assert f"another `holt backup` writes to {place}" in refused.output
    assert "Backup" in done(holt(broker, "backup", place))


def test_a_backup_whose_files_another_one_deleted_is_not_listed(broker: TestBroker, tmp_path: Path) -> None:
    """In a bucket, where nothing keeps two of them apart."""
    publish(broker, "q", b"1")
    catalogue = Catalogue(open_store(str(tmp_path)))
    save_now(broker, catalogue, 1.0)

    class PrunedMeanwhile(Catalogue):
        def add(self, manifest: BackupManifest) -> None:
            for name in self.store.list("objects"):
                self.store.delete(name)
            super().add(manifest)

    with pytest.raises(BackupError, match="another `holt backup --keep` deleted files"):
        save_now(broker, PrunedMeanwhile(catalogue.store), 2.0)
    assert len(catalogue.names()) == 1


def test_backups_that_fail_do_not_keep_the_next_ones_out(broker: TestBroker, tmp_path: Path) -> None:
    publish(broker, "q", os.urandom(3_000_000))

    class Full(Catalogue):
        def put_object(self, identity: str, pieces: Iterable[bytes]) -> None:
            next(iter(pieces))
            raise BackupError("no space left")

    for _ in range(5):
        with pytest.raises(BackupError, match="no space left"):
            save_now(broker, Full(open_store(str(tmp_path / "b"))), 1.0)
    done(holt(broker, "backup", tmp_path / "b"))


def test_a_restore_that_fails_leaves_nothing(
    broker: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(broker, "q", b"1")
    done(holt(broker, "backup", tmp_path / "b"))
    there = sorted(os.listdir(tmp_path))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in holt(None, "restore", tmp_path / "b", tmp_path / "x").output
    assert sorted(os.listdir(tmp_path)) == there


def test_missing_credentials_of_a_bucket_are_named() -> None:
    obstore = pytest.importorskip("obstore.store")
    store = BucketStore(obstore.MemoryStore(), "s3://bucket")
    error = store._error("backups", "listed", OSError("GET http://169.254.169.254/latest/api/token"))
    assert "neither the environment nor this machine's cloud has credentials for it" in str(error)


def test_places_and_times_that_do_not_exist_are_errors(tmp_path: Path) -> None:
    assert "there is no folder" in holt(None, "backup", tmp_path / "typo", "--list").output
    (tmp_path / "empty").mkdir()
    odd = holt(None, "restore", tmp_path / "empty", tmp_path / "x", "--at", "0001-01-01")
    assert "'0001-01-01' is not a time" in odd.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for another user")
def test_what_root_restores_or_changes_for_another_user_belongs_to_that_user(
    broker: TestBroker, tmp_path: Path
) -> None:
    """The broker of that user could not open files that belong to root."""
    publish(broker, "q", b"1")
    done(holt(broker, "backup", tmp_path / "b"))
    folder = tmp_path / "of-the-broker"
    folder.mkdir()
    os.chown(folder, 10001, 10002)

    done(holt(None, "restore", tmp_path / "b", folder))
    password = CliRunner().invoke(
        main,
        [
            "user",
            "passwd",
            "guest",
            "--password-stdin",
            "--data-dir",
            str(folder),
            "--url",
            "http://127.0.0.1:9",
        ],
        input="new\n",
    )

    assert password.exit_code == 0, password.output
    assert {(path.stat().st_uid, path.stat().st_gid) for path in [folder, *folder.iterdir()]} == {
        (10001, 10002)
    }


def backed_up(broker: TestBroker, place: Path) -> State:
    """A backup with two checkpoints and several segments; what is in it."""
    for _ in range(3):
        publish(broker, "q", *[os.urandom(30_000) for _ in range(9)])
        checkpoint(broker)
    publish(broker, "q", b"the last")
    done(holt(broker, "backup", place))
    return state(broker)


@pytest.mark.parametrize("how", ["a mount", "the current folder", "a link"])
def test_an_existing_empty_folder_is_restored_into(
    broker: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    now = backed_up(broker, tmp_path / "backups")
    folder = tmp_path / "volume"
    folder.mkdir()
    was, named = folder.stat().st_ino, folder
    if how == "a mount":
        monkeypatch.setattr(Path, "is_mount", lambda path: path == folder)
    elif how == "the current folder":
        monkeypatch.chdir(folder)
        named = Path(".")
    else:
        named = tmp_path / "link"
        named.symlink_to(folder)

    done(holt(None, "restore", tmp_path / "backups", named))

    assert (folder.stat().st_ino == was) is (how != "a link")
    assert not list(tmp_path.glob("**/*.restoring"))
    monkeypatch.undo()
    assert restored(folder) == now


def test_no_broker_starts_on_a_mount_whose_restore_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.testing.broker._SEGMENT_BYTES", 1 << 18)
    with TestBroker(tmp_path / "data") as broker:
        now = backed_up(broker, tmp_path / "backups")
    folder, rename = tmp_path / "volume", os.rename
    folder.mkdir()
    most = moved = 0

    def interrupted(old: Path, new: Path) -> None:
        nonlocal moved
        if old.parent == folder / ".restoring" and new.parent == folder:
            if moved == most:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            moved += 1
        rename(old, new)

    def restore() -> Result:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "is_mount", lambda path: path == folder)
            patch.setattr("holtmq.cli.backup.restoring.os.rename", interrupted)
            return holt(None, "restore", tmp_path / "backups", folder)

    while restore().exit_code:
        if most:
            assert "is not empty" in restore().output
            shutil.rmtree(folder / ".restoring")
            with pytest.raises(JournalCorrupt):
                open_journal(folder)
            for path in folder.iterdir():
                path.unlink()
        most, moved = most + 1, 0

    assert most > 5
    assert restored(folder) == now
