"""``holt pipeline run``: pipelines that a file declares.

Owns: the command line. Must not touch: what the file means.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holtmq.cli.pipeline.common import finish, job_options

if TYPE_CHECKING:
    from holtmq.spark.jobs.running import Setting


@click.command()
@job_options(repeating=True)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--checkpoint",
    default="",
    metavar="PATH",
    help="Where Spark notes how far it is.  [default: beside FILE]",
)
@click.option(
    "--check", is_flag=True, help="Only check the file: its keys, and with Spark its SQL and columns."
)
def run(setting: "Setting", file: Path, checkpoint: str, check: bool) -> None:
    """Run a pipeline that a TOML file declares: sources, SQL steps, sinks.

    \b
      [sources.orders]
      queue = "orders"
      payload_schema = "id BIGINT, amount DOUBLE, kind STRING"
      watermark = "created_at 10 minutes"

    \b
      [steps.per_minute]
      sql = \"\"\"SELECT window(created_at, '1 minute') AS w, kind, sum(amount) AS total
               FROM orders GROUP BY 1, 2\"\"\"

    \b
      [sinks.totals]
      from = "per_minute"
      queue = "order-totals"

    The file is checked before Spark starts; an error names its line.
    """

    def job() -> dict[str, object]:
        from holtmq.spark.jobs.declared import load_pipeline
        from holtmq.spark.jobs.declared_run import check_pipeline, run_pipeline

        loaded = load_pipeline(file)
        if check:
            return check_pipeline(setting, loaded)
        where = checkpoint or str(file.resolve().with_suffix(".checkpoint"))
        return run_pipeline(setting, loaded, where)

    finish(job)
