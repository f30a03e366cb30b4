"""Two nodes, a PostgreSQL, clients at both doors, and every fault of the list: nothing confirmed is lost."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from holtmq.verify.replica.faults import REPEATABLE, Fault
from holtmq.verify.replica.judge import Options, ReplicaJudge
from holtmq.verify.replica.report import ReplicaReport, show
from postgres import Cluster

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.xdist_group("failover")]

SEED = int(os.environ.get("HOLT_TEST_FAILOVER_SEED") or Random().randrange(1_000_000))
ROUNDS = int(os.environ.get("HOLT_TEST_FAILOVER_ROUNDS") or len(REPEATABLE))
ODD_NODE = str(Path(__file__).with_name("odd_node.py"))
TAKEOVER_AFTER = 1.0


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Cluster]:
    """It is killed and started again."""
    cluster = Cluster()
    try:
        yield cluster.create()
    finally:
        cluster.destroy()


def odd(oddity: str) -> tuple[str, ...]:
    return sys.executable, ODD_NODE, oddity, "serve"


async def judge(options: Options) -> ReplicaReport:
    trial = ReplicaJudge(options)
    try:
        return await trial.run()
    finally:
        print(f"HOLT_TEST_FAILOVER_SEED={options.seed}")
        show(trial.report, Console())


@pytest.mark.timeout(300 + 60 * ROUNDS)
async def test_no_fault_loses_what_was_confirmed_or_lets_two_nodes_confirm(
    own_postgres: Cluster, tmp_path: Path
) -> None:
    def restart() -> None:
        own_postgres.kill()
        own_postgres.start()

    options = Options(
        own_postgres.url,
        rounds=ROUNDS,
        seed=SEED,
        folder=tmp_path,
        faults=REPEATABLE,
        takeover_after=TAKEOVER_AFTER,
        far_behind=500 if len(REPEATABLE) == ROUNDS else 2_000,
        command=odd("jumping_clock"),
        restart_postgres=restart,
    )

    report = await judge(options)

    assert report.rounds == ROUNDS
    assert report.confirmed > 20 * ROUNDS
    assert report.passed, report.examples


async def test_without_fencing_two_owners_are_found(postgres: Cluster, tmp_path: Path) -> None:
    options = Options(
        postgres.url,
        rounds=1,
        seed=SEED,
        folder=tmp_path,
        faults=(Fault.FREEZE,),
        takeover_after=TAKEOVER_AFTER,
        command=odd("no_fencing"),
        end_seconds=3.0,
    )

    report = await judge(options)

    assert report.two_owners > 0


async def test_a_confirm_before_the_commit_is_found_as_a_loss(postgres: Cluster, tmp_path: Path) -> None:
    options = Options(
        postgres.url,
        rounds=3,
        seed=SEED,
        folder=tmp_path,
        faults=(Fault.KILL,),
        takeover_after=TAKEOVER_AFTER,
        command=odd("confirm_before_commit"),
        stop_at_failure=True,
    )

    report = await judge(options)

    assert report.lost > 0


async def test_a_primary_that_fails_over_to_its_synchronous_standby_loses_nothing(tmp_path: Path) -> None:
    primary, standby = Cluster(), Cluster()
    clusters = [primary, standby]
    try:
        primary.create("synchronous_standby_names = 'second'\nsynchronous_commit = on\n")
        await asyncio.to_thread(standby.create_standby_of, primary, "second")

        def fail_over() -> str:
            primary.kill()
            standby.promote()
            standby.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            standby.execute("SELECT pg_reload_conf()")
            return standby.url

        options = Options(
            primary.url,
            rounds=1,
            seed=SEED,
            folder=tmp_path,
            faults=(Fault.POSTGRES_FAILOVER,),
            takeover_after=TAKEOVER_AFTER,
            fail_over_postgres=fail_over,
        )

        report = await judge(options)

        assert report.confirmed > 0
        assert report.passed, report.examples
    finally:
        for cluster in clusters:
            cluster.destroy()
