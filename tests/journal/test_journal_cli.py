"""``holt journal check | dump | repair`` on real folders."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holtmq.cli.journal import journal as command
from holtmq.journal import JournalCorrupt, JournalOptions, open_journal
from holtmq.journal.segment import HEADER_SIZE

OPTIONS = JournalOptions(segment_bytes=2048)
BODY = b"0123456789" * 5


def holt(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def written(folder: Path, count: int = 60, live: int = 0) -> list[int]:
    """Positions of the records; with ``live``, a checkpoint half way that still needs every ``live``-th."""
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    positions: list[int] = []
    for number in range(count):
        positions.append(journal.append(20, b"%04d" % number + BODY))
        if number % 5 == 0:
            journal.flush()
        if live and number == count // 2:
            journal.flush()
            journal.checkpoint([(40, b"state")], [array("Q", positions[::live])])
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
    found = [int(payload[:4]) for _, _, payload in recovery.records]
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


def test_a_dump_lists_positions_kinds_and_sizes(folder: Path) -> None:
    positions = written(folder)

    lines = [json.loads(line) for line in holt("dump", folder, "--json", "--payload").output.splitlines()]

    assert [line["position"] for line in lines] == positions
    assert {line["kind"] for line in lines} == {20}
    assert [bytes.fromhex(line["payload"])[:4] for line in lines] == [b"%04d" % i for i in range(60)]
    text = holt("dump", folder, "--from", positions[50]).output.splitlines()
    assert len(text) == 10
    assert holt("dump", folder, "--kind", 21).output == ""


def test_a_dump_shows_checkpoints_and_compacted_segments(folder: Path) -> None:
    positions = written(folder, live=10)

    lines = [json.loads(line) for line in holt("dump", folder, "--json").output.splitlines()]

    assert lines[0]["position"] is None
    assert lines[0]["kind"] == 40
    assert {positions[0], positions[10], positions[59]} <= {line["position"] for line in lines}


def test_damage_in_the_tail_is_found_refused_and_cut_with_a_backup(folder: Path) -> None:
    positions = written(folder)
    file, offset = segment_of(folder, positions[23])
    before = {path.name: path.read_bytes() for path in folder.glob("*.seg")}
    hurt(file, offset + 20)
    damaged = file.read_bytes()
    found = holt("check", folder)
    assert found.exit_code == 1
    assert f"DAMAGE in {file.name} at offset {offset} (position {positions[23]})" in found.output
    with pytest.raises(JournalCorrupt, match="holt journal repair"):
        numbers(folder)

    asked = holt("repair", folder)
    assert asked.exit_code == 1
    assert "Nothing was changed" in asked.output
    assert file.read_bytes() == damaged
    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert f"Cut the log at position {positions[23]}" in done.output
    assert numbers(folder) == list(range(23))
    side = folder / f"{file.name}.from-{offset}.removed"
    assert side.read_bytes() == damaged[offset:]
    for name, content in before.items():  # later segments are kept whole beside
        if name > file.name:
            assert (folder / f"{name}.removed").read_bytes() == content
    assert holt("check", folder).exit_code == 0
    assert "Nothing to repair" in holt("repair", folder, "--yes").output


def test_readable_records_behind_the_damage_are_counted(folder: Path) -> None:
    positions = written(folder)
    file, offset = segment_of(folder, positions[51])
    hurt(file, offset + 20)
    # Records can be told from rubbish again behind the next SYNC record: a new commit's or a new segment's.
    following = min(int(path.stem, 16) for path in folder.glob("*.seg") if path > file)
    readable = [position for position in positions if position > min(following, positions[55])]
    assert 4 <= len(readable) < 8

    output = holt("repair", folder).output

    assert f"and {len(readable)} records behind it that are still readable" in output
    assert f"({len(readable) * 54} bytes, positions {readable[0]} to {readable[-1]})" in output


def test_records_of_the_damaged_commit_itself_are_not_counted_as_readable(folder: Path) -> None:
    positions = written(folder)
    file, offset = segment_of(folder, positions[57])
    hurt(file, offset + 20)

    assert "and 0 records behind it" in holt("repair", folder).output


def test_a_damaged_body_of_a_waiting_message_costs_that_message_alone(folder: Path) -> None:
    positions = written(folder, live=2)
    file, offset = segment_of(folder, positions[4])
    hurt(file, offset + 20)
    assert holt("check", folder).exit_code == 1

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert str(positions[4]) in done.output
    assert (folder / f"{file.name}.removed").exists()
    assert holt("check", folder).exit_code == 0
    journal, recovery = open_journal(folder, OPTIONS)
    assert [int(payload[:4]) for _, _, payload in recovery.records] == list(range(31, 60))
    assert journal.read(positions[8]) == (20, b"0008" + BODY)
    with pytest.raises(JournalCorrupt):
        journal.read(positions[4])
    journal.close()


def test_a_lost_header_at_the_end_is_cut_off_as_a_whole(folder: Path) -> None:
    written(folder)
    last = max(folder.glob("*.seg"))
    whole = len(numbers(folder))
    hurt(last, 10)
    assert holt("check", folder).exit_code == 1

    done = holt("repair", folder, "--yes")

    assert done.exit_code == 0, done.output
    assert (folder / f"{last.name}.removed").exists()
    left = numbers(folder)
    assert left == list(range(len(left)))
    assert 0 < len(left) < whole


def test_a_missing_segment_in_the_tail_is_cut_at_the_hole(folder: Path) -> None:
    written(folder)
    segments = sorted(folder.glob("*.seg"))
    segments[1].unlink()
    assert holt("check", folder).exit_code == 1

    assert holt("repair", folder, "--yes").exit_code == 0

    left = numbers(folder)
    assert left == list(range(len(left)))


def test_a_bad_checkpoint_over_a_whole_log_is_put_aside(folder: Path) -> None:
    journal, recovery = open_journal(folder, OPTIONS)
    recovery.drain()
    journal.append(20, b"0000")
    journal.flush()
    journal.checkpoint([(40, b"state")], [])
    journal.close()
    (mark,) = folder.glob("*.ckpt")
    hurt(mark, 70)
    assert holt("check", folder).exit_code == 1

    assert holt("repair", folder, "--yes").exit_code == 0

    assert (folder / f"{mark.name}.removed").exists()
    assert numbers(folder) == [0]


def test_what_cannot_be_repaired_is_said_and_left_alone(folder: Path) -> None:
    written(folder, live=10)
    (mark,) = folder.glob("*.ckpt")
    hurt(mark, 70)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}

    result = holt("repair", folder, "--yes")

    assert result.exit_code == 1
    assert "Cannot repair" in result.output
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"} == before
