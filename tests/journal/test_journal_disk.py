"""The real disk: what is written in many pieces arrives whole, however the kernel cuts it up."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from holtmq.journal import JournalOptions, open_journal
from holtmq.journal.disk import OsDisk


def parts_of(seed: int, count: int) -> list[bytes]:
    random = Random(seed)
    return [random.randbytes(random.choice([0, 1, 9, 40, 300])) for _ in range(count)]


def at_most(limit: int) -> Callable[[int, Sequence[bytes | memoryview], int], int]:
    """A kernel that takes so many bytes in one call."""

    def pwritev(fd: int, parts: Sequence[bytes | memoryview], offset: int) -> int:
        return os.pwrite(fd, b"".join(parts)[:limit], offset)

    return pwritev


@pytest.mark.parametrize("count", [0, 1, 2, 1023, 1024, 1025, 3000])
def test_any_number_of_parts_is_written_whole(tmp_path: Path, count: int) -> None:
    parts = parts_of(count, count)
    file = OsDisk(tmp_path).open("file", create=True)

    file.pwrite(parts, 100)

    assert file.pread(1 << 20, 0) == (bytes(100) if any(parts) else b"") + b"".join(parts)
    file.close()


@pytest.mark.parametrize("limit", [1, 7, 300, 4096, 65_536])
def test_short_writes_are_continued_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    parts = [b"first", *parts_of(limit, 1100)]
    file = OsDisk(tmp_path).open("file", create=True)
    monkeypatch.setattr("holtmq.journal.disk.os.pwritev", at_most(limit))

    file.pwrite(parts, 0)

    assert file.pread(1 << 20, 0) == b"".join(parts)
    file.close()


def test_a_commit_of_more_pieces_than_the_kernel_takes_at_once_is_read_back(tmp_path: Path) -> None:
    bodies = [bytes([number & 255]) * 1100 for number in range(1500)]
    journal, recovery = open_journal(tmp_path, JournalOptions(segment_bytes=8 << 20))
    recovery.drain()
    positions = [journal.append(20, body) for body in bodies]

    journal.flush()

    assert journal.stats().commits == 1
    assert [payload for _, payload in journal.read_many(positions)] == bodies
    journal.close()
    assert [payload for _, _, payload in open_journal(tmp_path)[1].records] == bodies
