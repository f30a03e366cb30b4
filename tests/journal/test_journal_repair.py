"""A repair against a disk in memory: interrupted at every step, and on every combination of lost files."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import combinations, pairwise

import pytest

from holtmq.journal import (
    FileJournal,
    JournalCorrupt,
    JournalError,
    JournalOptions,
    Recovery,
    mending,
    open_journal,
)
from holtmq.journal.checksum import crc32
from holtmq.journal.fake_disk import FakeDisk, Keep, PowerCut
from holtmq.journal.inspection import Fold, check
from holtmq.journal.interface import RecordUnreadable
from holtmq.journal.names import put_names_right, wrong_names
from holtmq.journal.records import FRAME_SIZE, encode
from holtmq.journal.repair import apply_repair, plan_repair
from holtmq.journal.segment import read_header

OPTIONS = JournalOptions(segment_bytes=700, compact_below=0.5)
BODY = b"0123456789" * 3


class Noting(FakeDisk):
    """Notes how many operations came before each one that changes something."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[int] = []

    @classmethod
    def of(cls, disk: FakeDisk) -> Noting:
        noting = cls()
        for name in disk.list():
            noting.replace(name, disk.content(name))
        return noting

    def admit_write(self, size: int) -> tuple[int, OSError | None]:
        self.changes.append(self.operations)
        return super().admit_write(size)

    def admit_sync(self) -> OSError | None:
        self.changes.append(self.operations)
        return super().admit_sync()

    def rename(self, old: str, new: str) -> None:
        self.changes.append(self.operations)
        super().rename(old, new)


def opened(disk: FakeDisk) -> tuple[FileJournal, list[tuple[int, int, bytes]]]:
    journal, recovery = open_journal("", OPTIONS, disk=disk, clock=lambda: 1.0)
    return journal, list(recovery.records)


def written() -> tuple[FakeDisk, list[int]]:
    """Compacted segments, plain ones before and after the checkpoint; the positions of all records."""
    disk = FakeDisk()
    journal, _ = opened(disk)
    positions: list[int] = []
    for number in range(72):
        positions.append(journal.append(20, b"%04d" % number + BODY))
        if number % 3 == 0:
            journal.flush()
        if number % 12 == 11:
            batch = [(20, b"%04d" % (1000 + number + more) + BODY) for more in range(3)]
            positions += journal.append_batch(batch)
            journal.flush()
        if number in (20, 32, 44):
            live = [position for at, position in enumerate(positions) if at < 4 or at % 9 == 0 or at > 20]
            assert journal.checkpoint([(40, b"state")], [array("Q", live)])
    journal.flush()
    disk.crash(Keep.EVERYTHING)
    return disk.copy(), positions


def repair(disk: FakeDisk, fold: Fold | None = None) -> bool:
    """As ``holt journal repair --yes``; False when it says that only a backup helps."""
    put_names_right(disk, wrong_names(disk))
    for _ in range(2):
        plan = plan_repair(disk, fold)
        if plan.hopeless:
            return False
        if plan.needed:
            apply_repair(disk, plan)
    left = check(disk, fold)
    assert not left.refusal
    assert not left.problems
    return True


def contents(disk: FakeDisk, positions: list[int]) -> tuple[list[tuple[int, int, bytes]], list[bytes | None]]:
    """The log that a start replays, and what each position reads as."""
    journal, replayed = opened(disk)
    read: list[bytes | None] = []
    for position in positions:
        try:
            read.append(journal.read(position)[1])
        except JournalCorrupt:
            read.append(None)
    journal.release()
    return replayed, read


def hurt_record(disk: FakeDisk, positions: list[int]) -> None:
    _flip(disk, positions[-2] + 20)


def hurt_batch(disk: FakeDisk, positions: list[int]) -> None:
    _flip(disk, positions[-2] + 20)  # inside the last batch
    _flip(disk, positions[-3] - 1)  # and its kind


def hurt_header(disk: FakeDisk, _: list[int]) -> None:
    disk.flip(_segments(disk)[-2], 10)


def cut_end(disk: FakeDisk, _: list[int]) -> None:
    last = _segments(disk)[-1]
    disk.replace(last, disk.content(last)[:100])


def lose_the_last(disk: FakeDisk, _: list[int]) -> None:
    disk.remove(_segments(disk)[-1])


def lose_two(disk: FakeDisk, _: list[int]) -> None:
    for name in _segments(disk)[-3:-1]:
        disk.remove(name)


def swap(disk: FakeDisk, _: list[int]) -> None:
    one, other = _segments(disk)[-3:-1]
    contents = disk.content(one), disk.content(other)
    disk.replace(one, contents[1])
    disk.replace(other, contents[0])


def _segments(disk: FakeDisk) -> list[str]:
    return [name for name in disk.list() if name.endswith(".seg")]


def _flip(disk: FakeDisk, position: int) -> None:
    name = max(name for name in _segments(disk) if int(name[:16], 16) <= position)
    disk.flip(name, position - int(name[:16], 16) + 64, 0x10)


@pytest.mark.parametrize("keep", [Keep.EVERYTHING, Keep.SECTORS])
@pytest.mark.parametrize(
    "damage", [hurt_record, hurt_batch, hurt_header, cut_end, lose_the_last, lose_two, swap]
)
def test_a_repair_that_is_killed_at_any_step_is_finished_by_the_next(
    damage: Callable[[FakeDisk, list[int]], None], keep: Keep
) -> None:
    base, positions = written()
    damage(base, positions)
    base.sync_dir()
    once = Noting.of(base)
    assert repair(once)
    steps = list(once.changes)
    expected = contents(once, positions)
    assert len(steps) > 5

    for step in steps:
        disk = base.copy(seed=step)
        disk.cut_power_after(step)
        with pytest.raises((PowerCut, JournalError, AssertionError)):
            repair(disk)
        disk.crash(keep)
        assert repair(disk), step

        assert contents(disk, positions) == expected, step


