"""The archive over every table format: each message once, whatever runs, dies or sleeps meanwhile."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from lake_support import FORMATS, LEAVE, ids, keep, outside_view
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NotInstalledError
from spark_processes import until
from spark_support import Shop

from holtmq.spark.errors import DataLoss, HoltSparkError, InvalidOption
from holtmq.spark.jobs.stopping import Stop
from holtmq.spark.lake import lock, writer
from holtmq.spark.lake.lock import LakeLocked, LockLost
from holtmq.spark.lake.model import LakeMoved, UnfitTable
from holtmq.spark.lake.opening import open_table
from holtmq.spark.lake.storage import Storage
from holtmq.spark.lake.writer import Care, LakeWriter

formats = pytest.mark.parametrize("format", FORMATS)


@formats
def test_every_message_is_in_the_lake_once_and_the_next_run_goes_on(
    shop: Shop, tmp_path: Path, format: str
) -> None:
    shop.push("q", range(300))

    first = keep(shop, "q", tmp_path, format=format, max_rows=100)
    shop.push("q", range(300, 350))
    second = keep(shop, "q", tmp_path)
    third = keep(shop, "q", tmp_path)

    assert (first["rows"], first["batches"], first["lake_rows"], first["behind"]) == (300, 3, 300, 0)
    assert (second["rows"], second["lake_rows"], third["rows"]) == (50, 350, 0)
    assert third["format"] == format
    assert ids(tmp_path, format) == list(range(350))
    assert shop.lag("q", "archive") == 0


@formats
def test_another_queue_joins_the_same_lake(shop: Shop, tmp_path: Path, format: str) -> None:
    """A checkpoint that belonged to a set of queues ended the second run: "queue … was deleted"."""
    shop.push("one", range(40))
    shop.push("two", range(40, 100))

    keep(shop, "one", tmp_path, format=format)
    joined = keep(shop, "two", tmp_path)
    shop.push("one", range(100, 110))
    both = keep(shop, "one,two", tmp_path)

    assert (joined["rows"], both["rows"]) == (60, 10)
    assert ids(tmp_path, format) == list(range(110))


@formats
def test_names_with_any_character_are_read_back(shop: Shop, tmp_path: Path, format: str) -> None:
    name = "a b/c%d=e#f:g'h"
    shop.push(name, range(10))

    keep(shop, name, tmp_path, format=format)
    keep(shop, name, tmp_path, care=Care(compact_from=2))

    assert ids(tmp_path, format) == list(range(10))
    found = outside_view(tmp_path, format)
    assert set(found.column("queue").to_pylist()) == {shop.name(name)}


@formats
def test_compaction_joins_small_files_while_the_job_runs(
    shop: Shop, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.spark.jobs.archive._CARE_SECONDS", 0.0)
    shop.push("q", range(50))
    stop = Stop()
    files: list[int] = []
    cared = LakeWriter.care

    def care(self: LakeWriter, engine: Any) -> None:
        before = len(self.table.files())
        cared(self, engine)
        files.append(len(self.table.files()) - before)
        stop.set()

    monkeypatch.setattr(LakeWriter, "care", care)

    done = keep(
        shop, "q", tmp_path, format=format, max_rows=10, every=0.01, stop=stop, care=Care(compact_from=5)
    )

    assert files == [-4]
    assert done["compacted_files"] == 5
    assert ids(tmp_path, format) == list(range(50))


class Crash(BaseException):
    """Stands for kill -9 at one line of the program."""


@formats
@pytest.mark.parametrize("step", ["tasks", "first move", "last move", "before commit", "after commit"])
@pytest.mark.parametrize("work", ["batch", "compaction"])
def test_a_crash_between_any_two_steps_loses_nothing_and_repeats_nothing(
    shop: Shop, tmp_path: Path, format: str, step: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.push("q", range(20))
    care = LEAVE if work == "batch" else Care(compact_from=2)
    keep(shop, "q", tmp_path, format=format, max_rows=10)
    if work == "batch":
        shop.push("q", range(20, 30))
    with monkeypatch.context() as patched:
        _crash(patched, step)
        patched.setattr(
            lock.WriterLock, "__exit__", lambda *ignored: None
        )  # a dead process gives nothing back
        with pytest.raises(Crash):
            keep(shop, "q", tmp_path, care=care)
    monkeypatch.setattr(lock, "_process_start", lambda pid: os.urandom(4).hex())  # the process is gone

    keep(shop, "q", tmp_path, care=care)

    assert ids(tmp_path, format) == list(range(30 if work == "batch" else 20))
    assert Storage(str(tmp_path)).walk("_holt/staging", "") == []
    counted = {str(tmp_path / file.path) for file in open_table(Storage(str(tmp_path))).files()}
    if format == "parquet":
        assert {str(path) for path in tmp_path.glob("queue=*/**/*.parquet")} == counted


def _crash(patched: pytest.MonkeyPatch, step: str) -> None:
    def die(*ignored: object, **named: object) -> None:
        raise Crash

    moves: list[str] = []
    moved, commit = Storage.move, LakeWriter._commit

    def move(self: Storage, old: str, new: str) -> None:
        moved(self, old, new)
        moves.append(new)
        raise Crash

    def committed(self: LakeWriter, *given: Any, **named: Any) -> None:
        with patched.context() as inner:
            inner.setattr(Storage, "delete", die)
            commit(self, *given, **named)

    if step == "tasks":
        patched.setattr(LakeWriter, "_commit", die)
    elif step == "first move":
        patched.setattr(Storage, "move", move)
    elif step == "last move":
        patched.setattr(Storage, "settled", die)
    elif step == "before commit":
        patched.setattr(lock.WriterLock, "check", die)
    else:
        patched.setattr(LakeWriter, "_commit", committed)


@formats
def test_a_second_archiver_is_refused_and_says_who_has_the_lake(
    shop: Shop, tmp_path: Path, format: str
) -> None:
    shop.push("q", range(10))
    keep(shop, "q", tmp_path, format=format)
    refusal = rf"archive of orders on .*, process {os.getpid()}, since"
    with (
        lock.WriterLock(Storage(str(tmp_path)), "archive of orders"),
        pytest.raises(LakeLocked, match=refusal),
    ):
        keep(shop, "q", tmp_path)

    assert keep(shop, "q", tmp_path)["rows"] == 0


@formats
def test_an_archiver_that_slept_through_a_takeover_cannot_commit(
    shop: Shop, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are moved in and not committed; the second one's start deletes them. Its commit must fail."""
    shop.push("q", range(10))
    monkeypatch.setattr(lock, "_process_start", lambda pid: os.urandom(4).hex())  # no process seems alive
    settled = Storage.settled
    taken: list[int] = []

    def takeover(self: Storage, paths: list[str]) -> None:
        settled(self, paths)
        if not taken:
            taken.append(1)
            monkeypatch.setattr(lock.WriterLock, "check", lambda self: None)  # asleep right after its check
            taken.append(keep(shop, "q", tmp_path)["rows"])

    monkeypatch.setattr(Storage, "settled", takeover)

    with pytest.raises(LakeMoved):
        keep(shop, "q", tmp_path, format=format)

    assert taken == [1, 10]
    assert ids(tmp_path, format) == list(range(10))
    counted = {file.path for file in open_table(Storage(str(tmp_path))).files()}
    assert {path for path, _ in Storage(str(tmp_path)).walk("", ".parquet") if "queue=" in path} == counted


