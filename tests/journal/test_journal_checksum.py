"""The checksum is zlib's, whichever library computes it."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from holtmq.journal import open_journal
from holtmq.journal.checksum import combine, crc32

_SIZES = [0, 1, 100, 5000, 100_000]
_WITHOUT = """
import sys
sys.modules["isal"] = None  # its import fails, as where it is not installed
from holtmq.journal import open_journal
from holtmq.journal.checksum import crc32
import zlib
assert crc32 is zlib.crc32
journal, recovery = open_journal(sys.argv[1])
print([len(payload) for _, _, payload in recovery.records])
journal.append_batch([(20, bytes([7]) * size) for size in (100, 3000)])
journal.close()
"""


def test_every_length_offset_and_start_gives_zlibs_number() -> None:
    data = random.Random(7).randbytes(20_000)
    lengths = [*range(700), 1023, 1024, 4096, 5119, 5121, 19_000]  # beyond 5 KiB it lets other threads run

    for length in lengths:
        for offset, start in ((0, 0), (1, length), (7, 0xFFFFFFFF)):
            piece = data[offset : offset + length]
            assert crc32(piece, start) == zlib.crc32(piece, start), (length, offset, start)


def test_where_the_fast_library_is_installed_it_is_used() -> None:
    fast = pytest.importorskip("isal.isal_zlib")

    assert crc32 is fast.crc32


def test_a_journal_is_read_and_continued_without_the_fast_library(tmp_path: Path) -> None:
    journal, recovery = open_journal(tmp_path)
    recovery.drain()
    for size in _SIZES:
        journal.append(20, bytes([size & 255]) * size)
    journal.close()

    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT, str(tmp_path)], capture_output=True, text=True, timeout=120
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == str(_SIZES)
    journal, recovery = open_journal(tmp_path)
    assert [len(payload) for _, _, payload in recovery.records] == [*_SIZES, 100, 3000]
    journal.close()


@pytest.mark.parametrize("size", _SIZES)
def test_the_checksum_of_two_pieces_follows_from_that_of_each(size: int) -> None:
    dice = random.Random(size)
    first, second = dice.randbytes(size % 77), dice.randbytes(size)

    assert combine(crc32(first, 12345), crc32(second), size) == crc32(second, crc32(first, 12345))
