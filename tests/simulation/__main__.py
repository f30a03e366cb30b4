"""``PYTHONPATH=tests python -m simulation``: simulated histories, one seed after the other, until stopped.

Owns: the command line. Must not touch: what a history is; ``simulation`` knows that.
"""

import itertools
import logging
import time

import click

from simulation import STEPS, BrokenPromise, History, simulate


@click.command()
@click.option("--seed", type=int, default=None, help="Show one history, step by step.")
@click.option("--first", default=0, show_default=True, help="First seed.")
@click.option("--seeds", type=int, default=None, help="How many seeds; without end if not given.")
@click.option("--minutes", type=float, default=None, help="Stop after so long.")
@click.option("--steps", default=STEPS, show_default=True, help="Length of a history.")
def main(seed: int | None, first: int, seeds: int | None, minutes: float | None, steps: int) -> None:
    """Run simulated histories; the first broken promise ends it with status 1 and its seed."""
    logging.disable(logging.CRITICAL)  # the journal reports every fault that was asked for
    try:
        if seed is not None:
            click.echo(str(simulate(seed, steps, click.echo)))
            return
        click.echo(_soak(first, seeds, minutes, steps))
    except BrokenPromise as broken:
        raise click.ClickException(str(broken)) from broken


def _soak(first: int, seeds: int | None, minutes: float | None, steps: int) -> str:
    began = time.monotonic()
    histories: list[History] = []
    numbers = itertools.count(first) if seeds is None else range(first, first + seeds)
    for number in numbers:
        histories.append(simulate(number, steps))
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            break
    per_minute = 60 * len(histories) / (time.monotonic() - began)
    crashes = sum(history.crashes for history in histories)
    confirmed = sum(history.confirmed for history in histories)
    return (
        f"seeds {first} to {first + len(histories) - 1}: every promise kept; {crashes:,} crashes, "
        f"{confirmed:,} confirmed messages, {per_minute:,.0f} histories a minute"
    )


if __name__ == "__main__":
    main()
