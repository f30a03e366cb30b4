"""Partitioned queues over HTTP, beside PostgreSQL and Redis Streams doing the same durable work.

Owns: starting all three and the report's words. Must not touch: how load is made and measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from bench.amqp import holt
from bench.postgres import postgres
from bench.rabbitmq import free_port
from bench.redis_streams import redis
from rich.console import Console

from holtmq.load.comparison import ComparedRun, Figures
from holtmq.load.http_comparison import compare_http
from holtmq.load.http_rounds import Contender
from holtmq.load.http_stage import HttpTarget
from holtmq.load.http_workloads import HttpMode, HttpWorkload
from holtmq.load.report import Report, as_table, new_report

# What the broker has to reach: (workload, least messages a second).
RATES = (
    ("push-1", 8_000),
    ("push-10", 50_000),
    ("push-100", 150_000),
    ("pop-ack-100", 100_000),
    ("fanout-10-groups", 250_000),
)
ACK_TIMES = (("ack-one", 10.0), ("ack-100", 20.0))  # p99 in ms, at most
PARTITIONS = ("partitions-10001", "partitions-2", 0.8)


@contextmanager
def http_target() -> Iterator[HttpTarget]:
    """Our broker with its defaults: files, fsync before every answer."""
    port = free_port()
    with holt("--http-port", str(port)) as served:
        yield HttpTarget.at(f"http://127.0.0.1:{port}", served.pid)


def run(
    workloads: Sequence[HttpWorkload],
    *,
    rounds: int,
    seconds: float,
    warm_up: float,
    peers: bool,
    console: Console,
    command: str,
) -> Report:
    """Measure ours and, unless told otherwise, the peers, in turn."""
    with http_target() as ours:
        if not peers:
            return _run([ours], workloads, rounds, seconds, warm_up, console, command)
        with postgres() as relational, redis() as streams:
            return _run([ours, relational, streams], workloads, rounds, seconds, warm_up, console, command)


def _run(
    contenders: Sequence[Contender],
    workloads: Sequence[HttpWorkload],
    rounds: int,
    seconds: float,
    warm_up: float,
    console: Console,
    command: str,
) -> Report:
    outcomes: list[ComparedRun] = []
    for workload in workloads:
        console.print(f"[dim]{workload.name}: {workload.about}[/dim]")
        outcomes.append(compare_http(contenders, workload, rounds=rounds, seconds=seconds, warm_up=warm_up))
    console.print(as_table(outcomes))
    for line in verdicts(outcomes):
        console.print(line)
    return new_report(
        [contender.label for contender in contenders],
        outcomes,
        rounds=rounds,
        seconds=seconds,
        warm_up=warm_up,
        command=command,
    )


def verdicts(outcomes: Sequence[ComparedRun]) -> list[str]:
    """Our figures against the goals, as far as they were measured."""
    ours = {outcome.workload: outcome.figures[0] for outcome in outcomes if outcome.figures}
    lines = []
    for name, least in RATES:
        if name in ours:
            lines.append(_line(name, f"{ours[name].rate:,.0f} msg/s", f"{least:,}", ours[name].rate >= least))
    for name, most in ACK_TIMES:
        times = ours[name].confirm_us if name in ours else None
        if times is not None:
            p99 = times.p99 / 1000
            lines.append(_line(name, f"p99 {p99:.2f} ms", f"{most:g} ms", p99 < most))
    many, few, share = PARTITIONS
    if many in ours and few in ours:
        ratio = ours[many].rate / ours[few].rate
        lines.append(_line(f"{many} to {few}", f"{ratio:.2f}", f"{share}", ratio >= share))
    return lines


def _line(what: str, found: str, goal: str, reached: bool) -> str:
    return f"{what}: {found}, goal {goal}: {'reached' if reached else 'missed'}"


def as_markdown(report: Report) -> str:
    """One line for each workload: ours, each peer, and our rate over theirs."""
    labels = report.brokers
    peers = labels[1:]
    head = ["workload", "msg/s", "requests/s", "p50/p99 ms", "CPU µs/msg", "RSS MB", "load CPU"]
    for peer in peers:
        head += [f"{peer} msg/s", "ratio", "p50/p99 ms", "CPU µs/msg"]
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    for outcome in report.outcomes:
        found = {figures.label: figures for figures in outcome.figures}
        ours = found.get(labels[0])
        if ours is None:
            lines.append(f"| {outcome.workload} | failed: {'; '.join(outcome.failures)} |")
            continue
        cells = [outcome.workload, f"{ours.rate:,.0f}", f"{ours.request_rate or 0:,.0f}", _times(ours)]
        cells += [_number(ours.cpu_us_per_message, 2), _number(ours.resident_mb, 0)]
        cells.append(f"{ours.load_cpu_share:.0%}")
        for peer in peers:
            theirs = found.get(peer)
            if theirs is None:
                cells += [""] * 4
                continue
            cells += [f"{theirs.rate:,.0f}", f"{ours.rate / theirs.rate:.2f}", _times(theirs)]
            cells.append(_number(theirs.cpu_us_per_message, 2))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _times(figures: Figures) -> str:
    times = figures.confirm_us
    return "" if times is None else f"{times.p50 / 1000:.2f} / {times.p99 / 1000:.2f}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def shortened(workload: HttpWorkload) -> HttpWorkload:
    """For a quick run: a backlog that is filled in a moment."""
    if not workload.messages:
        return workload
    return replace(workload, messages=150_000 if workload.mode is HttpMode.ACK else 30_000)
