"""``holt pipeline``: data pipelines on Spark, and without it.

Owns: the group and its commands: ``archives`` (lake), ``letters`` (dead letters, replay), ``declared`` (files
that declare jobs), ``doctor``, ``listing`` (queries that report), ``project`` (a new one). Must not touch:
what jobs do. pyspark is imported when a job runs, not before: ``--help`` is quick and works without it.
"""

import click

from holtmq.cli.pipeline.archives import archive, rollup, table
from holtmq.cli.pipeline.declared import run, serve
from holtmq.cli.pipeline.doctor import doctor
from holtmq.cli.pipeline.letters import dead_letters, redrive, replay
from holtmq.cli.pipeline.listing import list_pipelines
from holtmq.cli.pipeline.project import init_project


@click.group()
def pipeline() -> None:
    """Queues as streams and tables, on Apache Spark.

    \b
    First time?  holt pipeline doctor
    Keep every message for ever:      holt pipeline archive --queue orders --lake ./lake
    Ask the lake and the live queue:  holt pipeline table --queue orders --lake ./lake --sql "..."
    See what fails and why:           holt pipeline dead-letters --queue orders --html report.html
    Several jobs as one service:      holt pipeline serve jobs.toml

    Needs Java 17 and pip install 'holtmq[spark]'; archive --engine arrow needs neither Java nor Spark. Every
    job prints a JSON summary on standard output and its progress on standard error. SIGTERM ends a job after
    the batch it is at.
    """


for command in (
    archive,
    table,
    rollup,
    dead_letters,
    replay,
    redrive,
    run,
    serve,
    doctor,
    list_pipelines,
    init_project,
):
    pipeline.add_command(command)
