"""``python -m bench.stalls``."""

import click
from bench.stalls import GOAL_MS, REQUESTS, measure
from rich.console import Console
from rich.table import Table


@click.command()
@click.option("--scale", default=1.0, show_default=True, help="How much of each: 0.1 is a tenth.")
@click.option("--only", type=click.Choice(list(REQUESTS)), help="One request alone.")
def main(scale: float, only: str | None) -> None:
    """The worst stall of each request."""
    table = Table("request", "of", "worst stall, ms", "all CPU, ms", f"goal: {GOAL_MS:g} ms")
    for name in [only] if only else REQUESTS:
        count, worst, total = measure(name, scale)
        table.add_row(name, f"{count:,}", f"{worst:.0f}", f"{total:.0f}", "yes" if worst <= GOAL_MS else "no")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
