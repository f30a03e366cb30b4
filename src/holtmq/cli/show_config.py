"""``holt config``: the effective settings, and where each value comes from.

Owns: the printing. Must not touch: how values are found.
"""

from pathlib import Path

import click

from holtmq.cli.settings import load_or_exit, with_settings
from holtmq.config import render


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--defaults", is_flag=True, help="Print a commented file with every default, to start from.")
@with_settings
def config(as_json: bool, defaults: bool, config_file: Path | None, **options: object) -> None:
    """Print the effective configuration and the origin of every value.

    Takes the same options as serve and reads the same file and environment. Secrets are masked.
    """
    if defaults:
        click.echo(render.defaults_toml(), nl=False)
        return
    loaded = load_or_exit(config_file, options)
    if as_json:
        click.echo(render.effective_json(loaded))
        return
    rows = render.effective_rows(loaded)
    name_width = max(len(name) for name, _, _ in rows)
    value_width = min(max(len(value) for _, value, _ in rows), 40)
    for name, value, origin in rows:
        click.echo(f"{name:<{name_width}}  {value:<{value_width}}  {origin}")
