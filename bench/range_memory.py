"""The broker's memory while one client reads a long range of a partitioned queue in one request.

Owns: one run against a broker of ours in a process of its own. Must not touch: anything that is measured
elsewhere.
"""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path

import click
from bench.amqp import holt
from bench.rabbitmq import free_port

from holtmq.load.processes import usage

_BATCH = 1_000
_QUEUE = "holt-load-range"


def run(rows: int, payload_bytes: int) -> tuple[float, float, int]:
    """Resident megabytes before the read, the most while it runs, and how many bytes were read."""
    port = free_port()
    with holt("--http-port", str(port)) as broker:
        link = HTTPConnection("127.0.0.1", port, timeout=120)
        kind = {"content-type": "application/json"}
        text = "x" * payload_bytes
        for first in range(0, rows, _BATCH):
            items = ",".join(
                f'{{"queue":"{_QUEUE}","partition":"{number % 10}","payload":"{text}"}}'
                for number in range(first, min(first + _BATCH, rows))
            )
            link.request("POST", "/api/v1/push", f'{{"items":[{items}]}}', kind)
            answer = link.getresponse()
            answer.read()
            if answer.status != 201:
                raise SystemExit(f"push: {answer.status}")
        _read(link, 1)  # loads Arrow, which takes 100 MB for itself
        before = usage(broker.pid).resident_bytes
        Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak starts anew
        read = _read(link, rows)
        return before / 1e6, _peak(broker.pid) / 1e6, read


def _read(link: HTTPConnection, rows: int) -> int:
    """Read that many rows in one request; return how many bytes came."""
    link.request("GET", f"/api/v1/ranges/{_QUEUE}/rows?from=0&to={rows}")
    answer = link.getresponse()
    if answer.status != 200:
        raise SystemExit(f"rows: {answer.status} {answer.read()!r}")
    read = 0
    while piece := answer.read(1 << 20):
        read += len(piece)
    return read


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not tell the peak of a process")


@click.command()
@click.option("--rows", default=5_000_000, show_default=True)
@click.option("--payload", default=100, show_default=True, help="Bytes of a row's payload.")
def main(rows: int, payload: int) -> None:
    """Print the memory before the read and its peak."""
    before, peak, read = run(rows, payload)
    click.echo(f"{rows:,} rows, {read / 1e6:,.0f} MB read: {before:.0f} MB before, {peak:.0f} MB at most")


if __name__ == "__main__":
    main()
