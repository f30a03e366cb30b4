"""The durability check passes on the broker we have, and fails on brokers that break their word."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from holtmq.cli import main
from holtmq.verify.judge import Judge, Options
from holtmq.verify.report import Report

BROKEN = Path(__file__).with_name("broken_subject.py")

pytestmark = [pytest.mark.crash, pytest.mark.timeout(480)]


async def judge(tmp_path: Path, rounds: int, fault: str = "", seed: int = 11, **options: object) -> Report:
    command = (sys.executable, str(BROKEN), fault) if fault else Options().command
    options = {"patience_seconds": 120.0, **options}
    chosen = Options(
        rounds=rounds,
        seed=seed,
        folder=tmp_path,
        round_seconds=0.2,
        command=command,
        **options,  # type: ignore[arg-type]
    )
    return await Judge(chosen).run()


async def caught(tmp_path: Path, fault: str, how: Callable[[Report], bool]) -> Report:
    """A report that names the fault as it should be named.

    Every run has to fail. What a fault leaves behind may be found first, such as a queue that cannot be
    read, and ends the run; then another run follows.
    """
    examples: list[str] = []
    for seed in range(11, 17):
        report = await judge(tmp_path, rounds=60, fault=fault, seed=seed, stop_at_failure=True)
        assert not report.passed
        if how(report):
            return report
        examples += report.examples
    pytest.fail(f"{fault} was only found as {examples}")


async def test_the_broker_survives_kills_and_power_cuts(tmp_path: Path) -> None:
    report = await judge(tmp_path, rounds=6)

    assert report.passed, report
    assert report.rounds == 6
    assert (report.kills, report.power_cuts) == (2, 4)
    for workload in (report.amqp, report.http):
        assert min(workload.confirmed, workload.transactions, workload.acks) > 0
    assert min(report.intake.confirmed, report.intake.acks) > 0
    for workload in (report.amqp, report.http, report.intake):
        assert 0 < workload.confirm_ms.p50 <= workload.confirm_ms.p99
    assert report.fsyncs_per_second > 0
    assert report.recovery_ms.p50 > 0
    assert not report.not_observed
    assert report.syncs > 20
    assert any("seen from outside the broker" in sentence for sentence in report.proved)
    assert os.listdir(tmp_path) == []


async def test_a_broker_that_confirms_before_it_syncs_is_caught(tmp_path: Path) -> None:
    report = await caught(tmp_path, "early", lambda report: report.lost > 0)

    assert any(example.startswith("lost: ") for example in report.examples)


async def test_a_broker_whose_syncs_do_nothing_is_caught_where_its_calls_can_be_seen(tmp_path: Path) -> None:
    report = await caught(tmp_path, "never-syncs", lambda report: report.unseen_syncs > 0)

    assert any("never asked of the kernel" in example for example in report.examples)
    assert any("is not on the disk" in sentence for sentence in report.proved)


async def test_a_run_that_could_not_see_the_calls_says_so(tmp_path: Path) -> None:
    report = await judge(tmp_path, rounds=2, fault="never-syncs", observe=False)

    assert report.unseen_syncs == 0
    assert "A broker whose fdatasync does nothing would pass." in report.not_seen[0]
    assert not any("seen from outside" in sentence for sentence in report.proved)


async def test_a_broker_that_gives_back_what_was_committed_is_caught(tmp_path: Path) -> None:
    # Lost rows end the reading, are missing in what could be read, or make the broker refuse a client.
    await caught(
        tmp_path,
        "unordered",
        lambda report: any(
            (report.intake.broken, report.amqp.broken, report.http.broken, report.refused_starts)
        ),
    )


async def test_a_broker_that_does_not_answer_is_a_finding_and_does_not_hold_up_the_check(
    tmp_path: Path,
) -> None:
    report = await judge(tmp_path, rounds=3, fault="silent", stop_at_failure=True, patience_seconds=2.0)

    assert not report.passed
    (example,) = report.examples  # on a slow machine it also takes longer to create the queues
    assert re.fullmatch(
        r"the queues could not be (created|read after a recovery): it took more than 2 s", example
    )


async def test_a_broker_that_does_not_stop_is_a_finding(tmp_path: Path) -> None:
    report = await judge(tmp_path, rounds=1, fault="never-stops", patience_seconds=5.0)

    assert not report.passed
    assert "the broker did not stop: it took more than 5 s" in report.examples


async def test_a_broker_that_forgets_acks_is_caught(tmp_path: Path) -> None:
    await caught(tmp_path, "acks", lambda report: report.amqp.undone_acks > 0)


async def test_a_broker_that_tears_transactions_is_caught(tmp_path: Path) -> None:
    # A delayed message is placed by such a record, too: torn there, it is lost or there twice.
    await caught(tmp_path, "torn", lambda report: report.amqp.broken > 0)


async def test_a_broker_that_answers_http_before_it_syncs_is_caught(tmp_path: Path) -> None:
    report = await caught(
        tmp_path, "http-early", lambda report: report.http.lost + report.http.undone_acks > 0
    )

    assert report.amqp.broken == 0


async def test_a_broker_that_forgets_how_far_a_group_came_is_caught(tmp_path: Path) -> None:
    await caught(tmp_path, "http-acks", lambda report: report.http.undone_acks > 0)


async def test_a_broker_that_tears_http_transactions_is_caught(tmp_path: Path) -> None:
    await caught(tmp_path, "http-torn", lambda report: report.http.torn_transactions > 0)


async def test_a_journal_that_never_syncs_fails_at_a_power_cut(tmp_path: Path) -> None:
    report = await judge(tmp_path, rounds=60, sync="never", stop_at_failure=True)

    assert not report.passed
    assert report.lost > 0


async def test_a_broker_that_does_not_start_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    options = Options(rounds=2, folder=tmp_path, command=(sys.executable, "-c", "raise SystemExit('no')"))

    report = await Judge(options).run()

    assert not report.passed
    assert report.examples == ["the broker did not start: status 1 no"]


def test_the_command_prints_a_report_and_its_status_says_pass(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["verify", "--rounds", "2", "--seed", "3", "--folder", str(tmp_path), "--json"]
    )

    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["passed"], report["rounds"], report["seed"], report["lost"]) == (True, 2, 3, 0)


def test_the_command_fails_when_a_promise_is_broken(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main,
        [
            "verify",
            "--rounds",
            "60",
            "--seed",
            "3",
            "--folder",
            str(tmp_path),
            "--journal-sync",
            "never",
            "--stop-at-failure",
        ],
    )

    assert result.exit_code == 1
    assert "FAILED" in result.output
