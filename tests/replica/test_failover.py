"""Two nodes, a PostgreSQL, clients at both doors, and every fault of the list: nothing confirmed is lost."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest
from odd_node import set_clock
from rich.console import Console

from holtmq.verify.replica.faults import Fault
from holtmq.verify.replica.judge import Options, ReplicaJudge
from holtmq.verify.replica.report import ReplicaReport, show
from postgres import Cluster, Pair

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.xdist_group("failover")]

SEED = int(os.environ.get("HOLT_TEST_FAILOVER_SEED") or Random().randrange(1_000_000))
IS_SHORT = "HOLT_TEST_FAILOVER_ROUNDS" not in os.environ
ROUNDS = int(os.environ.get("HOLT_TEST_FAILOVER_ROUNDS") or len(Fault))
ODD_NODE = str(Path(__file__).with_name("odd_node.py"))
TAKEOVER_AFTER = 1.0


@pytest.fixture
def pair() -> Iterator[Pair]:
    """It is killed and started again, and fails over."""
    pair = Pair()
    try:
        yield pair.create()
    finally:
        pair.destroy()


def odd(oddity: str, *arguments: str) -> tuple[str, ...]:
    return sys.executable, ODD_NODE, oddity, *arguments, "serve"


async def judge(options: Options) -> ReplicaReport:
    trial = ReplicaJudge(options, show_progress)
    try:
        return await trial.run()
    finally:
        print(f"HOLT_TEST_FAILOVER_SEED={options.seed}")
        show(trial.report, Console())


def show_progress(report: ReplicaReport) -> None:
    """In the long form, one line for each fault."""
    print(f"{report.rounds} {report.last_fault}: {report.broken} broken so far", flush=True)


@pytest.mark.timeout(300 + 60 * ROUNDS)
async def test_no_fault_loses_what_was_confirmed_or_lets_two_nodes_confirm(
    pair: Pair, tmp_path: Path
) -> None:
    options = Options(
        pair.url,
        rounds=ROUNDS,
        seed=SEED,
        folder=tmp_path,
        faults=tuple(Fault),
        takeover_after=TAKEOVER_AFTER,
        most_before=100 if IS_SHORT else 300,
        far_behind=400 if IS_SHORT else 2_000,
        command=odd("jumping_clock", str(tmp_path)),
        set_clock=partial(set_clock, tmp_path),
        restart_postgres=pair.restart,
        fail_over_postgres=pair.fail_over,
    )

    report = await judge(options)

    assert report.rounds == ROUNDS
    assert report.confirmed > 20 * ROUNDS
    assert report.passed, report.examples


async def test_without_fencing_two_owners_are_found(postgres: Cluster, tmp_path: Path) -> None:
    options = Options(
        postgres.url,
        rounds=10,
        seed=SEED,
        folder=tmp_path,
        faults=(Fault.FREEZE,),
        takeover_after=TAKEOVER_AFTER,
        command=odd("no_fencing"),
        stop_at_failure=True,
    )

    report = await judge(options)

    assert report.two_owners > 0


async def test_a_confirm_before_the_commit_is_found_as_a_loss(postgres: Cluster, tmp_path: Path) -> None:
    options = Options(
        postgres.url,
        rounds=10,
        seed=SEED,
        folder=tmp_path,
        faults=(Fault.KILL,),
        takeover_after=TAKEOVER_AFTER,
        command=odd("confirm_before_commit"),
        stop_at_failure=True,
    )

    report = await judge(options)

    # Messages are lost, or even the exchange that they were published to.
    assert report.lost > 0 or any("could not be read" in example for example in report.examples)
