"""The short form of the campaign: ``python -m damage`` runs hundreds, each with a process of its own."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from .brokers import BrokerHere
from .campaign import Bases, Case, End, judge, run_case
from .folder import PLACES, Found, read_back
from .kinds import KINDS

pytestmark = [pytest.mark.crash, pytest.mark.xdist_group("damage")]  # what they damage is written once

_IN_PROCESS = len(KINDS)
_WITH_PROCESSES = 3  # as a user runs the broker


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases.written(tmp_path_factory.mktemp("bases"), rounds=4)


@pytest.mark.parametrize("seed", range(_IN_PROCESS + _WITH_PROCESSES))
def test_damage_is_never_silent_and_never_wedges(seed: int, bases: Bases, tmp_path: Path) -> None:
    kind = list(KINDS)[seed % len(KINDS)]

    case = run_case(seed, bases, tmp_path, kind, in_process=seed < _IN_PROCESS)

    assert case.end in (End.WHOLE, End.SAID, End.REFUSED), str(case)


@pytest.fixture(scope="module")
def found(bases: Bases, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What clients get from an undamaged folder."""
    folder = tmp_path_factory.mktemp("undamaged")
    shutil.copytree(bases.folders[0].folder, folder, dirs_exist_ok=True)
    broker = BrokerHere(folder)
    try:
        return read_back(broker)
    finally:
        broker.kill()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("said", ["", "Give up 9 bytes at position 1 (0.seg): the checksum does not match."])
def test_one_message_that_is_lost_or_changed_in_silence_is_seen(
    place: str, said: str, bases: Bases, found: Found
) -> None:
    base = bases.folders[0]
    unharmed = base.places.compared_with(base.folder)
    name = sorted(found.messages[place])[-1]
    lost, changed = copy.deepcopy(found), copy.deepcopy(found)
    del lost.messages[place][name]
    changed.messages[place][name] += "?"

    ends = [judge(Case(0, ""), base, unharmed, seen, [], said) for seen in (found, lost, changed)]

    assert ends == [End.WHOLE, End.SILENT, End.SILENT]
