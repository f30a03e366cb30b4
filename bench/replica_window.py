"""One client that waits for each confirm, with a replica: beside a bare loop, and what polling costs.

Owns: the window-1 figures and the CPU table of bench/README.md, "Failover"; called by ``bench.replica``.
Must not touch: the other figures of that page.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import psycopg
from bench.amqp import Served, holt
from rich.console import Console
from rich.table import Table

from holtmq.journal.replica import schema
from holtmq.load.link import Address
from holtmq.load.rounds import run_round
from holtmq.load.stage import Stage
from holtmq.load.workloads import Mode, Workload

ONE = Workload("window-1", "", Mode.PUBLISH, body_bytes=16, durable=True, window=1)
_ROW_BYTES = 200  # a group of one small message: SYNC record, frame, message
_SLICES = 6
_WARM_UP = 0.1
_LOADS = ((1, 1), (4, 1), (50, 1), (1, 10), (1, 100), (1, 5000))  # clients and window of each
_GOAL = 0.8


@dataclass(frozen=True, slots=True)
class _Rates:
    """Commits or confirms a second, medians of one round's slices."""

    bare: float  # the loop of rows
    polling: float  # the bare client
    generator: float  # the load generator of ``holt bench``, the node polls
    sleeping: float  # the bare client, the node does not poll


def window_one(conninfo: str, rounds: int, seconds: float, console: Console) -> list[float]:
    """Print each round's ratios and their medians; return the rates of the load generator."""
    found = [_round(conninfo, number, seconds) for number in range(rounds)]
    table = Table("window 1: confirms a second", "a loop that commits one row", "bare client", "ratio")
    for column in ("load generator", "ratio", "bare client, replica_busy_poll = 0", "ratio"):
        table.add_column(column)
    for number, rates in enumerate(found, 1):
        table.add_row(f"round {number}", *_cells(rates))
    table.add_section()
    ratios = [
        [getattr(rates, name) / rates.bare for rates in found]
        for name in ("polling", "generator", "sleeping")
    ]
    middle = _Rates(*[median(getattr(rates, name) for rates in found) for name in _Rates.__slots__])
    cells = _cells(middle)
    for at, of in zip((2, 4, 6), ratios, strict=True):
        cells[at] = f"{median(of):.2f} ({min(of):.2f} to {max(of):.2f})"
    table.add_row("median of the rounds", *cells)
    console.print(table)
    bare, generator = (median(of) for of in ratios[:2])
    text = f"wanted: {_GOAL}; bare client {bare:.2f}, load generator {generator:.2f}"
    console.print(text, highlight=False)
    return [rates.generator for rates in found]


def _cells(rates: _Rates) -> list[str]:
    cells = [f"{rates.bare:,.0f}"]
    for rate in (rates.polling, rates.generator, rates.sleeping):
        cells += [f"{rate:,.0f}", f"{rate / rates.bare:.2f}"]
    return cells


@contextmanager
def _nodes(conninfo: str, name: str) -> Iterator[tuple[Served, Served]]:
    """One that polls and one that does not, each with a log of its own. One that is not used is idle."""
    options = ("--journal-replica", conninfo, "--journal-replica-name")
    with (
        holt(*options, f"{name}-polling") as polling,
        holt(*options, f"{name}-sleeping", "--journal-replica-busy-poll", "0") as sleeping,
    ):
        yield polling, sleeping


def _round(conninfo: str, number: int, seconds: float) -> _Rates:
    slices: list[_Rates] = []
    with _nodes(conninfo, f"one-{number}") as (polling, sleeping):
        # In turn and in short slices: a shared disk changes its speed from second to second.
        for _ in range(_SLICES):
            length = seconds / _SLICES
            slices.append(
                _Rates(
                    _bare_rows(conninfo, length),
                    _one_by_one(polling.url, length),
                    run_round(Address.parse(polling.url), ONE, length, _WARM_UP).rate,
                    _one_by_one(sleeping.url, length),
                )
            )
    return _Rates(*[median(getattr(rates, name) for rates in slices) for name in _Rates.__slots__])