def test_a_holder_that_was_replaced_learns_it_before_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_process_start", lambda pid: os.urandom(4).hex())
    storage = Storage(str(tmp_path))
    with lock.WriterLock(storage, "first") as first, lock.WriterLock(storage, "second") as second:
        assert second.inherited
        with pytest.raises(LockLost, match="taken over by second"):
            first.check()
        second.check()
    with lock.WriterLock(storage, "third") as third:
        assert not third.inherited


def test_a_holder_on_another_machine_is_replaced_when_it_shows_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(str(tmp_path))
    said: list[str] = []
    with lock.WriterLock(storage, "first"):
        monkeypatch.setattr(lock, "_place", lambda: "another container")
        with lock.WriterLock(storage, "second", lease=0.2, say=said.append) as second:
            assert second.inherited
    assert "first" in said[0]


@formats
def test_days_older_than_the_retention_go(shop: Shop, tmp_path: Path, format: str) -> None:
    shop.push("q", range(10))
    keep(shop, "q", tmp_path, format=format)
    shop.push("q", range(10, 15))

    none = keep(shop, "q", tmp_path, care=Care(keep_days=2))
    late = datetime.now(UTC) + timedelta(days=5)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Later":
            return cls.fromtimestamp(late.timestamp(), tz)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writer, "datetime", Later)
        gone = keep(shop, "q", tmp_path, care=Care(keep_days=2))

    assert (none["expired_rows"], gone["expired_rows"]) == (0, 15)
    assert ids(tmp_path, format) == []
    shop.push("q", range(15, 20))
    keep(shop, "q", tmp_path)
    assert ids(tmp_path, format) == list(range(15, 20))


