"""A pooler between the nodes and PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from replica_support import Member, new_log, until

from holtmq.journal.replica.errors import ReplicaRefused
from ports import free_port
from postgres import Cluster

pytestmark = pytest.mark.skipif(
    shutil.which("pgbouncer") is None, reason="scripts/setup-system.sh installs pgbouncer"
)
SETTINGS = """
[databases]
postgres = user=postgres host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = {mode}
unix_socket_dir =
"""


@contextmanager
def running(postgres: Cluster, mode: str) -> Iterator[str]:
    port, file = free_port(), postgres.folder / f"pgbouncer-{mode}.ini"
    file.write_text(SETTINGS.format(server=postgres.port, port=port, mode=mode))
    file.chmod(0o644)
    user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
    process = subprocess.Popen(["pgbouncer", "-q", file], user=user, cwd=postgres.folder)
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def answers() -> bool:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            return False
        return True

    try:
        until(answers, "PgBouncer listens")
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def pooler(postgres: Cluster) -> Iterator[Callable[[str], str]]:
    """The address of a PgBouncer in this mode."""
    with ExitStack() as stack:
        yield lambda mode: stack.enter_context(running(postgres, mode))


def test_a_pooler_in_session_mode_can_be_used(
    pooler: Callable[[str], str], tmp_path: Path, members: list[Member]
) -> None:
    owner = Member(new_log(pooler("session")), tmp_path / "a").own()
    members.append(owner)

    kept = owner.write(b"one", b"two")
    assert owner.journal.checkpoint([(40, b"state")], [array("Q", kept)])

    assert owner.journal.failed is None
    assert owner.journal.stats().checkpoint_failures == 0


def test_a_pooler_in_transaction_mode_is_refused(pooler: Callable[[str], str], tmp_path: Path) -> None:
    with pytest.raises(ReplicaRefused, match="pool_mode = transaction"):
        Member(new_log(pooler("transaction")), tmp_path / "a").own()
