"""replica_min_standbys: nothing is confirmed while PostgreSQL has too few synchronous standbys."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica_support import PATIENCE, Member, new_log

from holtmq.journal import JournalFailed
from holtmq.journal.replica.session import Session
from holtmq.journal.replica.store import LogStore
from postgres import Cluster


@pytest.fixture
def standby(postgres: Cluster) -> Iterator[Cluster]:
    """What is to become the synchronous standby of the tests' PostgreSQL, for this test."""
    standby = Cluster()
    try:
        yield standby
    finally:
        postgres.configure("synchronous_standby_names", None)
        standby.destroy()


def test_confirms_wait_until_postgresql_has_a_synchronous_standby(
    postgres: Cluster, standby: Cluster, tmp_path: Path
) -> None:
    log = new_log(postgres.url, min_standbys=1)
    owner = Member(log, tmp_path / "a").own()
    store = LogStore(Session(postgres.url, 10.0, "test"), log.name)
    store.open(create=False)
    told: list[JournalFailed | None] = []
    owner.journal.append(20, b"waits")
    owner.journal.on_durable(told.append)
    beat = store.state().beat
    committing = threading.Thread(target=owner.journal.flush, name="commit", daemon=True)

    committing.start()
    deadline = time.monotonic() + PATIENCE
    while store.state().beat < beat + 3:  # the owner lives, and looks again and again
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before = (list(told), store.end())
    standby.create_standby_of(postgres, "second")
    postgres.configure("synchronous_standby_names", "second")
    committing.join(PATIENCE)

    assert before == ([], 0)
    assert told == [None]
    assert store.end() > 0
    store.session.close()
    owner.end()
