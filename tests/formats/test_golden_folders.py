"""Folders that former versions wrote: each opens with this one, and nothing in it is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from golden_folder import GOLDEN, read

from holtmq.broker.records.changes import Kind
from holtmq.broker.records.rehearsal import live_positions
from holtmq.journal.disk import OsDisk
from holtmq.journal.dumping import dump
from holtmq.journal.inspection import check
from holtmq.journal.viewing import ViewingJournal

_VERSIONS = sorted(path.stem for path in GOLDEN.glob("*.json"))
_FIRST_VERSION_WITH = {Kind.PARTITIONED_ROWS: "0.1-format-4"}  # kinds that were added later


@pytest.fixture(params=_VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _copy(version: str, folder: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / version, folder / "data"))


def test_everything_is_found_again(version: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{version}.json").read_text())

    found = read(_copy(version, tmp_path))

    assert found == expected


def test_nothing_in_it_counts_as_damage(version: str, tmp_path: Path) -> None:
    disk = OsDisk(_copy(version, tmp_path))

    assert check(disk, lambda recovery: live_positions(ViewingJournal(disk), recovery)).problems == []


def test_it_holds_every_kind_of_record_that_its_version_wrote(version: str, tmp_path: Path) -> None:
    disk = OsDisk(_copy(version, tmp_path))

    kinds = {record.kind for record in dump(disk, check(disk))}

    # Damage cannot be written on purpose; its record has a test of its own.
    expected = {kind for kind in Kind if version >= _FIRST_VERSION_WITH.get(kind, "")} - {Kind.DAMAGED}
    assert expected <= kinds
