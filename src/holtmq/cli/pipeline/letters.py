"""``holt pipeline dead-letters``, ``replay`` and ``redrive``: what failed, and sending messages again.

Owns: their command lines. Must not touch: what the jobs do.
"""

from typing import TYPE_CHECKING

import click

from holtmq.cli.pipeline.common import finish, job_options, queue_option
from holtmq.cli.ranges import Finite

if TYPE_CHECKING:
    from holtmq.spark.jobs.running import Setting


@click.command("dead-letters")
@job_options()
@queue_option
@click.option("--lake", default="", metavar="PATH", help="Store them as Parquet in this folder.")
@click.option("--html", default="", type=click.Path(), help="Write a report with charts, one file.")
@click.option("--since", default="", metavar="TIME", help="Only failures since then (ISO-8601).")
def dead_letters(setting: "Setting", queues: str, lake: str, html: str, since: str) -> None:
    """What fails and why: errors grouped into families, by queue, group and hour.

    "order 17 not found" and "order 18 not found" are one family. Each comes with its first and last time,
    and with samples.

    \b
      holt pipeline dead-letters --queue orders --html report.html
    """

    def job() -> dict[str, object]:
        from holtmq.spark.jobs.dead_letters import dead_letters as run

        return run(setting, queues, lake=lake, html=html, since=since)

    finish(job)


@click.command()
@job_options()
@click.option("--queue", default="", help="Read messages from this queue.")
@click.option("--lake", default="", metavar="PATH", help="Read messages from this lake.")
@click.option("--where", default="", metavar="SQL", help="SQL condition; `json` is the payload as text.")
@click.option("--to", required=True, metavar="QUEUE", help="Destination queue.")
@click.option(
    "--id", "write_id", default="", help="Name of this replay: it happens once, however often it is run."
)
@click.option("--limit", default=0, help="Maximum number, oldest first.")
@click.option("--dry-run", is_flag=True, help="Only count.")
def replay(
    setting: "Setting",
    queue: str,
    lake: str,
    where: str,
    to: str,
    write_id: str,
    limit: int,
    dry_run: bool,
) -> None:
    """Put old messages into a queue again, all or nothing.

    \b
      holt pipeline replay --lake ./lake --to orders-again --dry-run \\
        --where "queue = 'orders' AND created_at >= '2026-05-01' AND get_json_object(json, '$.kind') = 'book'"
    """

    def job() -> dict[str, object]:
        from holtmq.spark.jobs.replay import replay as run

        return run(
            setting,
            queue=queue,
            lake=lake,
            where=where,
            to=to,
            write_id=write_id,
            dry_run=dry_run,
            limit=limit,
        )

    finish(job)


@click.command()
@job_options()
@queue_option
@click.option(
    "--where",
    default="",
    metavar="SQL",
    help="SQL condition over error, attempts, group, last_failed_at, json ...",
)
@click.option(
    "--rate",
    default=100.0,
    show_default=True,
    type=Finite(0.1),
    help="Maximum rate in messages per second.",
)
@click.option("--to", default="", metavar="QUEUE", help="Another queue than the one they came from.")
@click.option("--limit", default=0, help="Maximum number, oldest first.")
@click.option("--dry-run", is_flag=True, help="Only count.")
def redrive(
    setting: "Setting", queues: str, where: str, rate: float, to: str, limit: int, dry_run: bool
) -> None:
    """Send dead letters back to the queue they came from, at a measured pace.

    Each is pushed and taken off the dead letters in one step: a run that died is simply repeated.

    \b
      holt pipeline redrive --queue orders --dry-run --where "error LIKE '%timeout%' AND attempts < 5"
    """

    def job() -> dict[str, object]:
        from holtmq.spark.jobs.replay import redrive as run

        return run(setting, queues, where=where, rate=rate, to=to, dry_run=dry_run, limit=limit)

    finish(job)
