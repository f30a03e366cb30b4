"""``python -m bench.stalls``."""

import click
from bench.stalls import GOAL_MS, REQUESTS, measure

_ROW = "| {:<75} | {:>9} | {:>15} | {:>11} | {:>11} |"


@click.command()
@click.option("--scale", default=1.0, show_default=True, help="How much of each: 0.1 is a tenth.")
@click.option("--only", multiple=True, help="These requests alone; may be repeated.")
def main(scale: float, only: tuple[str, ...]) -> None:
    """The worst stall of each request, printed as it is measured. The status is 1 if one failed."""
    unknown = set(only) - set(REQUESTS)
    if unknown:
        names = "".join(f"\n  {name}" for name in REQUESTS)
        raise click.UsageError(f"--only: no request is named {', '.join(unknown)}. There are:{names}")
    click.echo(_ROW.format("request", "of", "worst stall, ms", "all CPU, ms", f"goal: {GOAL_MS:g} ms"))
    failed = 0
    for name in only or REQUESTS:
        try:
            count, worst, total = measure(name, scale)
        except Exception as error:  # the others are still worth knowing
            failed += 1
            click.echo(f"| {name} | not measured: {error!r} |")
            continue
        reached = "yes" if worst <= GOAL_MS else "no"
        click.echo(_ROW.format(name, f"{count:,}", f"{worst:.0f}", f"{total:.0f}", reached))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
