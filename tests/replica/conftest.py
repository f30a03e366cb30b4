"""A PostgreSQL for the tests of failover, one for all of them, and a log of its own for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postgres import Cluster

sys.path.insert(0, str(Path(__file__).parent))

from replica_support import Member


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster.create()
    finally:
        cluster.destroy()


@pytest.fixture
def members() -> Iterator[list[Member]]:
    """What a test adds to this list is ended after it."""
    made: list[Member] = []
    yield made
    for member in made:
        member.end()
