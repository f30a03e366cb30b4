"""Makes ``core_support`` importable, and paging small enough to see.

Owns: fixtures of the work-queue core's tests.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from core_support import Bench, shrink_paging


@pytest.fixture
def bench() -> Bench:
    """A broker over a journal in memory."""
    return Bench()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue keeps a handful of messages in memory, so that a dozen is deep."""
    for module, name, value in shrink_paging():
        monkeypatch.setattr(module, name, value)
