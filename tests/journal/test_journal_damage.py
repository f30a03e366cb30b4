"""Cuts and flipped bits: full recovery, a torn tail of what was never durable, or a clear refusal."""

from __future__ import annotations

import errno
import os
import zlib
from array import array
from dataclasses import dataclass

import pytest

from holtmq.journal import (
    FileJournal,
    JournalCorrupt,
    JournalOptions,
    JournalTooNew,
    Recovery,
    open_journal,
)
from holtmq.journal.fake_disk import FakeDisk, FakeFile, Keep
from holtmq.journal.inspection import check
from holtmq.journal.interface import RecordUnreadable
from holtmq.journal.records import SYNC_SIZE, encode_sync, find_syncs
from holtmq.journal.segment import HEADER_SIZE, read_header

OPTIONS = JournalOptions(segment_bytes=4096)
FIRST = "0000000000000000.seg"
BETWEEN = b"between the two newest checkpoints"

Found = list[tuple[int, int, bytes]]


def opened(disk: FakeDisk, options: JournalOptions = OPTIONS) -> FileJournal:
    journal, recovery = open_journal("", options, disk=disk, clock=lambda: 1.0)
    recovery.drain()
    return journal


def recovered(disk: FakeDisk, options: JournalOptions = OPTIONS) -> tuple[Found, Recovery, FileJournal]:
    journal, recovery = open_journal("", options, disk=disk, clock=lambda: 1.0)
    return list(recovery.records), recovery, journal


@dataclass(slots=True)
class Story:
    """A journal after its process was killed: two durable commits, then one that never was."""

    disk: FakeDisk
    durable: Found
    doomed: Found
    durable_end: int


def killed_in_the_last_commit() -> Story:
    disk = FakeDisk()
    journal = opened(disk)
    durable: Found = []
    for turn in range(2):
        for number in range(3):
            payload = b"durable %d %d" % (turn, number)
            durable.append((journal.append(20 + number, payload), 20 + number, payload))
        batch = [(30, b"batched a"), (31, b"batched b")]
        durable += [(at, *record) for at, record in zip(journal.append_batch(batch), batch, strict=True)]
        journal.flush()
    end = journal.durable - SYNC_SIZE
    doomed: Found = []
    for number in range(3):
        payload = b"never durable %d" % number
        doomed.append((journal.append(40, payload), 40, payload))
    batch = [(41, b"inner one"), (42, b"inner two")]
    doomed += [(at, *record) for at, record in zip(journal.append_batch(batch), batch, strict=True)]
    disk.fail_sync()
    journal.flush()
    # The write reached the file, the sync did not happen: what a kill between the two leaves.
    return Story(disk.copy(), durable, doomed, end)


def whole_records(story: Story, cut: int) -> Found:
    """The doomed records that lie wholly before a cut; the batch counts as one."""
    ends = [at + 9 + len(payload) for at, _, payload in story.doomed]
    singles = [record for record, end in zip(story.doomed[:3], ends, strict=False) if end <= cut]
    return story.durable + singles + (story.doomed[3:] if ends[4] <= cut else [])


def test_a_journal_cut_at_every_byte_of_the_last_commit_keeps_all_that_was_durable() -> None:
    story = killed_in_the_last_commit()
    written = story.disk.content(FIRST)
    last = story.doomed[-1][0] + 9 + len(story.doomed[-1][2])
    cuts = range(story.durable_end, last + 1)
    assert len(cuts) > 150

    for cut in cuts:
        for fill in (b"", bytes(len(written))):  # a shorter file, and zeros where the write never came
            disk = story.disk.copy()
            torn = written[: cut + HEADER_SIZE]
            disk.replace(FIRST, (torn + fill)[: len(written)])

            found, recovery, journal = recovered(disk)

            assert found == whole_records(story, cut), cut
            if recovery.torn is not None:
                assert recovery.torn.position >= story.durable_end
                assert 0 < recovery.torn.dropped_bytes <= cut - story.durable_end
                assert FIRST in recovery.torn.where
            next_one = journal.append(50, b"life goes on")
            journal.close()
            again, second, _ = recovered(disk)
            assert again == [*found, (next_one, 50, b"life goes on")]
            assert second.torn is None
            assert second.clean