@formats
def test_a_lake_of_fewer_columns_gets_the_new_ones_and_says_so(
    shop: Shop, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    from holtmq.spark.jobs import archive as job
    from holtmq.spark.lake import ranges

    shop.push("q", range(10))
    keep(shop, "q", tmp_path, format=format)
    wider = pa.schema([*ranges.MESSAGE, pa.field("size", pa.int64())])
    as_message = ranges.as_message

    def sized(rows: Any, queue: str, number: int) -> Any:
        made = as_message(rows, queue, number)
        sizes = pa.array([len(one) for one in made.column("payload").to_pylist()], pa.int64())
        return pa.RecordBatch.from_arrays([*made.columns, sizes], schema=wider)

    with monkeypatch.context() as patched:
        patched.setattr(job, "MESSAGE", wider)
        patched.setattr(ranges, "as_message", sized)
        shop.push("q", range(10, 20))
        changed = keep(shop, "q", tmp_path)
        shop.push("q", range(20, 30))
        again = keep(shop, "q", tmp_path, care=Care(compact_from=2))

    assert changed["columns"] == {"added": ["size"], "no_longer_written": []}
    assert "columns" not in again
    assert again["compacted_files"] == 3
    assert ids(tmp_path, format) == list(range(30))
    sizes = outside_view(tmp_path, format).column("size").to_pylist()
    assert sum(size is None for size in sizes) == 10


@formats
def test_retention_that_overtook_the_lake_is_an_error_that_names_the_gap(
    shop: Shop, tmp_path: Path, format: str
) -> None:
    shop.push("q", range(10), partitions=1)
    keep(shop, "q", tmp_path, format=format)
    shop.push("q", range(10, 30), partitions=1)
    shop.trim("q", "p0", 15)

    with pytest.raises(DataLoss, match="lost 5 of 20 unread messages"):
        keep(shop, "q", tmp_path)

    keep(shop, "q", tmp_path, fail_on_data_loss=False)
    assert ids(tmp_path, format) == [*range(10), *range(15, 30)]


def test_a_queue_that_was_made_anew_starts_over_in_the_same_lake(shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(10))
    keep(shop, "q", tmp_path)
    assert shop.http.delete(f"/api/v1/resources/queues/{shop.name('q')}").status_code in (200, 204)
    shop.push("q", range(100, 105))

    keep(shop, "q", tmp_path)

    assert ids(tmp_path, "parquet") == [*range(10), *range(100, 105)]


def test_wrong_formats_and_engines_are_refused(shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(3))
    keep(shop, "q", tmp_path, format="parquet")

    with pytest.raises(UnfitTable, match="is kept as parquet, not as delta"):
        keep(shop, "q", tmp_path, format="delta")
    DeltaTable.create(tmp_path / "strange", Schema([Field("id", PrimitiveType("long"))]))
    with pytest.raises(UnfitTable, match="is partitioned by nothing, and this job writes one by queue, date"):
        keep(shop, "q", tmp_path / "strange")
    with pytest.raises(InvalidOption, match="no table format 'orc'"):
        keep(shop, "q", tmp_path / "other", format="orc")
    with pytest.raises(InvalidOption, match="no engine 'duck'"):
        keep(shop, "q", tmp_path, engine="duck")


def test_an_iceberg_lake_may_belong_to_a_catalog(shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(30))
    lake = tmp_path / "lake"
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "table": "shop.orders"}

    first = keep(shop, "q", lake, catalog=catalog, max_rows=10, care=Care(compact_from=3))
    shop.push("q", range(30, 35))
    second = keep(shop, "q", lake, catalog=catalog)

    assert (first["rows"], first["compacted_files"], second["rows"], second["format"]) == (
        30,
        3,
        5,
        "iceberg",
    )
    table = load_catalog("holt", type="sql", uri=catalog["uri"]).load_table("shop.orders")
    found = [json.loads(value)["id"] for value in table.scan().to_arrow().column("payload").to_pylist()]
    assert sorted(found) == list(range(35))
    assert table.properties["commit.retry.num-retries"] == "0"
    with pytest.raises(UnfitTable, match="give that address as the lake"):
        keep(shop, "q", tmp_path / "elsewhere", catalog=catalog)
    with pytest.raises(UnfitTable, match="belongs to a catalog"):
        keep(shop, "q", lake)
    with pytest.raises(InvalidOption, match=r"table=namespace\.name"):
        keep(shop, "q", lake, catalog={"type": "sql", "uri": catalog["uri"]})
    for refused in (ValueError("no such type"), NotInstalledError("SQLAlchemy support not installed")):
        with (
            patch("holtmq.spark.lake.iceberg.load_catalog", side_effect=refused),
            pytest.raises(InvalidOption, match=f"--catalog: {refused}"),
        ):
            keep(shop, "q", tmp_path / "new", catalog=catalog)
    with pytest.raises(InvalidOption, match="a catalog is for Iceberg"):
        keep(shop, "q", tmp_path / "d", catalog=catalog, format="delta")


