"""The AMQP workloads on our broker and on RabbitMQ, side by side.

Owns: starting ours as users do (``holt serve``, files, fsync on). Must not touch: the figures.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import real_clients
from bench.rabbitmq import free_port, rabbitmq
from rich.console import Console

from holtmq.load.comparison import ComparedRun, Target, compare
from holtmq.load.errors import LoadError
from holtmq.load.link import Address, Link
from holtmq.load.report import Report, as_table, new_report
from holtmq.load.workloads import Mode, Workload

_START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Served:
    """A broker of ours in a process of its own."""

    url: str
    pid: int


@contextmanager
def holt(*options: str) -> Iterator[Served]:
    """Run ``holt serve`` in a fresh folder, with every default that matters for speed."""
    folder = Path(tempfile.mkdtemp(prefix="holt-bench-"))
    port = free_port()
    command = [sys.executable, "-m", "holtmq", "serve", "--data-dir", str(folder / "data")]
    command += ["--amqp-host", "127.0.0.1", "--amqp-port", str(port)]
    command += ["--http-host", "127.0.0.1", "--http-port", str(free_port()), *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                Link(Address.parse(url)).close()
                break
            except LoadError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    log_text = (folder / "log").read_text(errors="replace")
                    raise SystemExit(f"holt serve did not start: {error}\n{log_text}") from None
                time.sleep(0.05)
        yield Served(url, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def run(
    workloads: Sequence[Workload],
    *,
    rounds: int,
    repeated: int,
    seconds: float,
    warm_up: float,
    client_messages: int,
    console: Console,
    command: str,
) -> Report:
    """Measure both brokers; each workload's lines are printed as soon as they are known."""
    with holt() as ours, rabbitmq() as theirs:
        targets = [Target.at(ours.url, ours.pid), Target.at(theirs)]
        outcomes: list[ComparedRun] = []
        for workload in workloads:
            console.print(f"[dim]{workload.name}: {workload.about}[/dim]")
            # Those that repeat their bytes follow for comparison; `deep` takes RabbitMQ minutes.
            times = rounds if workload.mode is Mode.OPEN else 1 if workload.mode is Mode.DEEP else repeated
            outcomes.append(compare(targets, workload, rounds=times, seconds=seconds, warm_up=warm_up))
        console.print(as_table(outcomes))
        for figures in real_clients.run(targets, client_messages) if client_messages else ():
            cpu = figures.cpu_us_per_message
            console.print(
                f"{figures.client}: {figures.broker} {figures.rate:,.0f} msg/s"
                + (f", {cpu:.0f} µs broker CPU each" if cpu is not None else "")
            )
        return new_report(
            [target.label for target in targets],
            outcomes,
            rounds=rounds,
            seconds=seconds,
            warm_up=warm_up,
            command=command,
        )
