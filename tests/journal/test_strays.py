"""Files of another folder, copies under a wrong name, names that cannot be opened, records of other kinds."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from holtmq.broker.records.changes import Kind
from holtmq.broker.work.paging import MemorySpill, MessagePager
from holtmq.cli import main
from holtmq.journal import FileJournal, Journal, JournalCorrupt, JournalOptions, open_journal
from holtmq.journal.disk import OsDisk
from holtmq.journal.epoch import family_of
from holtmq.journal.fake_disk import FakeDisk
from holtmq.journal.inspection import check
from holtmq.journal.interface import RecordUnreadable
from holtmq.journal.reader import LogReader
from holtmq.journal.repair import apply_repair, describe, plan_repair
from holtmq.journal.segment import base_of, segment_name
from holtmq.journal.strays import find_strays

OPTIONS = JournalOptions(segment_bytes=700)


def opened(disk: FakeDisk) -> tuple[FileJournal, list[bytes]]:
    journal, recovery = open_journal("", OPTIONS, disk=disk, clock=lambda: 1.0)
    return journal, [payload for _, kind, payload in recovery.records if kind == 20]


def filled(seed: int, letter: bytes) -> FakeDisk:
    disk = FakeDisk(seed)
    journal, _ = opened(disk)
    for number in range(60):
        journal.append(20, letter + b"%03d " % number + letter * 40)
        journal.flush()
    journal.close()
    return disk


def segments(disk: FakeDisk) -> list[str]:
    return sorted(name for name in disk.list() if base_of(name) is not None)


def test_a_folder_keeps_its_family_and_another_one_has_another() -> None:
    mine, other = filled(1, b"m"), filled(2, b"f")

    epochs = [opened(disk)[0]._epoch for disk in (mine, other)]

    assert family_of(epochs[0]) != family_of(epochs[1])
    assert all(0 < epoch < 1 << 53 for epoch in epochs)
    assert find_strays(mine) == []


@pytest.mark.parametrize("which", ["a segment", "the last segment", "manifest", "epoch"])
def test_a_file_of_another_folder_is_refused_by_name_and_put_aside(which: str) -> None:
    mine, other = filled(1, b"m"), filled(2, b"f")
    names = segments(mine)
    assert names == segments(other)  # the same positions: only the header tells them apart
    name = {"a segment": names[2], "the last segment": names[-1]}.get(which, which)
    mine.replace(name, other.content(name))

    with pytest.raises(JournalCorrupt, match=f"{name} does not belong here: another broker wrote it"):
        opened(mine)
    assert name in check(mine).refusal
    apply_repair(mine, plan_repair(mine))
    _, records = opened(mine)

    assert all(record.startswith(b"m") for record in records)
    lost = 60 - len(records)
    assert lost == 0 if base_of(name) is None else 0 < lost < 15


def assert_put_aside(disk: FakeDisk, name: str, reason: str = "") -> None:
    """This file is refused by name, and a repair puts it aside without giving up a record."""
    with pytest.raises(JournalCorrupt, match=name):
        opened(disk)
    plan = plan_repair(disk)
    said = describe(plan)
    apply_repair(disk, plan)
    _, records = opened(disk)

    assert len(records) == 60
    assert not any(line.startswith("Give up") for line in said)
    assert f"{name} does not belong here{reason}" in "".join(said)


@pytest.mark.parametrize("beside", [-1, 1, 64])
@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_copy_of_a_segment_under_another_name_costs_no_record(place: int, beside: int) -> None:
    disk = filled(1, b"m")
    name = segments(disk)[place]
    base = base_of(name)
    assert base is not None
    if base + beside < 0:
        beside = 3
    copy = segment_name(base + beside)
    disk.replace(copy, disk.content(name))

    assert_put_aside(disk, copy)


def _bases_that_are_in_no_log(disk: FakeDisk) -> dict[str, int]:
    first = base_of(segments(disk)[0])
    last = base_of(segments(disk)[-1])
    assert first is not None
    assert last is not None
    return {
        "inside a closed segment": first + 200,
        "inside the open segment": last + 100,
        "far behind the log": (1 << 48) - 1,
        "beyond what a file can hold": (1 << 64) - 1,
    }


@pytest.mark.parametrize("content", [b"", bytes(5_000), b"garbage" * 700], ids=["empty", "zeros", "garbage"])
@pytest.mark.parametrize("where", _bases_that_are_in_no_log(filled(1, b"m")))
@pytest.mark.parametrize("manifest", [True, False])
def test_a_file_without_header_where_the_log_has_no_place_costs_no_record(
    manifest: bool, where: str, content: bytes
) -> None:
    disk = filled(1, b"m")
    name = segment_name(_bases_that_are_in_no_log(disk)[where])
    disk.replace(name, content)
    if not manifest:
        disk.remove("manifest")

    assert_put_aside(disk, name, ": the log has no place for it")
    assert f"{name}.removed" in disk.list()


@pytest.mark.parametrize(
    ("make", "said"), [(Path.mkdir, "Is a directory"), (os.mkfifo, "it is not a regular file")]
)
@pytest.mark.parametrize("name", ["epoch", "manifest", "0000000000000000.seg"])
def test_a_name_that_cannot_be_opened_is_the_verdict_of_the_check_and_nothing_is_given_up(
    name: str, make: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    """A pipe was waited for, for ever; a folder was refused without its name."""
    journal, recovery = open_journal(tmp_path)
    recovery.drain()
    journal.append(19, b"x")
    journal.close()
    (tmp_path / name).unlink()
    make(tmp_path / name)
    before = sorted(path.name for path in tmp_path.iterdir())

    checked = CliRunner().invoke(main, ["journal", "check", str(tmp_path)])
    repaired = CliRunner().invoke(main, ["journal", "repair", str(tmp_path), "--yes"])

    assert checked.exit_code == repaired.exit_code == 1
    for text in (checked.stdout, repaired.stderr):
        assert f"{said}: '{tmp_path / name}'" in text
        assert "or restore it from a backup" in text
    assert "does not start" in checked.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert check(OsDisk(tmp_path)).unopened


def _one(journal: Journal, positions: list[int]) -> object:
    return journal.read(positions[3], 20)


def _many(journal: Journal, positions: list[int]) -> object:
    return journal.read_many(positions, 20)


def _run(journal: Journal, positions: list[int]) -> object:
    return journal.run_reader(20)(array("Q", positions))


@pytest.mark.parametrize("as_batch", [True, False])
@pytest.mark.parametrize("read", [_one, _many, _run])
@pytest.mark.parametrize("with_numpy", [True, False])
def test_a_record_of_another_kind_cannot_be_read_as_the_one_that_was_there(
    read: Callable[[Journal, list[int]], object],
    as_batch: bool,
    with_numpy: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not with_numpy:
        monkeypatch.delitem(sys.modules, "numpy", raising=False)
    journal, _ = opened(FakeDisk())
    records = [(21 if number == 3 else 20, b"%d" % number) for number in range(6)]
    singly = [] if as_batch else [journal.append(*record) for record in records]
    positions = singly or journal.append_batch(records)
    journal.flush()

    with pytest.raises(RecordUnreadable, match="another record is here") as found:
        read(journal, positions)

    assert found.value.position == positions[3]
    assert journal.read_many(positions[:3], 20) == records[:3]


def test_a_message_in_whose_place_is_another_record_is_reported_not_delivered() -> None:
    journal, _ = opened(FakeDisk())
    position = journal.append(Kind.SETTLED, bytes(80))
    journal.flush()
    pager = MessagePager(journal, MemorySpill())

    assert pager.read([position]) == []
    assert [error.position for error in pager.unreadable()] == [position]


@pytest.mark.parametrize("cut", range(3, 200, 7))
def test_old_contents_of_another_file_are_not_taken_for_records_by_a_repair(cut: int) -> None:
    disk = filled(1, b"m")
    name, other = segments(disk)[-1], segments(disk)[1]
    whole = disk.content(name)
    stale = disk.content(other)[64 + 5 :]
    disk.replace(name, whole[: 64 + cut] + stale[: len(whole) - 64 - cut])
    with pytest.raises(JournalCorrupt):
        opened(disk)

    plan = plan_repair(disk)
    lost = plan.dropped
    apply_repair(disk, plan)
    journal, records = opened(disk)

    assert records == sorted(set(records))  # none comes twice, or out of order
    assert all(record.startswith(b"m") for record in records)
    for first, stop in lost:
        for position in range(first, min(stop, journal.end)):
            with pytest.raises(RecordUnreadable):
                journal.read(position)


def test_a_whole_record_among_another_files_contents_is_refused_after_the_first_damage() -> None:
    disk = filled(1, b"m")
    name, other = segments(disk)[2:4]
    base = base_of(name)
    assert base is not None
    whole = disk.content(name)
    cut = 64 + 230
    disk.replace(name, whole[:cut] + disk.content(other)[64 + 5 :][: len(whole) - cut])
    bases = [at for at in map(base_of, segments(disk)) if at is not None]
    fresh = LogReader(disk, bases, 4)
    positions = range(base, base + len(whole) - 64)
    looks_whole = [at for at in positions if _is_read(fresh, at)]  # each by a reader that saw no damage
    before = [at for at in looks_whole if at < base + 230]

    reader = LogReader(disk, bases, 4)
    with pytest.raises(RecordUnreadable):
        reader.read(base + 233)

    assert [at for at in looks_whole if _reads(reader, at)] == before
    assert len(looks_whole) > len(before) > 0


def _is_read(reader: LogReader, position: int) -> bool:
    reader._examined.update([0, *reader._bases])  # as if there had been no damage
    return _reads(reader, position)


def _reads(reader: LogReader, position: int) -> bool:
    try:
        reader.read(position)
    except RecordUnreadable:
        return False
    return True
