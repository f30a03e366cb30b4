"""A small file is replaced as a whole, durably."""

from contextlib import suppress

import pytest

from holtmq.journal.fake_disk import FakeDisk, Keep, PowerCut
from holtmq.journal.replacing import replace_file


def content(disk: FakeDisk) -> bytes:
    return bytes(disk.content("small")) if "small" in disk.list() else b""


@pytest.mark.parametrize("keep", Keep)
def test_what_was_replaced_survives_a_crash(keep: Keep) -> None:
    disk = FakeDisk()
    for text in (b"old", b"new and longer"):
        replace_file(disk, "small", text)

        disk.crash(keep)

        assert content(disk) == text


@pytest.mark.parametrize("operations", range(5))
@pytest.mark.parametrize("seed", range(8))
def test_a_crash_in_the_middle_leaves_the_old_content_or_the_new_one(operations: int, seed: int) -> None:
    disk = FakeDisk(seed)
    replace_file(disk, "small", b"old")
    disk.cut_power_after(operations)

    with suppress(PowerCut):
        replace_file(disk, "small", b"new and longer")
    disk.crash(Keep.SECTORS)

    assert content(disk) in (b"old", b"new and longer")