def test_a_file_is_cut_at_its_target_size(shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(40_000), partitions=1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("holtmq.spark.lake.writing._ROWS_PER_GROUP", 5000)

        done = keep(shop, "q", tmp_path, care=Care(target_bytes=100_000, compact=False))

    assert done["lake_files"] > 2
    assert ids(tmp_path, "parquet") == list(range(40_000))


def archiver(shop: Shop, root: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holtmq", "pipeline", "archive", "--engine", "arrow", "--url", shop.url]
    command += ["--queue", shop.name("q"), "--lake", str(root), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_sigterm_ends_a_running_archiver_after_its_batch(shop: Shop, tmp_path: Path) -> None:
    shop.push("q", range(100))
    job = archiver(shop, tmp_path, "--every", "10m")
    try:
        until(lambda: shop.lag_or(100, "q", "archive") == 0, "the first batch is archived")
        second = archiver(shop, tmp_path)
        told = second.communicate(timeout=120)
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=120)
    finally:
        job.kill()

    assert second.returncode == 1
    assert "has a writer already: archive of" in told[1]
    assert "Traceback" not in told[1]
    assert job.returncode == 0, err
    summary = json.loads(out)
    assert (summary["rows"], summary["stopped"]) == (100, "SIGTERM")
    assert keep(shop, "q", tmp_path)["rows"] == 0


def test_a_broken_job_releases_the_lake(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(HoltSparkError, match="does not exist"):
        keep(shop, "none", tmp_path)
    shop.push("q", range(5))

    assert keep(shop, "q", tmp_path)["rows"] == 5
