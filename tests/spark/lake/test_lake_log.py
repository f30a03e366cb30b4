"""The log of a Parquet lake: its cost does not grow with age, and two writers cannot both be right."""

import json
import os
from pathlib import Path

import pytest
from lake_support import ids, keep
from spark_support import Shop

from holtmq.spark.lake.model import Change, DataFile, LakeMoved, Position, UnfitTable
from holtmq.spark.lake.parquet_log import LOG, ParquetTable
from holtmq.spark.lake.ranges import MESSAGE
from holtmq.spark.lake.storage import Storage
from holtmq.spark.lake.writer import Care


class Reads:
    """Counts what is read and listed of a lake's small files."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.files = self.bytes = self.names = 0
        read, names = Storage.read, Storage.names

        def counted_read(storage: Storage, path: str) -> bytes:
            found = read(storage, path)
            self.files += 1
            self.bytes += len(found)
            return found

        def counted_names(storage: Storage, folder: str) -> list[str]:
            found = names(storage, folder)
            self.names += len(found)
            return found

        patched.setattr(Storage, "read", counted_read)
        patched.setattr(Storage, "names", counted_names)


def cost(shop: Shop, root: Path, first: int) -> Reads:
    shop.push("q", range(first, first + 10))
    with pytest.MonkeyPatch.context() as patched:
        reads = Reads(patched)
        assert keep(shop, "q", root, care=Care())["rows"] == 10
    return reads


def test_a_batch_after_five_thousand_log_entries_costs_what_the_first_did(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # five thousand of them prove nothing here
    young = [cost(shop, tmp_path, 10 * n) for n in range(3)][-1]
    table = ParquetTable(Storage(str(tmp_path)), MESSAGE)
    for number in range(5000):  # what --every 30s does in two days, with compaction taking the files away
        file = DataFile(f"queue=x/date=2026-01-01/{number}.parquet", 1000, 10, {}, {"offset": (0, 9)})
        table.commit(Change(add=[file], positions={"x#1": Position(number, number)}))
        table.commit(Change(remove=[file]))
        if number % 100 == 99:
            table.upkeep(0)

    old = cost(shop, tmp_path, 30)

    assert old.files <= young.files + 40
    assert old.bytes <= young.bytes + 40 * 500
    assert old.names <= young.names + 200
    assert ids(tmp_path, "parquet") == list(range(40))


def test_a_running_writer_reads_nothing_for_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ParquetTable(Storage(str(tmp_path)), MESSAGE)
    table.commit(Change(positions={"x#1": Position(1, 1)}))
    reads = Reads(monkeypatch)

    for number in range(20):
        table.commit(Change(positions={"x#1": Position(number, number)}))

    assert reads.files == 0


def test_two_writers_from_the_same_version_cannot_both_commit(tmp_path: Path) -> None:
    one, other = (ParquetTable(Storage(str(tmp_path)), MESSAGE) for _ in range(2))
    one.commit(Change(positions={"x#1": Position(5, 5)}))

    with pytest.raises(LakeMoved):
        other.commit(Change(positions={"x#1": Position(5, 5)}))

    other.refresh()
    assert other.position("x#1") == Position(5, 5)


def test_a_lake_of_version_0_1_is_read_and_goes_on(shop: Shop, tmp_path: Path) -> None:
    """Its entries told a file's size only, counted batches of a Spark query, and were never folded."""
    shop.push("q", range(30))
    keep(shop, "q", tmp_path, max_rows=10)
    log = tmp_path / LOG
    for name in sorted(log.glob("*.json")):
        entry = json.loads(name.read_text())
        entry["add"] = {path: facts["size"] for path, facts in entry["add"].items()}
        entry["next"] = {key: at if isinstance(at, int) else at[0] for key, at in entry["next"].items()}
        name.write_text(json.dumps({**entry, "writer": "a-query", "batch": 1}))
    shop.push("q", range(30, 40))

    done = keep(shop, "q", tmp_path, care=Care(compact_from=2))

    assert (done["rows"], done["lake_rows"], done["compacted_files"]) == (10, 40, 3)
    assert ids(tmp_path, "parquet") == list(range(40))


def test_a_log_with_a_hole_is_refused(tmp_path: Path) -> None:
    table = ParquetTable(Storage(str(tmp_path)), MESSAGE)
    for number in range(3):
        table.commit(Change(positions={"x#1": Position(number, number)}))
    (tmp_path / LOG / f"{1:020d}.json").unlink()

    with pytest.raises(UnfitTable, match="entry 1 is missing, entry 2 is there"):
        ParquetTable(Storage(str(tmp_path)), MESSAGE)


def test_positions_remember_how_much_was_waiting() -> None:
    position = Position(10, 20, 7)

    assert Position.from_json(position.to_json()) == position
    assert position.expected(25) == 12
    assert Position.from_json(10).expected(25) == 15
    with pytest.raises(UnfitTable):
        Position.from_json("ten")
