"""What a replica in PostgreSQL costs, and how long a takeover takes. ``python -m bench.replica``

Owns: the figures of bench/README.md, "Failover", each as a ratio against something measured in the same run.
Must not touch: a PostgreSQL that already runs here.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
from bench import debian
from bench.amqp import holt
from bench.postgres import postgres
from bench.rabbitmq import free_port, rabbitmq_cluster
from bench.replica_window import ONE, cost_of_polling, window_one
from rich.console import Console
from rich.table import Table

from holtmq.load.errors import LoadError
from holtmq.load.link import Address, Link
from holtmq.load.rounds import run_round
from holtmq.load.workloads import Mode, Workload
from holtmq.wire.tables import FieldValue

_SMALL = Workload("durable", "durable, confirms", Mode.PUBLISH, body_bytes=16, durable=True, window=5000)
_POLL_SECONDS = 0.02
_PARTS = ("throughput", "window", "cpu", "takeover", "quorum")


def main() -> None:
    command()


@click.command()
@click.option("--rounds", default=2, show_default=True, help="Rounds of each figure, in turn.")
@click.option("--seconds", default=3.0, show_default=True, help="Measured time of a round.")
@click.option("--waiting", default=1_000_000, show_default=True, help="Messages that wait at the takeover.")
@click.option("--takeover-after", default=5.0, show_default=True)
@click.option("--only", type=click.Choice(_PARTS), multiple=True, help="Only this part; may be repeated.")
@click.option("--quorum/--no-quorum", default=True, show_default=True, help="Also three RabbitMQ nodes.")
def command(
    rounds: int, seconds: float, waiting: int, takeover_after: float, only: tuple[str, ...], quorum: bool
) -> None:
    """The replica beside the local journal, and beside bare rows in the same PostgreSQL."""
    parts = set(only or _PARTS)
    if not quorum:
        parts.discard("quorum")
    console = Console(width=160)
    table = Table("figure", "replicated", "beside", "ratio", "wanted")
    many: list[float] = []
    one: list[float] = []
    with postgres() as server:
        if parts & {"throughput", "quorum"}:
            many = _throughput(server.conninfo, rounds, seconds, table)
        if parts & {"window", "quorum"}:
            one = window_one(server.conninfo, rounds, seconds, console)
        if "cpu" in parts:
            cost_of_polling(server.conninfo, rounds, seconds, console)
        if "takeover" in parts:
            for fault in (signal.SIGKILL, signal.SIGSTOP):
                _takeover(server.conninfo, fault, waiting, takeover_after, seconds, table)
    if "quorum" in parts:
        _beside_quorum_queue(many, one, rounds, seconds, table)
    if table.row_count:
        console.print(table)


def _rate(url: str, workload: Workload, seconds: float) -> float:
    return run_round(Address.parse(url), workload, seconds, 0.5).rate


def _throughput(conninfo: str, rounds: int, seconds: float, table: Table) -> list[float]:
    ours, local = [], []
    for number in range(rounds):
        with holt() as plain:
            local.append(_rate(plain.url, _SMALL, seconds))
        with holt("--journal-replica", conninfo, "--journal-replica-name", f"rate-{number}") as node:
            ours.append(_rate(node.url, _SMALL, seconds))
    _row(table, "durable confirms a second, window 5,000, beside the local journal", ours, local, ">= 0.5")
    return ours


def _beside_quorum_queue(
    many: list[float], one: list[float], rounds: int, seconds: float, table: Table
) -> None:
    """The same workloads on a quorum queue with a member on each of three RabbitMQ nodes."""
    quorum: dict[str, FieldValue] = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3}
    with rabbitmq_cluster() as url:
        for workload, ours in ((_SMALL, many), (ONE, one)):
            theirs = [_rate(url, replace(workload, queue_arguments=quorum), seconds) for _ in range(rounds)]
            label = f"confirms a second, window {workload.window:,}, beside a quorum queue on 3 nodes"
            _row(table, label, ours, theirs, "")


def _takeover(
    conninfo: str, fault: signal.Signals, waiting: int, takeover_after: float, seconds: float, table: Table
) -> None:
    """Fill a queue, publish on, kill or freeze the owner; how long until the standby takes clients."""
    with debian.folder("takeover") as folder:
        options = ["--journal-replica", conninfo, "--journal-replica-name", f"takeover-{fault.name}"]
        options += ["--journal-takeover-after", str(takeover_after)]
        with _node(folder, "one", options) as (owner, url, _):
            _until_ready(url)
            with _node(folder, "two", options) as (_, other, health):
                _until_standing_by(health)
                _publish(url, waiting).wait()
                load = _publish(url, 10**9)
                worst = 0.0
                deadline = time.monotonic() + seconds
                while time.monotonic() < deadline:
                    worst = max(worst, float(str(_health(health)["behind_seconds"])))
                    time.sleep(_POLL_SECONDS)
                owner.send_signal(fault)
                began = time.perf_counter()
                _until_ready(other)
                took = time.perf_counter() - began
                owner.kill()
                load.wait()
    limit = takeover_after + 1
    what = "kill -9" if fault is signal.SIGKILL else "a freeze"
    label = f"seconds from {what} until the standby serves, {waiting:,} messages waiting, under load"
    table.add_row(label, f"{took:.2f}", f"{limit:.2f}", f"{took / limit:.2f}", "<= 1")
    table.add_row("seconds the standby was behind at most, under load", f"{worst:.2f}", "", "", "no growth")


@contextmanager
def _node(folder: Path, name: str, options: list[str]) -> Iterator[tuple[subprocess.Popen[bytes], str, int]]:
    amqp, http = free_port(), free_port()
    command = [
        sys.executable,
        "-m",
        "holtmq",
        "serve",
        "--data-dir",
        str(folder / name),
        "--amqp-host",
        "127.0.0.1",
    ]
    command += ["--amqp-port", str(amqp), "--http-host", "127.0.0.1", "--http-port", str(http), *options]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process, f"amqp://guest:guest@127.0.0.1:{amqp}/", http
    finally:
        process.kill()
        process.wait()


def _publish(url: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bench.replica_load", url, str(count)])


def _until_ready(url: str) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            Link(Address.parse(url)).close()
            return
        except LoadError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def _until_standing_by(port: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            if _health(port)["status"] == "standby":
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise SystemExit("the standby did not start")
        time.sleep(_POLL_SECONDS)


def _health(port: int) -> dict[str, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
        found: dict[str, object] = json.load(answer)
        return found


def _row(table: Table, label: str, ours: list[float], theirs: list[float], wanted: str) -> None:
    mine, other = statistics.median(ours), statistics.median(theirs)
    table.add_row(label, f"{mine:,.0f}", f"{other:,.0f}", f"{mine / other:.2f}", wanted)


if __name__ == "__main__":
    main()
