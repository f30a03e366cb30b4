"""A comparison as a table for people, as JSON, and as one HTML page with a plot.

Owns: the presentation. Must not touch: the figures.
"""

from __future__ import annotations

import html
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from rich.table import Table

from holtmq.load.comparison import ComparedRun, Figures
from holtmq.load.measuring import Percentiles

_COLOURS = ("#1f6f8b", "#c06014", "#6b7f2a")


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one run of the tool."""

    started: str
    machine: str
    cores: int
    brokers: list[str]
    rounds: int
    seconds: float
    warm_up: float
    command: str
    outcomes: list[ComparedRun]
    load_average: tuple[float, float, float]  # at the end: shows other load on the machine


def new_report(
    brokers: Sequence[str],
    outcomes: Sequence[ComparedRun],
    *,
    rounds: int,
    seconds: float,
    warm_up: float,
    command: str,
) -> Report:
    """The outcomes, with the time and the machine."""
    return Report(
        datetime.now(UTC).isoformat(timespec="seconds"),
        f"{platform.machine()}, {platform.system()} {platform.release()}, Python {platform.python_version()}",
        os.cpu_count() or 0,
        list(brokers),
        rounds,
        seconds,
        warm_up,
        command,
        list(outcomes),
        os.getloadavg(),
    )


def as_json(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=2)


def as_table(outcomes: Sequence[ComparedRun]) -> Table:
    """One row for each broker on each workload."""
    table = Table(title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("workload", no_wrap=True)
    table.add_column("broker", no_wrap=True)
    with_requests = any(figures.request_rate for outcome in outcomes for figures in outcome.figures)
    for name in (
        "msg/s",
        *(("requests/s",) if with_requests else ()),
        "ratio",
        "CPU µs/msg",
        "of theirs",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "RSS MB",
        "load CPU",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for outcome in outcomes:
        for row, figures in enumerate(outcome.figures):
            speed = _ratio(outcome, row)
            cpu = outcome.cpu_ratio if row == 0 else None
            table.add_row(
                outcome.workload if row == 0 else "",
                figures.label,
                rate_text(figures),
                *((_number(figures.request_rate, 0),) if with_requests else ()),
                f"{speed:.2f}x" if speed is not None else "",
                _number(figures.cpu_us_per_message, 2),
                f"{cpu:.0%}" if cpu is not None else "",
                *_milliseconds(_times(figures)),
                _number(figures.resident_mb, 0),
                f"{figures.load_cpu_share:.0%}",
            )
        for failure in outcome.failures:
            table.add_row(outcome.workload, f"[red]{failure}[/red]")
        table.add_section()
    return table


def as_markdown(outcomes: Sequence[ComparedRun]) -> str:
    """One row for each workload: ours, theirs, the ratios."""
    lines = [
        "| workload | ours msg/s | theirs msg/s | ratio | our CPU µs/msg | theirs | share "
        "| our p50/p99/p99.9 ms | theirs | load CPU |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for outcome in outcomes:
        if len(outcome.figures) != 2:
            lines.append(f"| {outcome.workload} | failed: {'; '.join(outcome.failures)} |")
            continue
        ours, theirs = outcome.figures
        cells = (
            outcome.workload,
            rate_text(ours),
            rate_text(theirs),
            f"{outcome.speed_ratio:.2f}",
            _number(ours.cpu_us_per_message, 2),
            _number(theirs.cpu_us_per_message, 2),
            f"{outcome.cpu_ratio:.0%}" if outcome.cpu_ratio is not None else "",
            " / ".join(_milliseconds(_times(ours))),
            " / ".join(_milliseconds(_times(theirs))),
            f"{ours.load_cpu_share:.0%} / {theirs.load_cpu_share:.0%}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def as_html(report: Report) -> str:
    """A self-contained page: a bar for each broker on each workload, and the table."""
    return "\n".join(
        (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>holt bench</title><style>",
            "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;"
            "padding:0 1rem;color:#222}",
            "table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;text-align:right}",
            "td:first-child,td:nth-child(2),th:first-child,th:nth-child(2){text-align:left}",
            "tbody tr{border-top:1px solid #ddd}.bad{color:#b00}</style></head><body>",
            f"<h1>{html.escape(' and '.join(report.brokers))}</h1>",
            f"<p>{html.escape(report.started)}, {html.escape(report.machine)}, {report.cores} cores. "
            f"{report.rounds} rounds of {report.seconds:g} s in turn, median. "
            f"<code>{html.escape(report.command)}</code></p>",
            "<h2>Messages a second</h2>",
            _plot(report),
            "<h2>Figures</h2>",
            _html_table(report),
            "</body></html>",
        )
    )


def rate_text(figures: Figures) -> str:
    """The rate; for a backlog, the publish rate and the drain rate."""
    if figures.publish_rate is None:
        return f"{figures.rate:,.0f}"
    return f"{figures.publish_rate:,.0f} in, {figures.rate:,.0f} out"


def _ratio(outcome: ComparedRun, row: int) -> float | None:
    """First broker over second: with two, in the first one's row; with more, in the row of each other one."""
    if row == 0:
        return outcome.speed_ratio
    return outcome.figures[0].rate / outcome.figures[row].rate if len(outcome.figures) > 2 else None


