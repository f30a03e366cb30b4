"""Looking for a planted bug: which seeds to try, and how many.

Owns: the search. Must not touch: the bugs, which each test plants in its own way.
"""

from typing import Final

import pytest

from simulation import BrokenPromise, simulate

MOST_HISTORIES: Final = 5_000  # to find a planted bug; the rarest took 293


def find(*words: str, first: int = 0) -> None:
    """Simulate until a seed finds the bug and says one of these words; fails when that takes too many.

    What a bug leaves behind may be found first, in other words. Which seed meets it, and how, changes with
    every change of the broker: a ``first`` seed shortly before the one that last met it only saves time.
    """
    others: list[str] = []
    for seed in range(first, first + MOST_HISTORIES):
        try:
            simulate(seed)
        except BrokenPromise as broken:
            if any(one in str(broken) for one in words):
                return
            others.append(str(broken))
    pytest.fail(f"not found in {MOST_HISTORIES} histories, but: {others[:3]}")
