"""AMQP over TLS, and connections opened and closed, beside RabbitMQ.

Owns: one run against both brokers. Must not touch: the workloads, which are those of ``holt bench``.

The load tool has one thread and would be the slower side if it encrypted, too: socat does that for it, in a
process of its own. CPU times are the brokers' alone; socat limits the rate of large bodies.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from bench import debian
from bench.amqp import holt
from bench.rabbitmq import free_port, rabbitmq

from holtmq.load.errors import LoadError
from holtmq.load.link import Address, Link
from holtmq.load.processes import listener_pid, usage
from holtmq.load.rounds import run_round
from holtmq.load.workloads import WORKLOADS

_WORKLOADS = ("unique-ids", "mixed-keys-durable", "manual-ack", "durable-window-1", "backlog-64k")
_WARM_UP = 0.5
_SOCAT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Door:
    """One way to a broker: plain, or through socat to its TLS port."""

    label: str
    address: Address
    pid: int


@contextmanager
def _doors(folder: Path) -> Iterator[list[Door]]:
    """Both ways to both brokers: plain ones first."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    ours, theirs = free_port(), free_port()
    with (
        holt(
            *("--amqp-tls-cert", str(certificate), "--amqp-tls-key", str(key), "--amqp-tls-port", str(ours))
        ) as broker,
        rabbitmq(
            f"listeners.ssl.default = {theirs}\nssl_options.certfile = {certificate}\n"
            f"ssl_options.keyfile = {key}\nssl_options.verify = verify_none\n"
        ) as peer,
        _encrypting(ours) as ours_encrypted,
        _encrypting(theirs) as theirs_encrypted,
    ):
        pid = listener_pid(Address.parse(peer))
        if pid is None:
            raise SystemExit("RabbitMQ's process was not found")
        yield [
            Door("HoltMQ", Address.parse(broker.url), broker.pid),
            Door("RabbitMQ", Address.parse(peer), pid),
            Door("HoltMQ, TLS", ours_encrypted, broker.pid),
            Door("RabbitMQ, TLS", theirs_encrypted, pid),
        ]


@contextmanager
def _encrypting(port: int) -> Iterator[Address]:
    """A plain port in front of a TLS port."""
    if shutil.which("socat") is None:
        debian.install("socat")
    plain = free_port()
    address = Address.parse(f"amqp://guest:guest@127.0.0.1:{plain}/")
    source = f"TCP-LISTEN:{plain},bind=127.0.0.1,fork,reuseaddr,nodelay"
    process = subprocess.Popen(
        ["socat", "-b", "131072", source, f"OPENSSL:127.0.0.1:{port},verify=0,nodelay"],
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + _SOCAT_SECONDS
        while True:
            try:
                Link(address).close()
                break
            except LoadError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait()


def _open_and_close(door: Door, seconds: float) -> tuple[float, float]:
    """Connections opened (with a channel) and closed a second, one by one; the broker's CPU µs of each."""
    count, cpu, began = 0, usage(door.pid).cpu_seconds, time.perf_counter()
    while time.perf_counter() - began < seconds:
        Link(door.address).close()
        count += 1
    elapsed = time.perf_counter() - began
    return count / elapsed, (usage(door.pid).cpu_seconds - cpu) / count * 1e6


def _print(name: str, figures: dict[str, list[tuple[float, float]]]) -> None:
    for label, rounds in figures.items():
        rate = statistics.median(figure for figure, _ in rounds)
        cpu = statistics.median(figure for _, figure in rounds)
        click.echo(f"| {name} | {label} | {rate:,.0f} | {cpu:.2f} |")


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="Of each round.")
@click.option("--workload", "names", multiple=True, default=_WORKLOADS, show_default=True)
def main(rounds: int, seconds: float, names: tuple[str, ...]) -> None:
    """Print rate and CPU of each workload, plain and over TLS, in turns."""
    click.echo("| workload | broker | a second | CPU µs each |\n|---|---|--:|--:|")
    with debian.folder("tls") as folder, _doors(folder) as doors:
        for name in names:
            figures: dict[str, list[tuple[float, float]]] = {door.label: [] for door in doors}
            for _ in range(rounds):
                for door in doors:
                    done = run_round(door.address, WORKLOADS[name], seconds, _WARM_UP, door.pid)
                    figures[door.label].append((done.rate, done.cpu_us_per_message or 0.0))
            _print(name, figures)
        plain = doors[:2]  # socat would start a process for each connection
        opened: dict[str, list[tuple[float, float]]] = {door.label: [] for door in plain}
        for _ in range(rounds):
            for door in plain:
                opened[door.label].append(_open_and_close(door, seconds))
        _print("connections opened and closed", opened)


if __name__ == "__main__":
    main()
