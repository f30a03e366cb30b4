"""Figures, ratios and reports from rounds that are known; processes that are our own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from holtmq.cli import main
from holtmq.load.comparison import ComparedRun, Figures
from holtmq.load.link import Address
from holtmq.load.measuring import Percentiles, Round, percentiles
from holtmq.load.processes import listener_pid, usage
from holtmq.load.report import as_html, as_json, as_markdown, as_table, new_report
from holtmq.testing import TestBroker


def outcome(name: str = "auto-ack") -> ComparedRun:
    ours = [Round(name, 1.0, rate, float(rate), 0.1, 3.0, 1.0, 40.0) for rate in (300, 100, 200)]
    theirs = [
        Round(name, 1.0, 50, 50.0, 0.1, 30.0, 1.0, 90.0, Percentiles(1000, 2000, 3000, 10)) for _ in range(3)
    ]
    return ComparedRun(name, "about", [Figures.of("Ours <1>", ours), Figures.of("Theirs", theirs)])


def test_rounds_become_their_median_and_ratios_follow() -> None:
    seen = outcome()

    assert (seen.figures[0].rate, seen.figures[0].lowest_rate, seen.figures[0].highest_rate) == (
        200,
        100,
        300,
    )
    assert seen.speed_ratio == 4
    assert seen.cpu_ratio == pytest.approx(0.1)


def test_one_broker_alone_has_no_ratio() -> None:
    alone = ComparedRun("auto-ack", "about", outcome().figures[:1])

    assert alone.speed_ratio is None
    assert alone.cpu_ratio is None


def test_percentiles_are_ranks_of_what_was_seen() -> None:
    assert percentiles([]) is None
    assert percentiles([ns * 1000 for ns in range(1000, 0, -1)]) == Percentiles(501, 991, 1000, 1000)


def test_the_table_shows_rates_ratios_and_failures() -> None:
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    failed = ComparedRun("deep", "about", [], failures=["Theirs: not one message"])

    console.print(as_table([outcome(), failed]))

    text = console.export_text()
    console.file.close()
    assert "4.00x" in text
    assert "10%" in text
    assert "Theirs: not one message" in text


def test_json_markdown_and_html_carry_the_figures_and_escape_names() -> None:
    report = new_report(
        ["Ours <1>", "Theirs"], [outcome()], rounds=3, seconds=1, warm_up=0, command="holt bench"
    )

    assert json.loads(as_json(report))["outcomes"][0]["figures"][0]["rate"] == 200
    assert "| auto-ack | 200 | 50 | 4.00 |" in as_markdown(report.outcomes)
    page = as_html(report)
    assert "Ours &lt;1&gt;" in page
    assert "Ours <1>" not in page
    assert page.count("<rect") == 4  # two bars, two colours of the legend
    assert "http" not in page


def test_the_process_behind_a_port_is_found_with_its_children() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        assert listener_pid(Address("127.0.0.1", port)) == os.getpid()
    assert listener_pid(Address("127.0.0.1", port)) is None
    assert listener_pid(Address("192.0.2.1", port)) is None


def test_a_childs_work_counts_for_its_parent() -> None:
    before = usage(os.getpid())
    work = "sum(range(10**7)); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()

    after = usage(os.getpid())

    child.communicate(b"\n")
    assert after.cpu_seconds - before.cpu_seconds >= 0.05
    assert after.resident_bytes > before.resident_bytes


def test_bench_list_names_every_workload() -> None:
    lines = CliRunner().invoke(main, ["bench", "list"]).output.splitlines()

    assert {"auto-ack", "durable-confirms", "topic-1000", "deep"} <= {line.split()[0] for line in lines}


def test_bench_amqp_compares_two_brokers_and_writes_what_it_found(tmp_path: Path) -> None:
    with TestBroker() as ours, TestBroker() as theirs:
        arguments = ["bench", "amqp", "--url", ours.amqp_url, "--against", theirs.amqp_url]
        arguments += ["--workload", "auto-ack", "--seconds", "0.5", "--warm-up", "0", "--rounds", "1"]
        arguments += ["--json", str(tmp_path / "out.json"), "--html", str(tmp_path / "out.html")]
        result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0, result.output
    assert "auto-ack" in result.output
    written = json.loads((tmp_path / "out.json").read_bytes())
    assert [figures["rounds"] for figures in written["outcomes"][0]["figures"]] == [1, 1]
    assert "<svg" in (tmp_path / "out.html").read_text()


def test_a_broker_that_is_not_there_is_an_error_not_a_traceback() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"amqp://127.0.0.1:{nobody.getsockname()[1]}/"
        result = CliRunner().invoke(main, ["bench", "amqp", "--url", url])

    assert result.exit_code == 1
    assert "cannot connect" in result.output
