"""Writes and syncs that fail, and disks that fill: fail-stop, everyone told, nothing durable lost."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
from array import array
from pathlib import Path

import pytest

from holtmq.journal import (
    FileJournal,
    JournalError,
    JournalFailed,
    JournalLocked,
    JournalOptions,
    open_journal,
)
from holtmq.journal.fake_disk import FakeDisk, Keep

OPTIONS = JournalOptions(segment_bytes=4096)


def opened(disk: FakeDisk, options: JournalOptions = OPTIONS) -> FileJournal:
    journal, recovery = open_journal("", options, disk=disk)
    recovery.drain()
    return journal


def payloads(disk: FakeDisk, options: JournalOptions = OPTIONS) -> list[bytes]:
    _, recovery = open_journal("", options, disk=disk)
    return [payload for _, _, payload in recovery.records]


@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("partial", [0, 1, 60, 10_000])
def test_a_failed_write_poisons_the_journal_and_keeps_what_was_durable(keep: Keep, partial: int) -> None:
    disk = FakeDisk(seed=partial)
    journal = opened(disk)
    journal.append(20, b"durable")
    journal.flush()
    told: list[JournalFailed | None] = []
    journal.append(20, b"doomed" * 20)
    journal.on_durable(told.append)
    disk.fail_write(partial=partial)

    journal.flush()

    assert journal.failed is not None
    assert "Input/output error" in journal.failed.reason
    assert told == [journal.failed]
    disk.crash(keep)
    assert payloads(disk)[:1] == [b"durable"]


@pytest.mark.parametrize("keep", list(Keep))
def test_a_failed_sync_is_never_retried(keep: Keep) -> None:
    disk = FakeDisk(seed=3)
    journal = opened(disk)
    journal.append(20, b"durable")
    journal.flush()
    journal.append(20, b"doomed")
    disk.fail_sync()
    journal.flush()
    operations = disk.operations

    journal.flush()
    journal.close()

    assert disk.operations == operations
    disk.crash(keep)
    assert payloads(disk)[0] == b"durable"


def test_what_a_failed_sync_left_in_the_page_cache_is_written_again_by_the_next_owner() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    journal.append(20, b"durable")
    journal.flush()
    journal.append(20, b"in the page cache only, and clean as far as the kernel knows")
    disk.fail_sync()
    journal.flush()
    disk.crash(Keep.EVERYTHING)
    found = payloads(disk)

    disk.crash(Keep.NOTHING)

    assert payloads(disk) == found
    assert len(found) == 2


@pytest.mark.parametrize("checkpointed", [False, True])
def test_without_syncs_a_power_cut_costs_records_but_never_the_start(checkpointed: bool) -> None:
    options = JournalOptions(segment_bytes=4096, sync=False)
    for seed in range(200):
        disk = FakeDisk(seed)
        journal = opened(disk, options)
        live = array("Q")
        for number in range(30):
            position = journal.append(20, b"%d" % number * 40)
            journal.flush()
            if checkpointed and number <= 20:
                live.append(position)
            if checkpointed and number == 20:
                assert journal.checkpoint([(40, b"%d" % number)], [live])
        assert journal.durable == journal.end
        disk.crash(Keep.SECTORS)

        again, recovery = open_journal("", options, disk=disk)

        first = 21 if checkpointed else 0
        assert [state for _, state in recovery.checkpoint] == ([b"20"] if checkpointed else [])
        found = [payload for _, _, payload in recovery.records]
        assert found == [b"%d" % number * 40 for number in range(first, first + len(found))]
        assert again.read_many(live) == [(20, b"%d" % number * 40) for number in range(len(live))]


def test_without_syncs_a_killed_process_loses_nothing() -> None:
    options = JournalOptions(segment_bytes=4096, sync=False)
    disk = FakeDisk()
    journal = opened(disk, options)
    journal.append(20, b"confirmed")
    journal.flush()
    disk.crash(Keep.EVERYTHING)

    assert payloads(disk, options) == [b"confirmed"]


def test_a_failed_seal_poisons_but_the_commit_before_it_counts() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    told: list[JournalFailed | None] = []
    journal.append(20, b"durable")
    journal.on_durable(told.append)
    disk.fail_write(nth=3)  # after the commit and the zeros ahead of the next

    journal.flush()

    assert told == [None]
    assert journal.failed is not None


def test_a_full_disk_is_a_clear_failure_and_everything_confirmed_is_there_after_it() -> None:
    disk = FakeDisk(capacity=20_000)
    journal = opened(disk)
    confirmed: list[int] = []
    number = 0
    while journal.failed is None:
        try:
            journal.append(20, b"%d" % number * 30)
        except JournalFailed:
            break

        def note(error: JournalFailed | None, number: int = number) -> None:
            if error is None:
                confirmed.append(number)

        journal.on_durable(note)
        journal.flush()
        number += 1

    assert journal.failed is not None
    assert "No space left" in journal.failed.reason
    disk.crash(Keep.NOTHING)
    disk.capacity = None
    assert payloads(disk)[: len(confirmed)] == [b"%d" % i * 30 for i in confirmed]
    assert len(confirmed) > 100


def test_no_space_for_a_checkpoint_leaves_the_journal_working() -> None:
    disk = FakeDisk(capacity=4096 + 1024 + 600)
    journal = opened(disk)
    journal.append(20, b"before")
    journal.flush()

    assert journal.checkpoint([(40, b"x" * 2000)], [])

    assert journal.failed is None
    assert journal.stats().checkpoint_failures == 1
    assert journal.stats().checkpoints == 0
    assert not [name for name in disk.list() if "ckpt" in name]
    journal.append(20, b"after")
    assert journal.checkpoint([(40, b"small")], [])
    journal.flush()
    assert journal.stats().checkpoints == 1
    journal.close()


def test_no_space_for_a_compaction_leaves_the_old_segment_in_place() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    positions = array("Q", [journal.append(20, b"%d" % i * 40) for i in range(200)])
    journal.flush()
    assert journal.checkpoint([(40, b"state")], [positions[::40]])
    journal.append(20, b"more")
    journal.flush()
    disk.fail_write(nth=2, code=errno.ENOSPC)  # the first is the checkpoint's

    assert journal.checkpoint([(40, b"state")], [positions[::40]])

    assert journal.failed is None
    assert journal.stats().checkpoint_failures == 1
    assert journal.read_many(positions[::40]) == [(20, b"%d" % i * 40) for i in range(0, 200, 40)]


def test_opening_without_space_says_so_and_gives_the_lock_back() -> None:
    disk = FakeDisk(capacity=1000)

    for _ in range(2):
        _, recovery = open_journal("", OPTIONS, disk=disk)
        with pytest.raises(JournalFailed, match="No space left"):
            recovery.drain()


def test_appending_before_the_recovery_was_read_is_refused() -> None:
    journal, _ = open_journal("", OPTIONS, disk=FakeDisk())

    with pytest.raises(JournalError, match="recovery"):
        journal.append(20, b"")
    with pytest.raises(JournalError, match="recovery"):
        journal.checkpoint([], [])
    journal.close()


def test_a_second_owner_is_refused_by_name(tmp_path: Path) -> None:
    journal, recovery = open_journal(tmp_path / "j", OPTIONS)
    recovery.drain()

    with pytest.raises(JournalLocked, match=rf"{tmp_path}/j is in use by pid \d+ on "):
        open_journal(tmp_path / "j", OPTIONS)

    journal.close()
    again, recovery = open_journal(tmp_path / "j", OPTIONS)
    recovery.drain()
    again.close()


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    _run(
        """
        journal, recovery = open_journal(folder, JournalOptions(segment_bytes=4096))
        recovery.drain()
        journal.append(20, b"written")
        journal.flush()
        os.kill(os.getpid(), 9)
        """,
        tmp_path,
        expect=-9,
    )

    journal, recovery = open_journal(tmp_path, OPTIONS)

    assert [payload for _, _, payload in recovery.records] == [b"written"]
    assert not recovery.clean
    journal.close()


def test_a_real_file_size_limit_ends_in_a_clear_failure_and_full_recovery(tmp_path: Path) -> None:
    limit = 70_000
    printed = _run(
        f"""
        import resource
        options = JournalOptions(segment_bytes={limit - 1000})
        journal, recovery = open_journal(folder, options)
        recovery.drain()
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        confirmed = []
        for number in range(10_000):
            try:
                # One record in a hundred is bigger than a segment, up to over the limit.
                size = number * 40 if number % 100 == 0 else 90
                journal.append(20, b"%06d" % number + bytes(size))
            except JournalFailed:
                break
            journal.on_durable(lambda error, number=number: error is None and confirmed.append(number))
            if number % 10 == 0:
                journal.flush()
        print(len(confirmed), journal.failed.reason)
        """,
        tmp_path,
    )
    count, reason = printed.split(" ", 1)
    assert "File too large" in reason
    assert int(count) > 500

    _, recovery = open_journal(tmp_path, OPTIONS)

    numbers = [int(payload[:6]) for _, _, payload in recovery.records]
    assert numbers[: int(count)] == list(range(int(count)))


def _run(code: str, folder: Path, expect: int = 0) -> str:
    head = (
        "import os, sys\n"
        "from holtmq.journal import *\n"
        "from holtmq.journal import JournalFailed, JournalOptions, open_journal\n"
        "folder = sys.argv[1]\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": source},
        check=False,
    )
    assert done.returncode == expect, done.stderr
    return done.stdout
