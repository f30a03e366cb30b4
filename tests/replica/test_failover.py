"""Two nodes, a PostgreSQL, clients at both doors, and every fault of the list: nothing confirmed is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from rich.console import Console

from failover_soak import TAKEOVER_AFTER, every_fault, odd
from holtmq.verify.replica.faults import Fault
from holtmq.verify.replica.judge import Options, ReplicaJudge
from holtmq.verify.replica.report import ReplicaReport, show
from postgres import Cluster, Pair

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.xdist_group("failover")]

SEED = int(os.environ.get("HOLT_TEST_FAILOVER_SEED") or Random().randrange(1_000_000))
ROUNDS = len(Fault)  # make soak-failover brings more


@pytest.fixture
def pair() -> Iterator[Pair]:
    """It is killed and started again, and fails over."""
    pair = Pair()
    try:
        yield pair.create()
    finally:
        pair.destroy()


async def judge(options: Options) -> ReplicaReport:
    trial = ReplicaJudge(options)
    try:
        return await trial.run()
    finally:
        print(f"HOLT_TEST_FAILOVER_SEED={options.seed}")
        show(trial.report, Console())


@pytest.mark.timeout(240 + 20 * ROUNDS)
async def test_no_fault_loses_what_was_confirmed_or_lets_two_nodes_confirm(
    pair: Pair, tmp_path: Path
) -> None:
    options = every_fault(pair, tmp_path, ROUNDS, SEED)

    report = await judge(replace(options, most_before=100, far_behind=400))

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


async def test_an_owner_that_gives_up_although_it_owns_the_log_is_found(
    postgres: Cluster, tmp_path: Path
) -> None:
    options = Options(
        postgres.url,
        rounds=10,  # the answer that is lost may also be that of a heartbeat
        seed=SEED,
        folder=tmp_path,
        faults=(Fault.ANSWER_LOST,),
        takeover_after=60.0,  # no node is replaced because it is slow
        command=odd("gives_up"),
        stop_at_failure=True,
    )

    report = await judge(options)

    assert report.needless_ends == {Fault.ANSWER_LOST: 1}
    assert not report.lost


async def test_nodes_that_do_not_answer_are_a_finding_and_do_not_hold_up_the_check(
    postgres: Cluster, tmp_path: Path
) -> None:
    options = Options(
        postgres.url,
        rounds=2,
        seed=SEED,
        folder=tmp_path,
        faults=(Fault.KILL,),
        takeover_after=TAKEOVER_AFTER,
        command=odd("falls_silent"),
        stop_at_failure=True,
        patience_seconds=5.0,
    )

    report = await judge(options)

    # On a slow machine it also takes longer to create the queues.
    expected = (
        "creating the queues took more than 5 s|what was confirmed could not be read: it took more than 5 s"
    )
    assert re.fullmatch(expected, report.examples[0])
