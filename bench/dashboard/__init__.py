"""What the dashboard costs a large broker: CPU time of each page and of a scrape, and its longest turn.

Owns: the measuring and the table. Must not touch: the broker's insides. CPU time of the broker's thread,
because a busy machine must not look like a slow broker. A page's own time is that of its requests' turns of
the loop (``page_meter.py``), so it has no share of the messages that the broker handles meanwhile; a stall
that a page causes is its longest turn. Each request that is measured builds the tables that pages share.

    python -m bench.dashboard [--queues 20000] [--connections 5000] [--traffic]
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import click
import httpx
from bench.dashboard.broker_process import BrokerProcess, Spent, allow_files, broker_process
from bench.dashboard.site import IDLE, Page, connect, groups, requests, traffic
from rich.console import Console
from rich.table import Table

from holtmq.load.workloads import WORKLOADS

PAGE_GOAL_MS: Final = 100.0
STALL_GOAL_MS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one page, in milliseconds."""

    name: str
    own: float
    turn: float
    round: float
    collecting: float
    cpu: float
    messages: int

    @property
    def missed(self) -> bool:
        return self.name != IDLE and (self.own > PAGE_GOAL_MS or self.turn > STALL_GOAL_MS)


def measure(broker: BrokerProcess, page: Page, times: int, pause: float) -> list[Spent]:
    """Run a request several times."""
    spent = []
    for _ in range(times):
        page.before()
        time.sleep(pause)
        broker.start_meter()
        page.ask()
        spent.append(broker.stop_meter())
        page.after()
    return spent


def rows(broker: BrokerProcess, pages: dict[str, Page], times: int, pause: float) -> list[Row]:
    """The median CPU time, the longest turn and the longest round of each page."""
    found = []
    for name, page in pages.items():
        spent = measure(broker, page, 1 if "first" in name else times, pause)
        found.append(
            Row(
                name,
                own=median(one.own for one in spent) * 1000,
                turn=max(one.turn for one in spent) * 1000,
                round=max(one.round for one in spent) * 1000,
                collecting=max(one.collecting for one in spent) * 1000,
                cpu=median(one.cpu for one in spent) * 1000,
                messages=sum(one.messages for one in spent),
            )
        )
    return found


def _messages_in(broker: BrokerProcess, seconds: float) -> int:
    broker.start_meter()
    time.sleep(seconds)
    return broker.stop_meter().messages


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
            while not _messages_in(broker, 0.5):  # it connects and declares its queues first
                pass
        pages = {name: run for name, run in requests(http, queues).items() if only in name or name == IDLE}
        found = rows(broker, pages, times, pause)
        for link in links:
            link.sock.close()
    title = f"{queues:,} queues, {connections:,} connections"
    if loaded:
        title += f", traffic: {workload}, {found[0].messages / times / 1.5:,.0f} messages a second at rest"
    columns = (
        "page",
        "own CPU, ms",
        "longest turn, ms",
        "garbage collector, ms",
        "longest round, ms",
        "whole CPU, ms",
    )
    table = Table(*columns, title=title)
    for row in found:
        turn = f"{row.turn:.1f}" + (" !" if row.missed else "")
        table.add_row(
            row.name, f"{row.own:.0f}", turn, f"{row.collecting:.1f}", f"{row.round:.1f}", f"{row.cpu:.0f}"
        )
    console.print(table)
    console.print(
        f"goals: {PAGE_GOAL_MS:.0f} ms of own CPU time a page, {STALL_GOAL_MS:.0f} ms a turn. A round "
        "contains the messages that arrived meanwhile."
    )
    raise SystemExit(int(any(row.missed for row in found)))
