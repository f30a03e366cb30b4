"""What a power cut takes: what was never synced, and nothing else."""

from pathlib import Path
from random import Random

import pytest

from holtmq.journal import JournalFailed, open_journal
from holtmq.journal.disk import OsDisk
from holtmq.journal.fake_disk import PowerCut
from holtmq.journal.interface import FIRST_FREE_KIND
from holtmq.verify.durable_image import SECTOR, DurableImage
from holtmq.verify.watched_disk import Event, WatchedDisk, What, decode_event


def watched(folder: Path) -> tuple[WatchedDisk, DurableImage]:
    image = DurableImage()
    disk = WatchedDisk(OsDisk(folder), image.note)
    disk.lock()
    return disk, image


def test_an_event_survives_the_pipe() -> None:
    for event in (Event(What.WRITING, 3, 10, 20), Event(What.RENAMED, name="a.tmp", new_name="a")):
        assert decode_event(event.encode()) == event


def test_bytes_behind_the_last_sync_are_taken_back(tmp_path: Path) -> None:
    disk, image = watched(tmp_path)
    file = disk.open("log", create=True)
    file.preallocate(100)
    file.pwrite([b"synced"], 0)
    file.sync()
    file.pwrite([b"not", b"synced"], 6)

    assert image.unsynced_bytes == 9
    assert image.cut(tmp_path, None) == 9

    assert (tmp_path / "log").read_bytes() == b"synced" + bytes(94)


def test_a_cut_by_the_dice_takes_sectors_and_spares_what_was_synced(tmp_path: Path) -> None:
    disk, image = watched(tmp_path)
    file = disk.open("log", create=True)
    file.pwrite([b"s" * 700], 0)
    file.sync()
    file.pwrite([b"u" * 20 * SECTOR], 700)

    taken = image.cut(tmp_path, Random(1))

    content = (tmp_path / "log").read_bytes()
    assert content[:700] == b"s" * 700
    assert 0 < taken == content.count(b"\0") < 20 * SECTOR


def test_what_is_written_over_synced_bytes_is_not_taken_back_but_zeros_written_ahead_are_nothing(
    tmp_path: Path,
) -> None:
    disk, image = watched(tmp_path)
    file = disk.open("log", create=True)
    file.pwrite([b"synced"], 0)
    file.pwrite([bytes(20)], 6)
    file.sync()
    file.pwrite([b"ced"], 3)
    file.pwrite([b"new"], 6)

    assert image.cut(tmp_path, None) == 3

    assert (tmp_path / "log").read_bytes() == b"synced" + bytes(20)


def test_a_power_cut_while_the_tail_is_written_once_more_takes_nothing_that_was_durable(
    tmp_path: Path,
) -> None:
    disk, image = watched(tmp_path)
    disk.unlock()
    journal, recovery = open_journal(tmp_path, disk=disk)
    assert list(recovery.records) == []
    journal.append(FIRST_FREE_KIND, b"durable")
    journal.flush()
    journal.release()
    image.cut(tmp_path, None)  # and with it the note that the last group was synced

    def dies_writing(event: Event) -> None:
        image.note(event)
        if event.what is What.WRITTEN and event.file in segments:
            raise PowerCut
        if event.name.endswith(".seg"):
            segments.add(event.file)

    segments: set[int] = set()
    _, recovery = open_journal(tmp_path, disk=WatchedDisk(OsDisk(tmp_path), dies_writing))
    with pytest.raises(JournalFailed):
        list(recovery.records)
    image.cut(tmp_path, None)

    journal, recovery = open_journal(tmp_path)
    assert [payload for _, _, payload in recovery.records] == [b"durable"]
    journal.close()


def test_what_one_process_left_unsynced_is_still_unsynced_for_the_next(tmp_path: Path) -> None:
    disk, image = watched(tmp_path)
    disk.open("log", create=True).pwrite([b"unsynced"], 0)
    disk.unlock()

    following = WatchedDisk(OsDisk(tmp_path), image.note)
    following.lock()
    file = following.open("log", write=True)
    before = image.unsynced_bytes
    file.sync()

    assert (before, image.unsynced_bytes) == (8, 0)


def test_a_name_that_was_never_synced_is_taken_back(tmp_path: Path) -> None:
    disk, image = watched(tmp_path)
    for name, sync in (("kept", True), ("lost", False)):
        file = disk.open(name + ".tmp", create=True)
        file.pwrite([b"x"], 0)
        file.sync()
        disk.rename(name + ".tmp", name)
        if sync:
            disk.sync_dir()

    image.cut(tmp_path, None)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "lock", "lost.tmp"]