def _plot(report: Report) -> str:
    """Bars relative to the better broker of each workload: rates differ by orders of magnitude."""
    height, gap, left, width = 18, 14, 210, 560
    parts, y = [], 4
    for outcome in report.outcomes:
        best = max((figures.rate for figures in outcome.figures), default=1.0)
        parts.append(
            f"<text x='{left - 10}' y='{y + height}' text-anchor='end'>{html.escape(outcome.workload)}</text>"
        )
        for figures in outcome.figures:
            length = max(figures.rate / best * width, 1)
            colour = _COLOURS[report.brokers.index(figures.label) % len(_COLOURS)]
            parts.append(
                f"<rect x='{left}' y='{y}' width='{length:.1f}' height='{height - 2}' fill='{colour}'>"
                f"<title>{html.escape(figures.label)}</title></rect>"
                f"<text x='{left + length + 6:.1f}' y='{y + height - 5}' font-size='12'>"
                f"{figures.rate:,.0f}</text>"
            )
            y += height
        y += gap
    for number, broker in enumerate(report.brokers):
        x = left + number * 220
        parts.append(
            f"<rect x='{x}' y='{y}' width='12' height='12' fill='{_COLOURS[number % len(_COLOURS)]}'/>"
            f"<text x='{x + 18}' y='{y + 11}'>{html.escape(broker)}</text>"
        )
    return (
        f"<svg viewBox='0 0 900 {y + 20}' width='100%' font-family='system-ui,sans-serif' font-size='13' "
        f"role='img' aria-label='Messages a second by workload'>{''.join(parts)}</svg>"
    )


def _html_table(report: Report) -> str:
    names = ("workload", "broker", "msg/s", "ratio", "CPU µs/msg", "p50 ms", "p99 ms", "p99.9 ms", "RSS MB")
    rows = []
    for outcome in report.outcomes:
        for row, figures in enumerate(outcome.figures):
            ratio = _ratio(outcome, row)
            cells = (
                outcome.workload if row == 0 else "",
                figures.label,
                rate_text(figures),
                f"{ratio:.2f}" if ratio is not None else "",
                _number(figures.cpu_us_per_message, 2),
                *_milliseconds(_times(figures)),
                _number(figures.resident_mb, 0),
            )
            rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
        rows += [
            f"<tr><td>{html.escape(outcome.workload)}</td>"
            f"<td class='bad' colspan='8'>{html.escape(failure)}</td></tr>"
            for failure in outcome.failures
        ]
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _times(figures: Figures) -> Percentiles | None:
    """The confirm latency where it was measured (a window of one), else publish to delivery."""
    return figures.confirm_us or figures.latency_us


def _milliseconds(of: Percentiles | None) -> tuple[str, str, str]:
    if of is None:
        return "", "", ""
    return f"{of.p50 / 1000:.2f}", f"{of.p99 / 1000:.2f}", f"{of.p999 / 1000:.2f}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