def test_any_two_lost_files_are_repaired_without_another_loss() -> None:
    base, positions = written()
    names = base.list()
    whole = dict(zip(positions, contents(base.copy(), positions)[1], strict=True))
    bases = [int(name[:16], 16) for name in _segments(base)]
    hopeless = 0
    assert len(bases) > 8

    for lost in [*combinations(names, 1), *combinations(names, 2)]:
        disk = base.copy()
        for name in lost:
            disk.remove(name)
        disk.sync_dir()
        if not repair(disk):
            hopeless += 1
            assert sum(name.endswith(".ckpt") for name in lost) == 2
            continue

        _, read = contents(disk, positions)
        for position, payload in zip(positions, read, strict=True):
            holder = f"{max(base for base in bases if base <= position):016x}.seg"
            assert payload == (None if holder in lost else whole[position]), (lost, position)

    assert hopeless == 1


def test_one_bad_byte_in_a_batch_costs_one_record_of_it_at_most() -> None:
    base = FakeDisk()
    journal, _ = opened(base)
    journal.append(20, b"0000 before")
    inner = journal.append_batch([(20, b"%04d inner" % number) for number in range(1, 8)])
    journal.append(20, b"0008 behind")
    journal.close()
    first = inner[0] - 9
    end = inner[-1] + 19

    for position in range(first, end):
        disk = base.copy()
        _flip(disk, position)
        assert repair(disk)

        left = [int(payload[:4]) for _, kind, payload in opened(disk)[1] if kind == 20]
        lost = [number for number, at in enumerate(inner, 1) if at <= position < at + 19]
        assert left == [number for number in range(9) if number not in lost], position - first


def test_messages_behind_the_end_of_a_cut_segment_are_found_and_given_up() -> None:
    base, positions = written()
    checkpoint = max(int(name[:16], 16) for name in base.list() if name.endswith(".ckpt"))
    names = _segments(base)
    old = [name for name, after in pairwise(names) if int(after[:16], 16) <= checkpoint]
    name = old[-2]
    assert not read_header(base.open(name), int(name[:16], 16), "").compacted
    first, stop = int(name[:16], 16), int(names[names.index(name) + 1][:16], 16)
    held = [position for position in positions if first <= position < stop]
    assert len(held) > 5
    base.remove(names[names.index(name) + 1])  # as if it held nothing live: nothing says where ``name`` ends
    base.sync_dir()

    def fold(recovery: Recovery) -> list[array[int]]:
        recovery.drain()
        return [array("Q", held)]

    for size in range(64, len(base.content(name)), 3):
        disk = base.copy()
        disk.replace(name, disk.content(name)[:size])
        whole = [position for position in held if position - first + 64 + 43 <= size]
        assert repair(disk, fold)

        journal, _ = opened(disk)
        for position in held:
            if position in whole:
                assert journal.read(position)[1][4:] == BODY
            else:
                with pytest.raises(RecordUnreadable) as gone:
                    journal.read(position)
                assert gone.value.dropped
        journal.release()


def test_the_search_for_records_in_garbage_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk()
    journal, recovery = open_journal("", JournalOptions(segment_bytes=1 << 21), disk=disk)
    recovery.drain()
    journal.append(20, b"first")
    journal.append(20, bytes(1 << 20))
    behind = journal.append(20, b"behind")
    journal.close()
    (name,) = _segments(disk)
    content = bytearray(disk.content(name))
    # Each three bytes look like the length of a record of half a megabyte.
    content[300 : 1 << 20] = bytes([0, 0, 8, 0]) * (((1 << 20) - 300) // 4)
    disk.replace(name, bytes(content))
    summed = 0

    def counting(data: bytes, seed: int = 0) -> int:
        nonlocal summed
        summed += len(data)
        return crc32(data, seed)

    monkeypatch.setattr(mending, "crc32", counting)
    monkeypatch.setattr(mending, "_SEARCH_BYTES", 4 << 20)

    found = check(disk)

    assert [problem.position + problem.size for problem in found.problems] == [behind]
    assert summed < 10 << 20


@pytest.mark.parametrize("left", range(1, FRAME_SIZE))
@pytest.mark.parametrize("in_batch", [False, True])
def test_old_contents_that_leave_no_room_for_a_record_before_the_next_are_repaired(
    left: int, in_batch: bool
) -> None:
    disk, positions = written()
    _, before = contents(disk.copy(), positions)
    size = FRAME_SIZE + 4 + len(BODY)
    bases = {int(name[:16], 16) for name in _segments(disk)}
    ends = {  # of the last record of a batch, or of a segment
        position + size
        for position, body in zip(positions, before, strict=True)
        if body is not None and (body.startswith(b"1") if in_batch else position + size in bases)
    }
    last = max(ends.difference(positions)) - size
    name = max(name for name in _segments(disk) if int(name[:16], 16) <= last)
    file = disk.open(name, write=True)
    old = encode(20, b"f" * (size - FRAME_SIZE - left)) + b"\xee" * left
    file.pwrite([old], last - int(name[:16], 16) + 64)
    file.sync()

    assert repair(disk)

    _, read = contents(disk, positions)
    assert [positions[at] for at, body in enumerate(read) if body != before[at]] == [last]