def test_a_hole_in_the_last_commit_is_a_torn_tail() -> None:
    story = killed_in_the_last_commit()
    hole = story.doomed[1][0] + HEADER_SIZE
    written = bytearray(story.disk.content(FIRST))
    written[hole : hole + 12] = bytes(12)
    story.disk.replace(FIRST, bytes(written))

    disk = story.disk.copy()
    found, recovery, _ = recovered(disk)

    assert found == [*story.durable, story.doomed[0]]
    assert recovery.torn is not None
    assert recovery.torn.position == story.doomed[1][0]
    disk.crash(Keep.NOTHING)
    again, second, _ = recovered(disk)
    assert again == found
    assert second.torn is None  # what lay behind the hole is gone, not waiting to come back


def killed_when_idle() -> tuple[FakeDisk, Found, Found]:
    """Several segments, three checkpoints, everything reported durable, the process killed.

    Also what the log after the newest checkpoint holds, and what before it is still live."""
    disk = FakeDisk()
    options = JournalOptions(segment_bytes=600, compact_below=0.9)
    journal = opened(disk, options)
    positions = array("Q")
    for number in range(20):
        positions.append(journal.append(20, b"old %d" % number * 8))
        journal.flush()
    journal.checkpoint([(40, b"first state")], [positions])
    journal.append(20, b"between")
    journal.flush()
    journal.checkpoint([(40, b"older state")], [positions[::2]])
    journal.append(20, BETWEEN)
    journal.flush()
    journal.checkpoint([(40, b"state one"), (41, b"state two")], [positions[::2]])
    records: Found = []
    for number in range(16):
        payload = b"new %d" % number * 8
        records.append((journal.append(21, payload), 21, payload))
        if number % 3 == 0:
            journal.flush()
    journal.flush()
    disk.crash(Keep.EVERYTHING)
    live = [(positions[number], 20, b"old %d" % number * 8) for number in range(0, 20, 2)]
    return disk, records, live


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flipped_bit_anywhere_never_loses_durable_data_in_silence(mask: int) -> None:
    disk, records, live = killed_when_idle()
    options = JournalOptions(segment_bytes=600)
    refusals: list[tuple[str, str]] = []
    recovered_whole = unreadable = fell_back = 0
    names = disk.list()
    assert len(names) >= 6

    for name in names:
        for offset in range(len(disk.content(name))):
            hurt = disk.copy()
            hurt.flip(name, offset, mask)
            try:
                found, recovery, journal = recovered(hurt, options)
                state = list(recovery.checkpoint)
            except JournalCorrupt as exc:
                refusals.append((name, str(exc)))
                continue
            recovered_whole += 1
            if state == [(40, b"older state")]:
                fell_back += 1
                assert [payload for _, _, payload in found[:1]] == [BETWEEN]
                assert found[1:] == records, (name, offset)
                assert name.endswith(".ckpt")
                assert any(name in warning for warning in recovery.warnings)
            else:
                assert found == records, (name, offset)
                assert state == [(40, b"state one"), (41, b"state two")]
            assert name != "manifest" or recovery.warnings or offset % 512 >= 60
            for position, kind, payload in live:
                try:
                    assert journal.read(position) == (kind, payload)
                except JournalCorrupt:
                    unreadable += 1

    assert len(refusals) > 500
    assert all(name in text or "fake-disk" in text for name, text in refusals)
    assert recovered_whole > 0
    assert unreadable > 100
    assert fell_back > 100


def test_damage_in_the_last_durable_commit_is_refused_by_name_with_the_way_out() -> None:
    disk, records, _ = killed_when_idle()
    options = JournalOptions(segment_bytes=600)
    position = records[-1][0]
    name = max(name for name in disk.list() if name.endswith(".seg") and int(name[:16], 16) <= position)
    offset = position - int(name[:16], 16) + HEADER_SIZE
    disk.flip(name, offset + 12)

    with pytest.raises(JournalCorrupt) as refusal:
        recovered(disk, options)

    text = str(refusal.value)
    assert name in text
    assert f"offset {offset} " in text
    assert "holt journal repair" in text
    with pytest.raises(JournalCorrupt):  # and the lock was given back: the second try says the same
        recovered(disk, options)


