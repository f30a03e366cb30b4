"""The short form of the campaign: ``python -m damage`` runs hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from .campaign import KINDS, Bases, End, run_case

_SEEDS = range(14)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases.written(tmp_path_factory.mktemp("bases"), rounds=4)


@pytest.mark.crash
@pytest.mark.parametrize("seed", _SEEDS)
def test_damage_is_never_silent_and_never_wedges(seed: int, bases: Bases, tmp_path: Path) -> None:
    kind = list(KINDS)[seed % len(KINDS)]

    case = run_case(seed, bases, tmp_path, kind)

    assert case.end in (End.WHOLE, End.SAID, End.REFUSED), str(case)
