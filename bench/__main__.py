"""``make bench``: everything we claim about speed, measured anew and written to ``bench/results``.

Owns: the choice of what runs. Must not touch: how it is measured.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
from bench import amqp, micro
from rich.console import Console

from holtmq.load.report import as_html, as_json, as_markdown
from holtmq.load.workloads import WORKLOADS

_RESULTS = Path(__file__).parent / "results"


@click.command()
@click.option("--quick", is_flag=True, help="One short round of each: shows that it runs, proves nothing.")
@click.option("--workload", "names", multiple=True, type=click.Choice(list(WORKLOADS)), help="Only this one.")
@click.option("--seconds", default=4.0, show_default=True, help="Measured time of a round.")
@click.option("--rounds", default=3, show_default=True, help="Rounds on each broker, in turn.")
@click.option("--micro/--no-micro", "with_micro", default=True, help="Also the figures of single operations.")
@click.option(
    "--results", type=click.Path(path_type=Path, file_okay=False), default=_RESULTS, help="Where to write."
)
def main(
    quick: bool, names: tuple[str, ...], seconds: float, rounds: int, with_micro: bool, results: Path
) -> None:
    """HoltMQ and RabbitMQ side by side, on this machine, now."""
    console = Console(width=170)
    chosen = [WORKLOADS[name] for name in names or WORKLOADS]
    warm_up = 1.0
    if quick:
        seconds, rounds, warm_up = 1.0, 1, 0.3
        chosen = [replace(one, messages=min(one.messages, 100_000)) for one in chosen]
    flags = " --quick" if quick else f" --seconds {seconds:g} --rounds {rounds}"
    report = amqp.run(
        chosen,
        rounds=rounds,
        seconds=seconds,
        warm_up=warm_up,
        pika_messages=0 if names else 5_000 if quick else 50_000,
        console=console,
        command="python -m bench" + flags,
    )
    # By the time of day too: a second run stands beside the first and does not replace it.
    now = datetime.now(UTC)
    folder, at = results / now.strftime("%Y-%m-%d"), now.strftime("%H%M%S")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"amqp-{at}.json").write_bytes(as_json(report))
    (folder / f"amqp-{at}.html").write_text(as_html(report), encoding="utf-8")
    (folder / f"amqp-{at}.md").write_text(as_markdown(report.outcomes), encoding="utf-8")
    if with_micro and not names:
        figures = micro.run(quick=quick, console=console)
        (folder / f"micro-{at}.json").write_bytes(micro.as_json(figures))
    console.print(f"written to {folder}")
    if any(outcome.failures for outcome in report.outcomes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
