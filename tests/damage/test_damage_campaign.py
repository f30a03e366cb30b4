"""The short form of the campaign: ``python -m damage`` runs hundreds, each with a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from .campaign import KINDS, Bases, End, run_case

pytestmark = [pytest.mark.crash, pytest.mark.xdist_group("damage")]  # what they damage is written once

_IN_PROCESS = 4 * len(KINDS)
_WITH_PROCESSES = 3  # as a user runs the broker


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases.written(tmp_path_factory.mktemp("bases"), rounds=4)


@pytest.mark.parametrize("seed", range(_IN_PROCESS + _WITH_PROCESSES))
def test_damage_is_never_silent_and_never_wedges(seed: int, bases: Bases, tmp_path: Path) -> None:
    kind = list(KINDS)[seed % len(KINDS)]

    case = run_case(seed, bases, tmp_path, kind, in_process=seed < _IN_PROCESS)

    assert case.end in (End.WHOLE, End.SAID, End.REFUSED), str(case)
