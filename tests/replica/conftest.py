"""A PostgreSQL for the tests of failover, one for all of them, and a log of its own for each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postgres import Cluster

sys.path.insert(0, str(Path(__file__).parent))

from polling_owner import Polling
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


@pytest.fixture
def owner(
    postgres: Cluster, tmp_path: Path, members: list[Member], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Polling]:
    made = Polling(postgres.url, tmp_path / "a", monkeypatch)
    members.append(made.member)
    yield made
    made.journal.close()


@pytest.fixture
def is_stored_once(owner: Polling, tmp_path: Path, members: list[Member]) -> Callable[[], bool]:
    """Whether everything was confirmed once, and a node with an empty folder finds it in PostgreSQL once."""

    def check() -> bool:
        owner.journal.close()
        again = Member(owner.replica, tmp_path / "b").own()
        members.append(again)
        return owner.told == [[None]] * len(owner.written) and again.payloads == owner.written

    return check
