"""Small commits land on space that was written before, with zeros, which no reader ever sees."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from holtmq.journal import FileJournal, JournalFailed, JournalOptions, open_journal
from holtmq.journal.fake_disk import FakeDisk, FakeFile, Keep

OPTIONS = JournalOptions(segment_bytes=2 << 20)
SMALL = 64 << 10


class SpaceFile(FakeFile):
    """Remembers which of its writes were all zeros, and which went where nothing had been written."""

    disk: SpaceDisk
    name: str

    def pwrite(self, parts: Sequence[bytes], offset: int) -> None:
        super().pwrite(parts, offset)
        self.disk.note(self.name, offset, b"".join(parts))


class SpaceDisk(FakeDisk):
    def __init__(self) -> None:
        super().__init__()
        self.zeros: list[tuple[int, int]] = []
        self.fresh: list[int] = []  # offsets of writes that reached beyond all before
        self._reached: dict[str, int] = {}

    def open(self, name: str, *, create: bool = False, write: bool = False) -> FakeFile:
        plain = super().open(name, create=create, write=write)
        file = SpaceFile(self, plain._inode)
        file.disk, file.name = self, name.removesuffix(".tmp")
        return file

    def note(self, name: str, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if not data.strip(b"\0"):
            self.zeros.append((offset, end))
        elif end > self._reached.get(name, 0):
            self.fresh.append(offset)
        self._reached[name] = max(self._reached.get(name, 0), end)

    def forget(self) -> None:
        self.zeros.clear()
        self.fresh.clear()


def opened(disk: FakeDisk, options: JournalOptions = OPTIONS) -> FileJournal:
    journal, recovery = open_journal("", options, disk=disk)
    recovery.drain()
    return journal


def commit(journal: FileJournal, *payloads: bytes) -> None:
    told: list[JournalFailed | None] = []
    for payload in payloads:
        journal.append(20, payload)
    journal.on_durable(told.append)
    journal.flush()
    assert told == [None]


def test_after_the_first_small_commit_the_next_ones_find_written_space() -> None:
    disk = SpaceDisk()
    journal = opened(disk)
    commit(journal, b"first")
    disk.forget()

    for _ in range(400):
        commit(journal, b"x" * 3000)

    assert disk.fresh == []
    assert 2 <= len(disk.zeros) <= 4, "1.2 MB of commits, half a megabyte of zeros at a time"


def test_a_reopened_log_is_zeroed_ahead_too() -> None:
    disk = SpaceDisk()
    journal = opened(disk)
    commit(journal, b"before")
    journal.close()
    journal = opened(disk)
    disk.forget()

    commit(journal, b"after")
    disk.fresh.clear()
    commit(journal, b"and after")

    assert len(disk.zeros) == 1
    assert disk.fresh == []


def test_a_big_commit_is_not_written_twice() -> None:
    disk = SpaceDisk()
    journal = opened(disk)

    for _ in range(10):
        commit(journal, b"x" * (SMALL + 1))

    assert disk.zeros == []


def test_a_small_commit_behind_big_ones_zeroes_behind_them_only() -> None:
    disk = SpaceDisk()
    journal = opened(disk)
    commit(journal, b"small")
    big = Random(1).randbytes(600 << 10)  # beyond what was zeroed
    commit(journal, big)
    disk.forget()

    commit(journal, b"small again")

    ((start, _),) = disk.zeros
    assert start >= journal.durable - 42  # where the next commit starts; the header's 64 bytes come on top
    assert [payload for _, _, payload in open_journal("", OPTIONS, disk=disk.copy())[1].records] == [
        b"small",
        big,
        b"small again",
    ]


def test_the_zeros_stay_inside_their_segment() -> None:
    disk = SpaceDisk()
    journal = opened(disk, JournalOptions(segment_bytes=8192))

    for number in range(100):
        commit(journal, b"%03d" % number * 100)

    assert journal.stats().segments > 3
    assert max(end for _, end in disk.zeros) <= 8192
    records = open_journal("", OPTIONS, disk=disk.copy())[1].records
    assert [payload[:3] for _, _, payload in records] == [b"%03d" % number for number in range(100)]


def test_where_commits_are_not_synced_nothing_is_written_ahead() -> None:
    disk = SpaceDisk()
    journal = opened(disk, JournalOptions(segment_bytes=1 << 20, sync=False))

    commit(journal, b"one")
    commit(journal, b"two")

    assert disk.zeros == []


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("partial", [0, 1, 4096, 100_000])
def test_when_the_zeros_cannot_be_written_the_commit_is_refused(keep: Keep, partial: int) -> None:
    disk = FakeDisk(seed=partial)
    journal = opened(disk)
    told: list[JournalFailed | None] = []
    journal.append(20, b"doomed")
    journal.on_durable(told.append)
    disk.fail_write(nth=2, partial=partial)

    journal.flush()

    assert journal.failed is not None
    assert told == [journal.failed]
    disk.crash(keep)
    recovered = [payload for _, _, payload in open_journal("", OPTIONS, disk=disk)[1].records]
    assert recovered in ([], [b"doomed"])
