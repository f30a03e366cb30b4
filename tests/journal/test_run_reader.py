"""Many records at once: the same bytes as one by one, and never a damaged one."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.journal import Journal, JournalCorrupt, JournalOptions, MemoryJournal, open_journal, run_reader
from holtmq.journal.fake_disk import FakeDisk
from holtmq.journal.interface import Framed
from holtmq.journal.records import BATCH, FRAME
from holtmq.journal.run_reader import payloads
from holtmq.journal.segment import HEADER_SIZE

FIRST = "0000000000000000.seg"


def opened(disk: FakeDisk, segment_bytes: int = 1 << 20) -> Journal:
    journal, recovery = open_journal("", JournalOptions(segment_bytes=segment_bytes), disk=disk)
    recovery.drain()
    return journal


def read(journal: Journal, positions: Sequence[int]) -> list[bytes]:
    return payloads(journal.run_reader()(array("Q", positions)))


def singly(journal: Journal, positions: Sequence[int]) -> list[bytes]:
    return [payload for _, payload in journal.read_many(positions)]


Writes = list[list[int]]  # sizes of the payloads of each append: one alone, more as a batch


def write(journal: Journal, writes: Writes) -> list[int]:
    positions: list[int] = []
    for number, sizes in enumerate(writes):
        records = [(20 + place % 3, bytes([number % 251]) * size) for place, size in enumerate(sizes)]
        positions += journal.append_batch(records)
        if number % 3 == 0:
            journal.flush()
    return positions


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=12), min_size=1, max_size=12),
    st.data(),
    st.sampled_from([200, 1 << 20]),
)
def test_any_choice_of_records_is_read_as_one_by_one(
    writes: Writes, data: st.DataObject, segment_bytes: int
) -> None:
    disk = FakeDisk()
    journal = opened(disk, segment_bytes)
    positions = write(journal, writes)
    if data.draw(st.booleans()):
        journal.flush()
    chosen = data.draw(st.lists(st.sampled_from(positions), max_size=40))
    ordered = sorted(set(chosen))
    cut = data.draw(st.integers(0, len(ordered)))

    reader = journal.run_reader()
    in_two = payloads(reader(array("Q", ordered[:cut]))) + payloads(reader(array("Q", ordered[cut:])))

    assert read(journal, chosen) == singly(journal, chosen)
    assert in_two == singly(journal, ordered)


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_every_journal_has_it(kind: str, tmp_path: Path) -> None:
    journal: Journal = MemoryJournal()
    if kind == "files":
        journal, recovery = open_journal(tmp_path)
        recovery.drain()
    positions = write(journal, [[5, 6, 7], [8], [9, 10]])

    assert read(journal, positions) == singly(journal, positions)
    journal.flush()
    assert read(journal, positions) == singly(journal, positions)
    assert read(journal, []) == []
    journal.close()


def test_the_arithmetic_finds_the_same_payloads() -> None:
    pytest.importorskip("numpy")
    from holtmq.journal.spans import spans

    journal = opened(FakeDisk(), segment_bytes=600)
    positions = write(journal, [[40, 0, 41], [3], [60] * 9, [2], [70, 71]])
    journal.flush()
    last = journal.append(20, b"still in memory")

    runs = [*journal.run_reader()(array("Q", positions)), *journal.run_reader()(array("Q", [last]))]
    blob, starts, ends = spans(runs)

    assert len([run for run in runs if isinstance(run, Framed)]) > 1
    found = [blob[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert found == singly(journal, [*positions, last])


def test_a_place_where_no_record_starts_is_refused() -> None:
    pytest.importorskip("numpy")
    from holtmq.journal.spans import spans

    with pytest.raises(JournalCorrupt):
        spans([Framed(FRAME.pack(5, 0, BATCH) + b"four", 0, array("Q", [0]))])
    with pytest.raises(JournalCorrupt):
        spans([Framed(FRAME.pack(50, 0, 20) + b"four", 0, array("Q", [0]))])


def test_a_batch_is_read_on_where_the_last_call_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reader, "_STRETCH", 300)
    monkeypatch.setattr(run_reader, "_PAGE", 64)
    journal = opened(FakeDisk())
    positions = write(journal, [[30] * 100, [31] * 50])
    journal.flush()
    reader = journal.run_reader()

    found = [payloads(reader(array("Q", positions[at : at + 7]))) for at in range(0, len(positions), 7)]

    assert [one for some in found for one in some] == singly(journal, positions)


def test_a_record_larger_than_a_page_comes_whole() -> None:
    journal = opened(FakeDisk())
    positions = write(journal, [[10, 10_000], [20_000], [30_000]])
    journal.flush()

    for position in positions:
        assert read(journal, [position]) == singly(journal, [position])
    assert read(journal, positions) == singly(journal, positions)


def test_records_far_apart_are_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_reader, "_SPARSE", 64)
    journal = opened(FakeDisk())
    positions = write(journal, [[500] * 6])
    journal.flush()

    runs = journal.run_reader()(array("Q", positions[::2]))

    assert not any(isinstance(run, Framed) for run in runs)
    assert payloads(runs) == singly(journal, positions[::2])


def test_compaction_changes_nothing_for_a_reader_that_is_under_way() -> None:
    journal = opened(FakeDisk(), segment_bytes=1000)
    positions = write(journal, [[30] * 20, [31] * 20, [32] * 20])
    journal.flush()
    kept = positions[::9]
    expected = singly(journal, kept)
    reader = journal.run_reader()
    found = payloads(reader(array("Q", kept[:2])))

    for _ in range(2):  # the first one leaves everything to the log before it
        assert journal.checkpoint([], [array("Q", kept)])
        journal.flush()

    assert journal.stats().compactions
    assert found + payloads(reader(array("Q", kept[2:]))) == expected


@pytest.mark.parametrize("writes", [[[20] * 6], [[20], [21], [22]], [[3, 4], [5], [6, 7, 8]]])
@pytest.mark.parametrize("batch_max", [8 << 20, 40])
def test_a_flipped_bit_is_never_handed_out(
    writes: Writes, batch_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_reader, "_BATCH_MAX", batch_max)
    disk = FakeDisk()
    journal = opened(disk)
    positions = write(journal, writes)
    journal.flush()
    expected = singly(journal, positions)
    ends = [at + FRAME.size + len(payload) for at, payload in zip(positions, expected, strict=True)]
    noticed = 0
    for at in range(positions[0] - FRAME.size, ends[-1]):
        disk.flip(FIRST, at + HEADER_SIZE, 1 << at % 8)
        hit = [first <= at < end for first, end in zip(positions, ends, strict=True)]
        if any(hit):
            with pytest.raises(JournalCorrupt, match="is damaged at offset"):
                read(journal, positions)
            noticed += 1
        healthy = [position for position, bad in zip(positions, hit, strict=True) if not bad]
        assert read(journal, healthy) == [one for one, bad in zip(expected, hit, strict=True) if not bad]
        disk.flip(FIRST, at + HEADER_SIZE, 1 << at % 8)

    assert noticed == sum(end - at for at, end in zip(positions, ends, strict=True))


def test_a_payload_that_ends_like_the_head_of_a_batch_fools_nobody() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    head = FRAME.pack(1000, 12345, BATCH)
    positions = [journal.append(20, b"x" + head), journal.append(20, b"y" + head), journal.append(20, b"z")]
    journal.flush()

    assert read(journal, positions) == [b"x" + head, b"y" + head, b"z"]
    disk.flip(FIRST, positions[2] + HEADER_SIZE + FRAME.size)
    with pytest.raises(JournalCorrupt):
        read(journal, positions)