def test_a_length_flipped_to_zero_is_not_taken_for_the_end() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    position = journal.append(20, b"x" * 63)  # length 64: one bit away from zero
    journal.append(20, b"behind it")
    journal.flush()
    disk.crash(Keep.EVERYTHING)
    disk.flip(FIRST, position + HEADER_SIZE, 64)

    with pytest.raises(JournalCorrupt, match="zeros where a record was"):
        recovered(disk)


def test_a_missing_segment_in_the_middle_is_refused() -> None:
    disk, _, _ = killed_when_idle()
    segments = [name for name in disk.list() if name.endswith(".seg")]
    disk.remove(segments[-2])

    with pytest.raises(JournalCorrupt):
        recovered(disk, JournalOptions(segment_bytes=600))


def test_a_segment_of_the_tail_that_is_cut_anywhere_is_refused() -> None:
    disk, records, _ = killed_when_idle()
    bases = sorted(int(name[:16], 16) for name in disk.list() if name.endswith(".seg"))
    base = max(base for base in bases[:-1] if base <= records[5][0])
    name = f"{base:016x}.seg"
    whole = disk.content(name)
    for size in range(HEADER_SIZE, len(whole), 3):
        cut = disk.copy()
        cut.replace(name, whole[:size])

        with pytest.raises(JournalCorrupt, match=name):
            recovered(cut, JournalOptions(segment_bytes=600))


def test_a_missing_segment_of_live_messages_is_refused() -> None:
    disk, _, _ = killed_when_idle()
    segments = [name for name in disk.list() if name.endswith(".seg")]
    disk.remove(segments[0])

    with pytest.raises(JournalCorrupt, match=f"{segments[0]} is missing"):
        recovered(disk, JournalOptions(segment_bytes=600))


def test_a_missing_checkpoint_is_refused_once_segments_depend_on_it() -> None:
    disk, _, _ = killed_when_idle()
    for name in disk.list():
        if name.endswith(".ckpt"):
            disk.remove(name)

    with pytest.raises(JournalCorrupt, match="checkpoint"):
        recovered(disk, JournalOptions(segment_bytes=600))


