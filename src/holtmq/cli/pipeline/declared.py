"""``holt pipeline run`` and ``serve``: pipelines and services that a file declares.

Owns: their command lines. Must not touch: what the files mean.
"""

import json
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
    help="Spark's checkpoint folder.  [default: beside FILE]",
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


@click.command()
@job_options()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--health",
    default="127.0.0.1:6650",
    show_default=True,
    metavar="HOST:PORT",
    help="Where /health and /metrics are.",
)
@click.option("--check", is_flag=True, help="Only check the file.")
def serve(setting: "Setting", file: Path, health: str, check: bool) -> None:
    """Run the jobs of a TOML file as one service, until stopped.

    Each job is restarted when it fails, after a pause that grows up to 5 minutes. SIGTERM ends all of them
    after the batch they are at.

    \b
      [jobs.keep-orders]
      kind = "archive"          # archive, rollup or run
      queue = "orders"
      lake = "lake"
      format = "delta"
      every = "30s"

    \b
      [jobs.totals]
      kind = "run"
      file = "totals.toml"
      every = "10s"
    """

    def job() -> dict[str, object]:
        from holtmq.spark.jobs.running import Progress
        from holtmq.spark.jobs.service import Service
        from holtmq.spark.jobs.service_file import load_jobs
        from holtmq.spark.jobs.service_http import ServiceHttp

        jobs = load_jobs(file, setting)
        if check:
            return {"job": "check", "jobs": {one.name: one.kind for one in jobs}}
        if any(one.needs_spark for one in jobs):
            setting.session("serve")  # once, before threads ask for it
        progress = Progress(setting.out)
        service = Service(jobs, progress)
        with ServiceHttp(service, health) as pages:
            served = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
            progress.note(f"serving {served}, health and metrics on port {pages.port}")
            summary = service.run()
        if service.broken or not service.healthy:
            click.echo(json.dumps(summary, indent=2, default=str))
            raise click.ClickException(service.broken or "a job failed: see its last_error")
        return summary

    finish(job)