def _one_by_one(url: str, seconds: float) -> float:
    """Confirms a second of a loop that sends one prebuilt message and waits in ``recv`` for its confirm."""
    stage = Stage.build(Address.parse(url), ONE)
    try:
        (publisher,) = stage.publishers()
        sock, blob = publisher.link.sock, publisher.blob
        sock.setblocking(True)
        message = bytes(blob.view[: blob.end_of(1)])
        count, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            sock.sendall(message)
            publisher.confirms.feed(sock.recv(4096))
            count += 1
            if publisher.confirms.confirmed != count:
                raise SystemExit(f"{publisher.confirms.confirmed} of {count} messages were confirmed")
        return count / (now - began)
    finally:
        stage.close()


def _bare_rows(conninfo: str, seconds: float) -> float:
    """Commits a second of the statement that an append is, alone on a connection."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        schema.ensure(connection)
        connection.execute("INSERT INTO holtmq.log (name, epoch) VALUES ('bare', 1) ON CONFLICT DO NOTHING")
        connection.execute("DROP TABLE IF EXISTS bare_rows")
        connection.execute("CREATE TABLE bare_rows (PRIMARY KEY (position)) INHERITS (holtmq.rows)")
        statement = (
            b"INSERT INTO bare_rows SELECT %s, %s, %s FROM holtmq.log WHERE name = 'bare' AND epoch = %s"
        )
        statement += b" FOR SHARE"
        row = bytes(_ROW_BYTES)
        count, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            connection.execute(statement, (count, 1, row, 1), binary=True, prepare=True)
            count += 1
        connection.execute("DROP TABLE bare_rows")
        return count / (now - began)


@dataclass(frozen=True, slots=True)
class _Cost:
    """One load on one node."""

    rate: float
    cpu_us: float  # of the node, for each message
    switches: float  # context switches of the node, for each message


def cost_of_polling(conninfo: str, rounds: int, seconds: float, console: Console) -> None:
    """Print rate, CPU time and context switches of nodes that poll and that do not, for several loads."""
    table = Table("clients x window", "polling", "replica_busy_poll = 0", "CPU time, ratio")
    with _nodes(conninfo, "cost") as nodes:
        for clients, window in _LOADS:
            load = replace(ONE, publishers=clients, window=window)
            found: tuple[list[_Cost], list[_Cost]] = ([], [])
            for _ in range(rounds):
                for node, costs in zip(nodes, found, strict=True):
                    costs.append(_cost(node, load, seconds / 2))
            polling, sleeping = map(_median, found)
            ratio = f"{polling.cpu_us / sleeping.cpu_us:.2f}" if sleeping.cpu_us else ""
            table.add_row(f"{clients} x {window:,}", _text(polling), _text(sleeping), ratio)
    console.print("Messages a second, the node's CPU time and context switches for each", highlight=False)
    console.print(table)


def _cost(node: Served, load: Workload, seconds: float) -> _Cost:
    before = _switches(node.pid)
    found = run_round(Address.parse(node.url), load, seconds, _WARM_UP, node.pid)
    assert found.cpu_us_per_message is not None
    messages = found.rate * (seconds + _WARM_UP)  # the switches are those of the warm-up, too
    return _Cost(found.rate, found.cpu_us_per_message, (_switches(node.pid) - before) / messages)


def _median(costs: list[_Cost]) -> _Cost:
    return _Cost(*[median(getattr(cost, name) for cost in costs) for name in _Cost.__slots__])


def _text(cost: _Cost) -> str:
    return f"{cost.rate:,.0f}/s, {cost.cpu_us:.1f} µs, {cost.switches:.2f}"


def _switches(pid: int) -> int:
    """Context switches of all threads of a process, voluntary and not."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return total