def test_a_bad_newest_checkpoint_falls_back_aloud_to_the_older_one() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    journal.append(20, b"one")
    journal.flush()
    journal.checkpoint([(40, b"older")], [])
    second = journal.append(20, b"two")
    journal.flush()
    journal.checkpoint([(40, b"newer")], [])
    _, newer = (name for name in disk.list() if name.endswith(".ckpt"))
    disk.crash(Keep.EVERYTHING)
    disk.flip(newer, len(disk.content(newer)) // 2)

    found, recovery, _ = recovered(disk)

    assert list(recovery.checkpoint) == [(40, b"older")]
    assert found == [(second, 20, b"two")]
    assert any(newer in warning for warning in recovery.warnings)


def test_what_the_older_checkpoint_replays_is_neither_deleted_nor_compacted() -> None:
    disk = FakeDisk()
    journal = opened(disk, JournalOptions(segment_bytes=600, compact_below=1.0))
    for state in (b"first", b"older"):
        journal.append(20, b"before")
        journal.flush()
        assert journal.checkpoint([(40, state)], [])
    records: Found = []
    for number in range(40):
        payload = b"between %d" % number * 8
        records.append((journal.append(20, payload), 20, payload))
        journal.flush()
    assert journal.checkpoint([(40, b"newest")], [array("Q", [records[7][0]])])
    disk.crash(Keep.EVERYTHING)
    newest = max(name for name in disk.list() if name.endswith(".ckpt"))
    disk.flip(newest, 70)

    found, recovery, _ = recovered(disk)

    assert list(recovery.checkpoint) == [(40, b"older")]
    assert found == records


def test_the_first_checkpoint_of_all_falls_back_to_the_log_from_its_start() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    one = journal.append(20, b"one")
    journal.flush()
    journal.checkpoint([(40, b"state")], [])
    name = next(name for name in disk.list() if name.endswith(".ckpt"))
    disk.crash(Keep.EVERYTHING)
    disk.flip(name, 80)

    found, recovery, _ = recovered(disk)

    assert list(recovery.checkpoint) == []
    assert found == [(one, 20, b"one")]
    assert any(name in warning for warning in recovery.warnings)


def test_two_bad_checkpoints_are_refused_by_name() -> None:
    disk, _, _ = killed_when_idle()
    marks = [name for name in disk.list() if name.endswith(".ckpt")]
    assert len(marks) == 2
    for name in marks:
        disk.flip(name, 80)

    with pytest.raises(JournalCorrupt, match=marks[1]):
        recovered(disk, JournalOptions(segment_bytes=600))


def test_a_missing_newest_checkpoint_falls_back_aloud_to_the_older_one() -> None:
    disk, records, live = killed_when_idle()
    newest = max(name for name in disk.list() if name.endswith(".ckpt"))
    disk.remove(newest)

    found, recovery, journal = recovered(disk, JournalOptions(segment_bytes=600))

    assert list(recovery.checkpoint) == [(40, b"older state")]
    assert found[1:] == records
    assert any(newest in warning for warning in recovery.warnings)
    assert [journal.read(position) for position, _, _ in live] == [(kind, data) for _, kind, data in live]


def test_an_old_checkpoint_that_is_put_back_is_not_believed() -> None:
    disk = FakeDisk()
    options = JournalOptions(segment_bytes=600)
    journal = opened(disk, options)
    kept = ("", b"")
    for number in range(5):
        position = journal.append(20, b"message %d" % number * 30)
        journal.flush()
        journal.checkpoint([(40, b"%d" % number)], [array("Q", [position])])
        if number == 1:
            name = max(name for name in disk.list() if name.endswith(".ckpt"))
            kept = name, disk.content(name)
    disk.crash(Keep.EVERYTHING)
    disk.replace(*kept)

    _, recovery, _ = recovered(disk.copy(), options)
    assert list(recovery.checkpoint) == [(40, b"4")]

    for name in disk.list():
        if name.endswith(".ckpt") and name != kept[0]:
            disk.remove(name)
    with pytest.raises(JournalCorrupt):
        recovered(disk, options)


@pytest.mark.parametrize("clean", [False, True])
def test_a_missing_last_segment_is_refused_by_name(clean: bool) -> None:
    disk = FakeDisk()
    options = JournalOptions(segment_bytes=600)
    journal = opened(disk, options)
    for number in range(20):
        journal.append(20, b"message %d" % number * 8)
        journal.flush()
    if clean:
        journal.close()
    disk.crash(Keep.NOTHING)  # what names the last segment is durable
    last = max(name for name in disk.list() if name.endswith(".seg"))
    disk.remove(last)

    with pytest.raises(JournalCorrupt, match=f"{last} is missing"):
        recovered(disk, options)


@pytest.mark.parametrize("how", ["cut", "zeroed"])
@pytest.mark.parametrize("clean", [False, True])
def test_a_log_that_lost_its_end_is_refused(how: str, clean: bool) -> None:
    disk = FakeDisk()
    journal = opened(disk)
    for number in range(5):
        last = journal.append(20, b"message %d" % number)
        journal.flush()
    if clean:
        journal.close()
    disk.crash(Keep.EVERYTHING)
    content = disk.content(FIRST)
    at = last - SYNC_SIZE + HEADER_SIZE  # the whole last commit, as if it had never been
    disk.replace(FIRST, content[:at] + (bytes(len(content) - at) if how == "zeroed" else b""))

    with pytest.raises(JournalCorrupt, match=f"{FIRST} is damaged at offset {at} .*durable up to position"):
        recovered(disk)


def test_without_a_manifest_the_log_opens_with_a_warning() -> None:
    disk, records, _ = killed_when_idle()
    disk.remove("manifest")

    found, recovery, _ = recovered(disk, JournalOptions(segment_bytes=600))

    assert found == records
    assert any("manifest" in warning for warning in recovery.warnings)


def test_an_old_copy_of_the_manifest_may_name_a_segment_that_was_deleted_since() -> None:
    # A power cut takes back what was not synced, and with the other copy damaged the manifest is that old.
    disk = FakeDisk()
    options = JournalOptions(segment_bytes=600)
    journal = opened(disk, options)
    for number in range(8):
        journal.append(20, b"old %d" % number * 20)
        journal.flush()
    old = disk.content("manifest")
    last = max(name for name in disk.list() if name.endswith(".seg"))
    for number in range(8):
        journal.append(20, b"new %d" % number * 20)
        journal.flush()
    for state in (b"older state", b"state"):
        journal.checkpoint([(40, state)], [])
        kept = journal.append(20, b"kept")
        journal.flush()
    disk.crash(Keep.EVERYTHING)
    assert last not in disk.list()
    disk.replace("manifest", old[:512] + b"\xff" * 60 + old[572:])

    report = check(disk.copy())
    found, recovery, _ = recovered(disk, options)

    assert found == [(kept, 20, b"kept")]
    assert any("its other copy counts" in warning for warning in recovery.warnings)
    assert [problem.name for problem in report.problems] == ["manifest"]


def test_a_forged_sync_record_in_a_message_does_not_turn_a_torn_tail_into_damage() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    kept = journal.append(20, b"kept")
    journal.flush()
    torn_at = journal.append(20, b"torn")
    # A client that knows the format and guesses the position right, but cannot know the segment's marker.
    forged_at = journal.end + 9
    journal.append(20, encode_sync(b"HOLTSYNC", forged_at, forged_at, 1.0))
    disk.fail_sync()
    journal.flush()
    hurt = disk.copy()
    hurt.flip(FIRST, torn_at + HEADER_SIZE + 10)

    found, recovery, _ = recovered(hurt)

    assert found == [(kept, 20, b"kept")]
    assert recovery.torn is not None


def test_a_swapped_segment_is_refused() -> None:
    disk, _, _ = killed_when_idle()
    segments = [name for name in disk.list() if name.endswith(".seg")]
    disk.replace(segments[-1], disk.content(segments[-2]))

    with pytest.raises(JournalCorrupt, match="renamed or swapped"):
        recovered(disk, JournalOptions(segment_bytes=600))


def test_a_segment_of_a_newer_format_is_refused_as_such() -> None:
    disk = FakeDisk()
    opened(disk).close()
    file = disk.open(FIRST)
    header = bytearray(read_header(file, 0, "x").encode())
    header[8] = 9
    header[60:64] = zlib.crc32(bytes(header[:60])).to_bytes(4, "little")
    disk.replace(FIRST, bytes(header) + disk.content(FIRST)[64:])

    with pytest.raises(JournalTooNew, match=r"format version 9 .* HoltMQ 0\.1\.0 wrote it"):
        recovered(disk)


def test_a_checkpoint_of_a_newer_format_is_refused_as_such_also_beside_damage() -> None:
    disk, _, _ = killed_when_idle()
    newest = max(name for name in disk.list() if name.endswith(".ckpt"))
    header = bytearray(disk.content(newest)[:64])
    header[8] = 9
    header[60:64] = zlib.crc32(bytes(header[:60])).to_bytes(4, "little")
    disk.replace(newest, bytes(header) + disk.content(newest)[64:])
    with pytest.raises(JournalTooNew, match=f"{newest} has format version 9"):
        recovered(disk)
    disk.crash()
    disk.flip(FIRST, 20)

    report = check(disk)

    assert report.too_new
    assert "format version 9" in report.refusal


def test_a_damaged_body_is_noticed_when_it_is_read() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    good = journal.append(20, b"good")
    bad = journal.append(20, b"bad")
    journal.flush()
    disk.flip(FIRST, bad + HEADER_SIZE + 10)

    assert journal.read(good) == (20, b"good")
    with pytest.raises(JournalCorrupt, match=f"{FIRST} is damaged at offset {bad + HEADER_SIZE} "):
        journal.read(bad)
    with pytest.raises(JournalCorrupt):
        journal.read_many([good, bad])


def test_a_sync_record_copied_to_another_place_is_not_believed() -> None:
    record = encode_sync(b"8 random", 100, 90, 1.0)

    assert [mark.synced_upto for mark in find_syncs(b"..." + record, b"8 random", 97)] == [90]
    assert list(find_syncs(b"..." + record, b"8 random", 98)) == []
    assert list(find_syncs(b"..." + record, b"9 random", 97)) == []
    assert list(find_syncs(b"..." + record[:-1], b"8 random", 97)) == []


def test_what_a_killed_process_left_in_the_page_cache_is_durable_once_recovered() -> None:
    disk = FakeDisk()
    journal = opened(disk)
    position = journal.append(20, b"written, not synced")
    disk.cut_power_after(1)  # the write, not the sync
    journal.flush()
    disk.crash(Keep.EVERYTHING)
    found, _, _ = recovered(disk)
    assert found == [(position, 20, b"written, not synced")]

    disk.crash(Keep.NOTHING)

    assert recovered(disk)[0] == found


def test_what_a_failed_sync_left_in_the_page_cache_is_durable_once_recovered() -> None:
    """After a failed sync the kernel counts the pages as clean: another sync alone would write nothing."""
    disk = FakeDisk()
    journal = opened(disk)
    journal.append(20, b"first")
    journal.flush()
    journal.append(20, b"second")
    disk.fail_sync()
    journal.flush()
    assert journal.failed is not None
    disk.crash(Keep.EVERYTHING)
    found, _, _ = recovered(disk)
    assert [payload for _, _, payload in found] == [b"first", b"second"]

    disk.crash(Keep.NOTHING)

    assert recovered(disk)[0] == found


@pytest.mark.parametrize("shift", range(-SYNC_SIZE, SYNC_SIZE, 7))
def test_the_proof_of_durability_is_found_wherever_it_lies(shift: int) -> None:
    options = JournalOptions(segment_bytes=4 << 20)
    disk = FakeDisk()
    journal = opened(disk, options)
    first = journal.append(20, b"damaged later")
    # The search goes in megabytes from the damage on: put the next commit's SYNC record across that border.
    journal.append(20, bytes((1 << 20) - (journal.end - first) - 9 + shift))
    journal.flush()
    journal.append(20, b"behind")
    journal.flush()
    content = bytearray(disk.content(FIRST))
    content[first + HEADER_SIZE + 10] ^= 1
    last_seal = journal.end - SYNC_SIZE + HEADER_SIZE
    content[last_seal:] = bytes(len(content) - last_seal)  # only the one across the border can tell
    disk = disk.copy()
    disk.replace(FIRST, bytes(content))

    with pytest.raises(JournalCorrupt, match="was durable up to"):
        recovered(disk, options)


class Unopenable(FakeDisk):
    """A disk on which the first segment cannot be opened."""

    code = 0

    def open(self, name: str, *, create: bool = False, write: bool = False) -> FakeFile:
        if name == FIRST and self.code:
            raise OSError(self.code, os.strerror(self.code), name)
        return super().open(name, create=create, write=write)


def two_segments(disk: FakeDisk) -> tuple[FileJournal, int, int]:
    """A journal with a record in the first segment, and one in the last; the first one is not open."""
    journal = opened(disk)
    first = journal.append(20, b"first")
    for _ in range(3):
        last = journal.append(20, bytes(3000))
        journal.flush()
    return journal, first, last


@pytest.mark.parametrize("code", [errno.EACCES, errno.EISDIR, errno.ELOOP, errno.EIO, errno.EINVAL])
def test_records_of_a_segment_that_cannot_be_opened_are_unreadable_like_damaged_ones(code: int) -> None:
    """Their queues stopped: each client that asked for a message got an internal error."""
    disk = Unopenable()
    journal, first, last = two_segments(disk)
    disk.code = code

    with pytest.raises(RecordUnreadable, match="cannot be opened"):
        journal.read(first)

    assert journal.read(last) == (20, bytes(3000))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_shortage_of_the_moment_is_not_taken_for_damage(code: int) -> None:
    disk = Unopenable()
    journal, first, _ = two_segments(disk)
    disk.code = code
    with pytest.raises(OSError, match=FIRST):
        journal.read(first)

    disk.code = 0

    assert journal.read(first) == (20, b"first")
