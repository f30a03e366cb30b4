"""What the dashboard costs a large broker: CPU time of each page and of a scrape, and the longest stall.

Owns: the measuring and the table. Must not touch: the broker's insides. CPU time of the broker's thread,
because a busy machine must not look like a slow broker. With ``--traffic`` the CPU time of the messages that
arrived meanwhile is subtracted, at what a message costs while nothing is asked; a stall is the longest round
of the loop, messages included. Tables that all pages share are kept for ten times as long as building them
takes; with ``--pause 11`` each page builds its own.

    python -m bench.dashboard [--queues 20000] [--connections 5000] [--traffic]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import click
import httpx
from bench.dashboard.broker_process import BrokerProcess, Spent, allow_files, broker_process
from bench.dashboard.site import IDLE, connect, groups, requests, traffic
from rich.console import Console
from rich.table import Table

from holtmq.load.workloads import WORKLOADS

PAGE_GOAL_MS: Final = 100.0
STALL_GOAL_MS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one page, in milliseconds."""

    name: str
    cpu: float
    stall: float
    messages: int

    @property
    def missed(self) -> bool:
        return self.name != IDLE and (self.cpu > PAGE_GOAL_MS or self.stall > STALL_GOAL_MS)


def measure(broker: BrokerProcess, run: Callable[[], object], times: int, pause: float) -> list[Spent]:
    """Run a request several times."""
    spent = []
    for _ in range(times):
        time.sleep(pause)
        broker.start_meter()
        run()
        spent.append(broker.stop_meter())
    return spent


def rows(
    broker: BrokerProcess, pages: dict[str, Callable[[], object]], times: int, pause: float
) -> list[Row]:
    """The median CPU time and the longest stall of each page."""
    idle = measure(broker, pages[IDLE], times, pause)
    messages = sum(one.messages for one in idle)
    cost = sum(one.cpu for one in idle) / messages if messages else 0.0  # seconds a message
    found = []
    for name, run in pages.items():
        if name == IDLE:
            spent = idle
            cpu = [one.cpu for one in spent]
        else:
            spent = measure(broker, run, 1 if "first" in name else times, pause)
            cpu = [one.cpu - one.messages * cost for one in spent]
        worst = max(one.worst for one in spent)
        found.append(Row(name, median(cpu) * 1000, worst * 1000, sum(one.messages for one in spent)))
    return found


@click.command()
@click.option("--queues", default=20_000, show_default=True, type=click.IntRange(20))
@click.option("--connections", default=5_000, show_default=True)
@click.option("--messages", default=100_000, show_default=True, help="Waiting in the queues.")
@click.option("--partitions", default=20_000, show_default=True, help="Of the largest partitioned queue.")
@click.option("--only", default="", help="Requests whose name contains this.")
@click.option("--pause", default=3.0, show_default=True, help="Seconds before each request.")
@click.option("--times", default=1, show_default=True, type=click.IntRange(1), help="Runs of each request.")
@click.option(
    "--traffic", "loaded", is_flag=True, help="Messages all the while, as many as the broker takes."
)
@click.option(
    "--workload", default="durable-confirms", show_default=True, type=click.Choice(list(WORKLOADS)),
    metavar="NAME", help="The traffic; one of `holt bench list`.",
)  # fmt: skip
def main(
    queues: int,
    connections: int,
    messages: int,
    partitions: int,
    only: str,
    pause: float,
    times: int,
    loaded: bool,
    workload: str,
) -> None:
    """Print the CPU time of each page and the longest stall of the loop."""
    allow_files(connections)
    console = Console(width=120)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holt-bench-")))
        console.print("setting the stage …")
        broker = stack.enter_context(broker_process(folder / "data", queues, connections))
        links = connect(broker.amqp_url, queues, connections, messages)
        http = stack.enter_context(httpx.Client(base_url=broker.http_url, timeout=600))
        groups(http, 50, partitions)
        broker.freeze()
        if loaded:
            stack.enter_context(traffic(broker.amqp_url, workload))
            time.sleep(3)  # until it has connected and declared its queues
        pages = {name: run for name, run in requests(http, queues).items() if only in name or name == IDLE}
        found = rows(broker, pages, times, pause)
        for link in links:
            link.sock.close()
    title = f"{queues:,} queues, {connections:,} connections"
    if loaded:
        title += f", traffic: {workload}, {found[0].messages / times / 1.5:,.0f} messages a second at rest"
    table = Table("page", "broker CPU, ms", "longest stall, ms", title=title)
    for row in found:
        table.add_row(row.name, f"{row.cpu:.0f}", f"{row.stall:.1f}" + (" !" if row.missed else ""))
    console.print(table)
    console.print(f"goals: {PAGE_GOAL_MS:.0f} ms of broker CPU a page, {STALL_GOAL_MS:.0f} ms a stall")
    raise SystemExit(int(any(row.missed for row in found)))
