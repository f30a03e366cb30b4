"""``holt pipeline init``: a project for Spark's Declarative Pipelines.

Owns: arguments and words. Must not touch: what is in the project.
"""

from pathlib import Path

import click

from holtmq.cli.target import tls_ca_option


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--url",
    default="http://127.0.0.1:6632",
    envvar="HOLT_ADMIN_URL",
    show_default=True,
    show_envvar=True,
    help="The broker's HTTP address.",
)
@tls_ca_option
@click.option("--queue", default="orders", show_default=True, help="The queue to read.")
@click.option("--to", "target", default="large-orders", show_default=True, help="The queue to write.")
def init_project(folder: Path, url: str, tls_ca: Path | None, queue: str, target: str) -> None:
    """Write a project for Spark's Declarative Pipelines: queue, table, view, queue.

    \b
      holt pipeline init shop --queue orders
      cd shop && spark-pipelines run
    """
    from holtmq.spark.declarative import create_project
    from holtmq.spark.errors import InvalidOption

    try:
        files = create_project(folder, url, queue, target, str(tls_ca.resolve()) if tls_ca else "")
    except InvalidOption as error:
        raise click.ClickException(str(error)) from None
    for path in files:
        click.echo(str(path))
    click.echo(f"\nNow: cd {folder} && spark-pipelines run        # {folder}/README.md says what it needs")
