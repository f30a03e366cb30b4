"""Giving space back: deletion, compaction, and what must not change by it."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from holtmq.journal import FileJournal, JournalCorrupt, JournalOptions, open_journal
from holtmq.journal.checkpoint import checkpoint_name, position_of
from holtmq.journal.fake_disk import FakeDisk, Keep
from holtmq.journal.live import LivePositions
from holtmq.journal.segment import base_of, read_header, segment_name
from open_files import open_files

OPTIONS = JournalOptions(segment_bytes=8192)


def opened(disk: FakeDisk | None, folder: Path | str = "", options: JournalOptions = OPTIONS) -> FileJournal:
    journal, recovery = open_journal(folder, options, disk=disk)
    recovery.drain()
    return journal


def filled(journal: FileJournal, count: int = 1000) -> array[int]:
    positions = array("Q", [journal.append(20, body(number)) for number in range(count)])
    journal.flush()
    return positions


def checkpoint_twice(journal: FileJournal, live: list[array[int]]) -> None:
    """The first one still leaves everything that the log before it needs."""
    for _ in range(2):
        assert journal.checkpoint([(40, b"")], live)
        journal.flush()


def body(number: int) -> bytes:
    return b"%d" % number * (number % 40)


def test_compaction_keeps_positions_through_rewrites_and_restarts() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    positions = filled(journal)
    numbers = list(range(0, 1000, 9))

    for step in (1, 3, 9):
        live = numbers[::step]
        assert journal.checkpoint([(40, b"")], [array("Q", [positions[number] for number in live])])
        expected = [(20, body(number)) for number in live]
        assert journal.read_many([positions[number] for number in live]) == expected
        disk.crash(Keep.NOTHING)
        journal = opened(disk)
        assert journal.read_many([positions[number] for number in live]) == expected
        assert [journal.read(positions[number]) for number in live] == expected

    assert len([name for name in disk.list() if base_of(name) is not None]) > 3


def test_a_compacted_segment_says_so_and_is_smaller() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    positions = filled(journal)
    before = len(disk.content(segment_name(0)))

    checkpoint_twice(journal, [positions[5:6], positions[3:4], positions[5:6]])

    header = read_header(disk.open(segment_name(0)), 0, "")
    assert header.compacted
    assert header.index_count == 2
    assert len(disk.content(segment_name(0))) < before // 10
    assert journal.stats().compactions == 1
    assert journal.stats().deleted_segments > 5
    assert journal.stats().reclaimed_bytes > 50_000
    with pytest.raises(JournalCorrupt, match="does not hold position"):
        journal.read(positions[4])


@pytest.mark.parametrize("queues", [1, 2, 7])
@pytest.mark.parametrize(("every", "is_sparse"), [(5, True), (3, False)])
def test_the_live_share_counts_each_record_once_however_many_refer_to_it(
    queues: int, every: int, is_sparse: bool
) -> None:
    """Below a quarter a segment is compacted. Both checkpoints refer to the records, for each queue."""
    disk = FakeDisk()
    journal = opened(disk)
    positions = filled(journal)

    checkpoint_twice(journal, [positions[::every]] * queues)

    bases = sorted(base for name in disk.list() if (base := base_of(name)) is not None)
    sealed = [read_header(disk.open(segment_name(base)), base, "") for base in bases[:-2]]
    assert len(sealed) > 5
    assert {header.compacted for header in sealed} == {is_sparse}


def test_a_state_that_refers_to_what_the_log_does_not_hold_gives_no_space_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FakeDisk()
    journal = opened(disk)
    positions = filled(journal)
    checkpoint_twice(journal, [positions[::20]])
    assert journal.stats().compactions > 3
    closed = [name for name in disk.list() if base_of(name) is not None][:-1]
    before = {name: disk.content(name) for name in closed}

    journal.checkpoint([(40, b"")], [array("Q", [positions[20], positions[21]])])
    journal.flush()

    assert before == {name: disk.content(name) for name in closed}
    assert journal.stats().checkpoint_failures == 1
    assert f"does not hold position {positions[21]}" in caplog.records[-1].__dict__["reason"]
    assert journal.read(positions[980]) == (20, body(980))


def test_a_segment_that_cannot_be_deleted_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk()
    journal = opened(disk)
    filled(journal)
    stubborn = [name for name in disk.list() if base_of(name) is not None][3]
    remove = disk.remove

    def removed(name: str) -> None:
        if name == stubborn:
            raise PermissionError(13, "planted")
        remove(name)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "remove", removed)
        checkpoint_twice(journal, [])
    deleted = journal.stats().deleted_segments
    assert deleted > 5
    assert journal.stats().checkpoint_failures == 1
    assert stubborn in disk.list()

    filled(journal, 10)
    checkpoint_twice(journal, [])

    assert journal.stats().checkpoint_failures == 1
    assert journal.stats().deleted_segments > deleted
    assert stubborn not in disk.list()


def test_a_segment_that_is_mostly_live_is_left_alone() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    positions = filled(journal)
    before = disk.content(segment_name(0))

    checkpoint_twice(journal, [array("Q", [at for i, at in enumerate(positions) if i % 3])])

    assert journal.stats().compactions == 0
    assert disk.content(segment_name(0)) == before


def test_one_big_live_message_among_many_small_dead_ones_is_not_copied_in_vain() -> None:
    journal = opened(FakeDisk())
    big = journal.append(20, b"x" * 6000)
    for _ in range(300):
        journal.append(20, b"tiny")
    journal.flush()

    checkpoint_twice(journal, [array("Q", [big])])

    assert journal.stats().compactions == 0
    assert journal.read(big) == (20, b"x" * 6000)


def test_the_tail_behind_a_checkpoint_is_never_touched() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    journal.append(20, b"before")
    journal.checkpoint([(40, b"")], [])
    tail = filled(journal)

    disk.crash(Keep.NOTHING)
    _, recovery = open_journal("", OPTIONS, disk=disk)

    assert [at for at, _, _ in recovery.records] == list(tail)


def test_records_inside_a_batch_survive_compaction_alone() -> None:
    journal = opened(FakeDisk())
    batch = journal.append_batch([(20, b"dead"), (21, b"alive"), (22, b"dead too")])
    filled(journal)

    checkpoint_twice(journal, [array("Q", batch[1:2])])

    assert journal.stats().compactions == 1
    assert journal.read(batch[1]) == (21, b"alive")


def test_files_replaced_or_deleted_are_let_go(tmp_path: Path) -> None:
    journal = opened(None, tmp_path)
    positions = filled(journal)
    assert len(journal.read_many(positions)) == 1000
    checkpoint_twice(journal, [positions[::100]])

    held = open_files().values()

    assert not [name for name in held if str(tmp_path) in name and "(deleted)" in name]
    journal.close()


def test_the_number_of_read_handles_is_bounded(tmp_path: Path) -> None:
    journal = opened(None, tmp_path, JournalOptions(segment_bytes=2048, read_handles=3))
    positions = filled(journal)
    assert journal.stats().segments > 20

    journal.read_many(positions)

    held = open_files().values()
    assert len([name for name in held if name.startswith(str(tmp_path)) and name.endswith(".seg")]) <= 4
    journal.close()


def test_a_record_bigger_than_a_segment_gets_one_of_its_own_size() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    first = journal.append(20, b"a" * 20_000)  # into the empty first segment, which grows
    second = journal.append(20, b"small")
    third = journal.append(20, b"b" * 30_000)
    fourth = journal.append(20, b"small again")
    journal.flush()

    expected = [(20, b"a" * 20_000), (20, b"small"), (20, b"b" * 30_000), (20, b"small again")]
    assert journal.read_many([first, second, third, fourth]) == expected
    disk.crash(Keep.NOTHING)
    again, recovery = open_journal("", OPTIONS, disk=disk)
    assert [(kind, payload) for _, kind, payload in recovery.records] == expected
    assert again.read(third) == (20, b"b" * 30_000)


def test_segments_may_change_their_size_between_openings() -> None:
    disk = FakeDisk()
    written: list[bytes] = []
    for size in (8192, 1024, 65_536, 2048):
        journal = opened(disk, options=JournalOptions(segment_bytes=size))
        for number in range(60):
            written.append(b"%d %d" % (size, number) * 10)
            journal.append(20, written[-1])
        journal.close()

    _, recovery = open_journal("", OPTIONS, disk=disk)

    assert [payload for _, _, payload in recovery.records] == written


def test_a_sealed_segment_gives_its_unused_space_back() -> None:
    disk = FakeDisk()
    journal = opened(disk, options=JournalOptions(segment_bytes=100_000))
    journal.append(20, b"small")
    journal.append(20, b"x" * 99_900)
    journal.flush()

    assert len(disk.content(segment_name(0))) < 200
    journal.close()


def test_a_power_cut_at_every_operation_of_a_checkpoint_leaves_the_old_state_or_the_new_one() -> None:
    options = JournalOptions(segment_bytes=1024)
    outcomes: set[bytes] = set()
    operations = 0
    while True:
        for seed in range(12):
            disk = FakeDisk(seed)
            journal = opened(disk, options=replace(options, compact_below=0.7))
            old = [journal.append(20, body(number)) for number in range(60)]
            journal.flush()
            journal.checkpoint([(40, b"oldest")], [array("Q", old)])
            journal.append(20, b"between")
            journal.flush()
            journal.checkpoint([(40, b"old")], [array("Q", old[::2])])
            new = [journal.append(20, body(number)) for number in range(60, 120)]
            journal.flush()
            disk.cut_power_after(operations)
            journal.checkpoint([(40, b"new")], [array("Q", old[::10]), array("Q", new[::10])])
            finished = journal.stats().checkpoints == 3 and journal.stats().checkpoint_failures == 0
            disk.crash(Keep.SECTORS)

            again, recovery = open_journal("", options, disk=disk)

            ((_, state),) = recovery.checkpoint
            outcomes.add(state)
            tail = [position for position, _, _ in recovery.records]
            if state == b"old":
                assert tail == new
                expected = list(range(0, 60, 2))
            else:
                assert tail == []
                expected = [*range(0, 120, 10)]
            positions = old + new
            assert again.read_many([positions[i] for i in expected]) == [(20, body(i)) for i in expected]
        if finished:
            break
        operations += 1

    assert outcomes == {b"old", b"new"}
    assert operations > 20


@pytest.mark.parametrize("newest_needs_some", [True, False])
def test_compaction_keeps_what_the_older_checkpoint_refers_to_and_would_replay(
    newest_needs_some: bool,
) -> None:
    disk = FakeDisk()
    journal = opened(disk)
    first = filled(journal)
    checkpoint_twice(journal, [first[::9]])
    second = filled(journal)

    live = [first[::90], second[::90]] if newest_needs_some else []
    assert journal.checkpoint([(40, b"")], live)
    journal.flush()

    assert journal.stats().compactions > 0  # by either checkpoint
    assert journal.read_many(first[::9]) == [(20, body(number)) for number in range(0, 1000, 9)]
    assert journal.read_many(second) == [(20, body(number)) for number in range(1000)]
    journal.close()
    newest = max(at for at in map(position_of, disk.list()) if at is not None)
    disk.remove(checkpoint_name(newest))
    journal, recovery = open_journal("", OPTIONS, disk=disk)
    replayed = [payload for _, kind, payload in recovery.records if kind == 20]
    assert replayed == [body(number) for number in range(1000)]
    assert journal.read_many(first[::9]) == [(20, body(number)) for number in range(0, 1000, 9)]


@pytest.mark.parametrize(
    ("first", "stop", "found"), [(0, 10, False), (0, 11, True), (10, 11, True), (11, 99, False)]
)
def test_a_position_belongs_to_the_segment_that_begins_at_or_before_it(
    first: int, stop: int, found: bool
) -> None:
    live = LivePositions([array("Q", [10])], 100)

    assert live.any_between(first, stop) == found
    assert list(live.between(first, stop)) == ([10] if found else [])
