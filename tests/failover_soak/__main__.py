"""``PYTHONPATH=tests python -m failover_soak --faults 210``: many faults, all at once or in parts.

Owns: the command line, the progress, the sum of the parts. Must not touch: faults and verdicts.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import click
import msgspec
from rich.console import Console

from failover_soak import every_fault
from holtmq.verify.replica.judge import Options, ReplicaJudge
from holtmq.verify.replica.report import ReplicaReport, show
from postgres import Pair

_PROGRESS_SECONDS = 60.0


@click.command()
@click.option("--faults", default=210, show_default=True, help="How many faults the seed brings in all.")
@click.option("--first", default=1, show_default=True, help="Number of the first fault of this part.")
@click.option("--minutes", default=math.inf, help="End this part after that time, with the owner's life.")
@click.option("--seed", type=int, help="Of the order and the moments; all parts need the same.")
@click.option(
    "--sum",
    "parts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Add this part's report to a file and show the sum of all that are in it.",
)
def main(faults: int, first: int, minutes: float, seed: int | None, parts: Path | None) -> None:
    """Bring faults upon two nodes and their PostgreSQL; the status is 1 if a promise was broken."""
    if not 1 <= first <= faults:
        raise click.BadParameter(f"{first} is not one of 1 to {faults}", param_hint="--first")
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    click.echo(f"seed {seed}, faults {first} to {faults}")
    pair = Pair()
    try:
        with tempfile.TemporaryDirectory(prefix="holt-soak-") as folder:
            options = every_fault(pair.create(), Path(folder), faults - first + 1, seed)
            report = asyncio.run(run(replace(options, first=first - 1, seconds=60 * minutes)))
    finally:
        pair.destroy()
    show(report, Console(width=120))
    done = first - 1 + report.rounds
    if done < faults:
        click.echo(f"faults {first} to {done} are done; go on with: --seed {seed} --first {done + 1}")
    if parts is not None:
        report = add_to(parts, report)
        click.echo(f"\nThe sum in {parts}: {report.rounds} faults")
        show(report, Console(width=120))
    sys.exit(not report.passed)


async def run(options: Options) -> ReplicaReport:
    """All faults of this part, with a line a minute."""
    judge = ReplicaJudge(options)
    progress = asyncio.create_task(show_progress(judge.report), name="progress")
    try:
        return await judge.run()
    finally:
        progress.cancel()


async def show_progress(report: ReplicaReport) -> None:
    """Once a minute, how far it is; also while one fault takes long."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(_PROGRESS_SECONDS)
        minutes = (time.monotonic() - began) / 60
        click.echo(
            f"{minutes:.0f} min: {report.rounds} faults, {report.confirmed:,} confirmed, "
            f"{report.broken} broken, "
            f"last: {report.last_fault}"
        )


def add_to(file: Path, report: ReplicaReport) -> ReplicaReport:
    """Note the part as a line of JSON; return the sum of all parts."""
    with file.open("ab") as lines:
        lines.write(msgspec.json.encode(report) + b"\n")
    first, *others = [
        msgspec.json.decode(line, type=ReplicaReport) for line in file.read_bytes().splitlines()
    ]
    for other in others:
        first.add(other)
    return first


if __name__ == "__main__":
    main()
