"""``PYTHONPATH=tests python -m damage --cases 200``: damage done to data folders, and how each case ends.

Owns: the command line. Must not touch: what a case is (``campaign``).
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click

from damage.campaign import Bases, Case, End, run_case, table


@click.command()
@click.option("--cases", default=200, show_default=True, help="How many damages.")
@click.option("--first", default=0, show_default=True, help="First seed.")
@click.option("--workers", default=2, show_default=True, help="Brokers at once.")
@click.option("--verbose", is_flag=True, help="Show every case, not only faults.")
@click.option("--in-process", is_flag=True, help="Brokers in this process, one at a time: ten times as fast.")
def main(cases: int, first: int, workers: int, verbose: bool, in_process: bool) -> None:
    """Damage folders, run brokers on them, drain them; the status is 1 if one was silent or wedged."""
    with tempfile.TemporaryDirectory(prefix="holt-damage-") as scratch:
        bases = Bases.written(Path(scratch))
        done: list[Case] = []
        with ThreadPoolExecutor(1 if in_process else workers) as pool:
            run = partial(run_case, bases=bases, scratch=Path(scratch), in_process=in_process)
            for case in pool.map(run, range(first, first + cases)):
                done.append(case)
                if verbose or case.end in (End.SILENT, End.WEDGED):
                    click.echo(str(case))
    click.echo(table(done))
    for how, count in sorted(Counter(case.repaired for case in done if case.repaired).items()):
        click.echo(f"{count} refused, {how}")
    sys.exit(any(case.end in (End.SILENT, End.WEDGED) for case in done))


if __name__ == "__main__":
    main()
