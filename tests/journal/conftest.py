"""A PostgreSQL for the replicated journal, one for all tests of this folder."""

from collections.abc import Iterator

import pytest

from postgres import Cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster.create()
    finally:
        cluster.destroy()
