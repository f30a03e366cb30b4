"""``holt journal check | dump | repair`` on real folders."""

from __future__ import annotations

import errno
import json
import os
from array import array
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holtmq.cli.journal import journal as command
from holtmq.journal import JournalCorrupt, JournalOptions, disk, open_journal
from holtmq.journal.interface import RecordUnreadable
from holtmq.journal.segment import HEADER_SIZE

OPTIONS = JournalOptions(segment_bytes=2048)
BODY = b"0123456789" * 5
KIND = 18  # PAGED: of these a broker takes any


def holt(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def written(folder: Path, count: int = 60, live: int = 0, checkpoints: int = 1) -> list[int]:
    """Positions of the records; with ``live``, checkpoints half way that still need every ``live``-th."""
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    positions: list[int] = []
    for number in range(count):
        positions.append(journal.append(KIND, b"%04d" % number + BODY))
        if number % 5 == 0:
            journal.flush()
        if live and number == count // 2:
            for _ in range(checkpoints):
                journal.flush()
                assert journal.checkpoint([(KIND, b"state")], [array("Q", positions[::live])])
            journal.flush()
    journal.close()
    return positions


def segment_of(folder: Path, position: int) -> tuple[Path, int]:
    """The file that holds a position, and the offset there (plain segments only)."""
    file = max(path for path in folder.glob("*.seg") if int(path.stem, 16) <= position)
    return file, position - int(file.stem, 16) + HEADER_SIZE


def hurt(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x10
    file.write_bytes(data)


def numbers(folder: Path) -> list[int]:
    journal, recovery = open_journal(folder, OPTIONS)
    found = [int(payload[:4]) for _, kind, payload in recovery.records if kind == KIND]
    journal.close()
    return found


def test_a_sound_journal_passes_the_check(folder: Path) -> None:
    written(folder, live=2)

    result = holt("check", folder)

    assert result.exit_code == 0, result.output
    assert "no damage" in result.output
    assert "Checkpoint at position" in result.output


def test_the_check_in_json_counts_every_record(folder: Path) -> None:
    written(folder)

    report = json.loads(holt("check", folder, "--json").output)

    assert report["records"] == 60
    assert report["clean"] is True
    assert report["problems"] == []
    assert len(report["segments"]) > 2


def test_a_check_beside_a_running_owner_says_so(folder: Path) -> None:
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()

    result = holt("check", folder)

    assert result.exit_code == 0
    assert "in use by pid" in result.output
    assert "in use by pid" in holt("repair", folder, "--yes").output
    journal.close()


def test_a_scrub_finds_damage_in_every_kind_of_file(folder: Path) -> None:
    positions = written(folder, 150, live=10, checkpoints=3)
    compacted, plain = min(folder.glob("*.seg")), segment_of(folder, positions[110])[0]
    mark, last = max(folder.glob("*.ckpt")), max(folder.glob("*.seg"))
    assert plain != last
    assert "0 damaged places" in holt("scrub", folder).output
    hurt(compacted, compacted.read_bytes().index(b"0010" + BODY) + 20)
    hurt(plain, plain.read_bytes().index(b"0110" + BODY) + 20)
    hurt(last, last.read_bytes().index(b"0148" + BODY) + 20)
    hurt(mark, 70)
    bases = sorted(int(path.stem, 16) for path in folder.glob("*.seg"))
    headless = next(path for path in sorted(folder.glob("*.seg")) if path not in (compacted, plain, last))
    base = int(headless.stem, 16)
    hurt(headless, 10)

    found = holt("scrub", folder)

    assert found.exit_code == 1
    assert "5 damaged places" in found.output
    size = bases[bases.index(base) + 1] - base
    assert f"DAMAGE in {headless.name} at position {base}, {size} bytes" in found.output
    assert f"DAMAGE in {compacted.name} at position {positions[10]}," in found.output
    assert f"DAMAGE in {plain.name} at position {positions[110]}, 63 bytes" in found.output
    assert f"DAMAGE in {last.name} at position {positions[148]}, 63 bytes" in found.output
    assert f"DAMAGE in {mark.name}" in found.output


def test_a_dump_lists_positions_kinds_and_sizes(folder: Path) -> None:
    positions = written(folder)

    lines = [json.loads(line) for line in holt("dump", folder, "--json", "--payload").output.splitlines()]

    assert [line["position"] for line in lines] == positions
    assert {line["kind"] for line in lines} == {KIND}
    assert [bytes.fromhex(line["payload"])[:4] for line in lines] == [b"%04d" % i for i in range(60)]
    text = holt("dump", folder, "--from", positions[50]).output.splitlines()
    assert len(text) == 10
    assert holt("dump", folder, "--kind", 21).output == ""


def test_a_dump_shows_checkpoints_and_compacted_segments(folder: Path) -> None:
    positions = written(folder, live=10)

    lines = [json.loads(line) for line in holt("dump", folder, "--json").output.splitlines()]

    assert lines[0]["position"] is None
    assert lines[0]["kind"] == KIND
    assert {positions[0], positions[10], positions[59]} <= {line["position"] for line in lines}


def test_a_dump_goes_on_behind_what_it_cannot_read(folder: Path) -> None:
    positions = written(folder, live=10, checkpoints=3)
    segment = min(folder.glob("*.seg"))
    hurt(segment, segment.read_bytes().index(b"0010" + BODY) + 20)

    dumped = holt("dump", folder, "--json")

    listed = {json.loads(line)["position"] for line in dumped.stdout.splitlines()}
    assert dumped.exit_code == 1
    assert positions[10] not in listed
    assert {positions[0], positions[20], positions[59]} <= listed


def test_damage_in_the_tail_is_found_and_refused_and_costs_that_record_alone(folder: Path) -> None:
    positions = written(folder)
    file, offset = segment_of(folder, positions[23])
    hurt(file, offset + 20)
    damaged = file.read_bytes()
    found = holt("check", folder)
    assert found.exit_code == 1
    assert f"DAMAGE in {file.name} at offset {offset} (position {positions[23]}, 63 bytes)" in found.output
    with pytest.raises(JournalCorrupt, match="holt journal repair") as refusal:
        numbers(folder)
    assert f"A broker does not start on it: {refusal.value}" in found.output

    asked = holt("repair", folder)
    assert asked.exit_code == 1
    assert "Nothing was changed" in asked.output
    assert file.read_bytes() == damaged
    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert f"Give up 63 bytes at position {positions[23]} ({file.name})" in done.output
    assert numbers(folder) == [number for number in range(60) if number != 23]
    side = folder / f"{file.name}.from-{offset}.removed"
    assert side.read_bytes() == damaged[offset : offset + 63]
    assert holt("check", folder).exit_code == 0
    assert "Nothing to repair" in holt("repair", folder, "--yes").output


@pytest.mark.parametrize("byte", range(9))
@pytest.mark.parametrize("number", [0, 23, 59])
def test_a_damaged_frame_costs_that_record_alone(folder: Path, number: int, byte: int) -> None:
    positions = written(folder)
    file, offset = segment_of(folder, positions[number])
    hurt(file, offset + byte)

    assert holt("repair", folder, "--yes").exit_code == 0

    assert numbers(folder) == [other for other in range(60) if other != number]


@pytest.mark.parametrize("checkpoints", [1, 3])
def test_a_damaged_body_of_a_waiting_message_costs_that_message_alone(folder: Path, checkpoints: int) -> None:
    positions = written(folder, live=7, checkpoints=checkpoints)
    file = min(folder.glob("*.seg"))
    hurt(file, file.read_bytes().index(b"0007" + BODY) + 20)
    found = holt("check", folder)
    assert found.exit_code == 1
    assert "A broker starts on it" in found.output

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert str(positions[7]) in done.output
    assert holt("check", folder).exit_code == 0
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    assert journal.read(positions[0]) == (KIND, b"0000" + BODY)
    assert journal.read(positions[14]) == (KIND, b"0014" + BODY)
    with pytest.raises(RecordUnreadable) as gone:
        journal.read(positions[7])
    assert gone.value.dropped
    journal.close()


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_damaged_header_of_a_segment_is_written_again(folder: Path, which: int) -> None:
    written(folder)
    segment = sorted(folder.glob("*.seg"))[which]
    hurt(segment, 10)
    assert holt("check", folder).exit_code == 1

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert numbers(folder) == list(range(60))


def test_header_and_index_of_a_compacted_segment_are_kept_twice(folder: Path) -> None:
    positions = written(folder, live=10, checkpoints=3)
    segment = min(folder.glob("*.seg"))
    whole = segment.read_bytes()
    index_at = int.from_bytes(whole[48:56], "little")
    hurt(segment, index_at + 3)
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    assert journal.read(positions[10]) == (KIND, b"0010" + BODY)
    journal.close()
    segment.write_bytes(whole)
    hurt(segment, 20)

    assert holt("repair", folder, "--yes").exit_code == 0

    assert segment.read_bytes() == whole


@pytest.mark.parametrize("which", [1, 2, -1])
def test_a_missing_segment_in_the_tail_costs_its_records_alone(folder: Path, which: int) -> None:
    positions = written(folder)
    segments = sorted(folder.glob("*.seg"))
    bases = [int(path.stem, 16) for path in segments] + [positions[-1] + 1]
    segments[which].unlink()
    base = int(segments[which].stem, 16)
    stop = bases[bases.index(base) + 1]
    checked = holt("check", folder)
    assert checked.exit_code == 1
    assert "A broker does not start on it" in checked.output

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert numbers(folder) == [number for number, at in enumerate(positions) if not base <= at < stop]


def test_a_missing_segment_of_waiting_messages_is_given_up_by_name(folder: Path) -> None:
    positions = written(folder, live=10, checkpoints=3)
    gone = min(folder.glob("*.seg"))
    gone.unlink()
    assert f"DAMAGE in {gone.name}" in holt("check", folder).output

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert f"Give up what {gone.name} held" in done.output
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    with pytest.raises(RecordUnreadable) as unreadable:
        journal.read(positions[0])
    assert unreadable.value.dropped
    journal.close()


@pytest.mark.parametrize("how", ["cut", "zeroed"])
def test_a_log_that_lost_its_end_goes_on_behind_it(folder: Path, how: str) -> None:
    positions = written(folder)
    file, offset = segment_of(folder, positions[57])
    whole = file.read_bytes()
    file.write_bytes(whole[:offset] + (bytes(len(whole) - offset) if how == "zeroed" else b""))
    assert holt("check", folder).exit_code == 1

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert numbers(folder) == list(range(57))
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    assert journal.append(KIND, b"new") > positions[59]  # no position is given twice
    journal.close()


def test_a_bad_checkpoint_over_a_whole_log_is_put_aside(folder: Path) -> None:
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    journal.append(KIND, b"0000")
    journal.flush()
    journal.checkpoint([(KIND, b"state")], [])
    journal.close()
    (mark,) = folder.glob("*.ckpt")
    hurt(mark, 70)
    assert holt("check", folder).exit_code == 1

    assert holt("repair", folder, "--yes").exit_code == 0

    assert (folder / f"{mark.name}.removed").exists()
    assert numbers(folder) == [0]


def test_what_cannot_be_repaired_is_said_and_left_alone(folder: Path) -> None:
    written(folder, live=10, checkpoints=3)
    for mark in folder.glob("*.ckpt"):
        hurt(mark, 70)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}

    result = holt("repair", folder, "--yes")

    assert result.exit_code == 1
    assert "Cannot repair" in result.output
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"} == before


@pytest.mark.parametrize("suffix", ["seg", "ckpt"])
def test_swapped_files_get_their_names_back(folder: Path, suffix: str) -> None:
    positions = written(folder, live=3, checkpoints=3)
    before = {path.name: path.read_bytes() for path in folder.glob("*.seg")}
    one, other = sorted(folder.glob(f"*.{suffix}"))[-2:]
    swapped = one.read_bytes(), other.read_bytes()
    other.write_bytes(swapped[0])
    one.write_bytes(swapped[1])
    assert holt("check", folder).exit_code == 1

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert f"Rename {one.name} to {other.name}" in done.output
    assert {path.name: path.read_bytes() for path in folder.glob("*.seg")} == before
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    assert journal.read(positions[3]) == (KIND, b"0003" + BODY)
    journal.close()


def test_a_sector_that_the_disk_cannot_read_is_damage_like_any_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = written(folder, live=7, checkpoints=2)
    tail, offset = segment_of(folder, positions[50])
    newest, older = sorted(folder.glob("*.ckpt"), reverse=True)
    sector = 512
    monkeypatch.setattr(disk, "_BLOCK", sector)  # the files are small
    bad = {(tail.name, offset // sector), (newest.name, 0)}
    really_pread, really_pwritev = os.pread, os.pwritev

    def blocks(fd: int, size: int, offset: int) -> set[tuple[str, int]]:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        return {(name, block) for block in range(offset // sector, (offset + size - 1) // sector + 1)}

    def pread(fd: int, size: int, offset: int) -> bytes:
        if bad & blocks(fd, size, offset):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return really_pread(fd, size, offset)

    def pwritev(fd: int, parts: list[bytes], offset: int) -> int:
        bad.difference_update(blocks(fd, sum(map(len, parts)), offset))  # the disk takes a spare one
        return really_pwritev(fd, parts, offset)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(os, "pwritev", pwritev)
    found = holt("check", folder)
    assert found.exit_code == 1
    assert f"{newest.name}" in found.output
    assert f"fell back to {older.name}" in found.output
    assert "A broker does not start on it" in found.output
    assert tail.name in found.output

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert not bad - {(newest.name, 0)}
    assert holt("check", folder).exit_code == 0


def test_ranges_do_not_hand_out_what_a_repair_gave_up_inside_a_batch(folder: Path) -> None:
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    inner = journal.append_batch([(KIND, b"%04d inner" % number) for number in range(8)])
    journal.close()
    file, offset = segment_of(folder, inner[3])
    hurt(file, offset + 12)
    assert holt("repair", folder, "--yes").exit_code == 0

    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    with pytest.raises(RecordUnreadable) as gone:
        journal.run_reader()(array("Q", inner))
    journal.close()

    assert gone.value.position == inner[3]
    assert gone.value.dropped


def test_a_loss_across_the_position_of_a_checkpoint_leaves_a_record_to_start_from(folder: Path) -> None:
    positions = written(folder, live=1)
    (mark,) = folder.glob("*.ckpt")
    file = max(path for path in folder.glob("*.seg") if int(path.stem, 16) < int(mark.stem, 16))
    following = min((int(path.stem, 16) for path in folder.glob("*.seg") if path > file), default=1 << 62)
    with file.open("r+b") as opened:
        opened.truncate(HEADER_SIZE + 50)

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert numbers(folder) == [number for number, at in enumerate(positions) if at >= following]
