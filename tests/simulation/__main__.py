"""``PYTHONPATH=tests python -m simulation``: simulated histories on all cores, until stopped.

Owns: the command line. Must not touch: what a history is (``schedule``), how many are run at once (``soak``).
"""

import itertools
import logging
import os
import sys

import click

from simulation import STEPS, BrokenPromise, simulate
from simulation.soak import soak


@click.command()
@click.option("--seed", type=int, default=None, help="Show one history, step by step.")
@click.option("--first", default=0, show_default=True, help="First seed.")
@click.option("--seeds", type=int, default=None, help="How many seeds; without end if not given.")
@click.option("--minutes", type=float, default=None, help="Stop after so long.")
@click.option("--steps", default=STEPS, show_default=True, help="Length of a history.")
@click.option("--workers", default=os.cpu_count() or 1, help="Processes; all cores if not given.")
def main(
    seed: int | None, first: int, seeds: int | None, minutes: float | None, steps: int, workers: int
) -> None:
    """Run simulated histories and count; every broken promise is named with its seed, and the status is 1."""
    if seed is not None:
        logging.disable(logging.CRITICAL)  # the journal reports every fault that was asked for
        try:
            click.echo(str(simulate(seed, steps, click.echo)))
        except BrokenPromise as broken:
            raise click.ClickException(str(broken)) from broken
        return
    numbers = itertools.count(first) if seeds is None else iter(range(first, first + seeds))
    total = soak(numbers, steps, minutes, workers, click.echo)
    click.echo(total.report(first))
    sys.exit(1 if total.findings else 0)


if __name__ == "__main__":
    main()
