"""What is spilled comes back, and its space is given back when nothing needs it any more."""

import os
from pathlib import Path

import pytest

from holtmq.journal import spill_file
from holtmq.journal.spill_file import SpillFile
from open_files import open_files


def descriptors(folder: Path) -> int:
    return sum(str(folder) in name for name in open_files().values())


def test_runs_come_back_as_they_were_written(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path)
    runs = {number: spill.write(bytes([number]) * (number * 1000 + 1)) for number in range(50)}

    for number in (49, 0, 17, 17):
        assert runs[number].read() == bytes([number]) * (number * 1000 + 1)


def test_no_file_is_left_to_be_found(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path)
    run = spill.write(b"x")

    assert list(tmp_path.iterdir()) == []
    assert run.read() == b"x"


def test_a_full_file_is_closed_when_its_last_run_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill_file, "_SEGMENT_BYTES", 1000)
    spill = SpillFile(tmp_path)
    before = descriptors(tmp_path)
    runs = [spill.write(b"x" * 400) for _ in range(30)]
    many = descriptors(tmp_path)

    last = runs[-1]
    runs.clear()

    assert many > before + 5
    assert descriptors(tmp_path) <= before + 2
    assert last.read() == b"x" * 400


def test_an_empty_file_is_written_from_its_start_again(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path)
    for _ in range(100):
        run = spill.write(b"y" * 1000)
        assert run.read() == b"y" * 1000
        del run

    assert spill._current is not None
    assert spill._current.written <= 2000


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SpillFile(tmp_path).write(b"0123456789" * 100)
    really_pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda descriptor, size, offset: really_pread(descriptor, min(size, 7), offset)
    )

    assert run.read() == b"0123456789" * 100


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda descriptor, data, offset: really_pwrite(descriptor, data[:7], offset)
    )

    assert SpillFile(tmp_path).write(b"0123456789" * 100).read() == b"0123456789" * 100


def test_bytes_that_are_not_those_that_were_written_are_an_error(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path)
    runs = [spill.write(b"x" * 100), spill.write(b"y" * 100)]
    assert spill._current is not None
    os.pwrite(spill._current._descriptor, b"z", 150)

    with pytest.raises(OSError, match="checksum"):
        runs[1].read()
    assert runs[0].read() == b"x" * 100
    os.ftruncate(spill._current._descriptor, 160)
    with pytest.raises(OSError, match="40 bytes too early"):
        runs[1].read()


def test_a_disk_that_takes_nothing_is_an_error_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spill = SpillFile(tmp_path)
    kept = spill.write(b"before")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                spill.write(b"z")

    assert len([entry for entry in caplog.records if "spilled" in entry.message]) == 1
    assert spill.write(b"after").read() == b"after"
    assert kept.read() == b"before"
