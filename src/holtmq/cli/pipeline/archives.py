"""``holt pipeline archive``, ``table`` and ``rollup``: what concerns the lake.

Owns: their command lines. Must not touch: what the jobs do.
"""

from typing import TYPE_CHECKING

import click

from holtmq.cli.pipeline.common import (
    catalog_option,
    finish,
    format_option,
    job_options,
    lake_option,
    pairs,
    queue_option,
)

if TYPE_CHECKING:
    from holtmq.spark.jobs.running import Setting
    from holtmq.spark.lake.writer import Care


@click.command()
@job_options(repeating=True)
@queue_option
@lake_option
@format_option
@catalog_option
@click.option(
    "--engine",
    type=click.Choice(["spark", "arrow"]),
    default="spark",
    show_default=True,
    help="Who writes: Spark's executors, or this process alone, without a JVM.",
)
@click.option(
    "--group",
    default="archive",
    show_default=True,
    help="Consumer group that shows the progress; '' for none.",
)
@click.option(
    "--max-rows",
    default=500_000,
    show_default=True,
    type=click.IntRange(1),
    help="Maximum number of messages in a batch.",
)
@click.option(
    "--file-size", default="128m", show_default=True, metavar="SIZE", help="Size of a data file to aim at."
)
@click.option(
    "--compact/--no-compact", default=True, help="Join small files, also while running.  [default: compact]"
)
@click.option(
    "--keep", default="", metavar="TIME", help="Drop days older than that: 365d.  [default: keep all]"
)
@click.option(
    "--keep-removed",
    default="",
    metavar="TIME",
    help="Keep what compaction replaced for queries under way.  [default: parquet 0, delta 1d, iceberg 1h]",
)
@click.option("--from-latest", is_flag=True, help="A queue that is new to the lake starts at its end.")
@click.option(
    "--fail-on-data-loss/--no-fail-on-data-loss",
    default=True,
    help="Retention that overtook the lake is an error.  [default: fail]",
)
def archive(
    setting: "Setting",
    queues: str,
    lake: str,
    table_format: str | None,
    catalog: tuple[str, ...],
    engine: str,
    group: str,
    max_rows: int,
    file_size: str,
    compact: bool,
    keep: str,
    keep_removed: str,
    from_latest: bool,
    fail_on_data_loss: bool,
) -> None:
    """Keep messages in a lake: queue=.../date=.../, each exactly once.

    Kill it at any time, kill the broker: run it again and it goes on where it was. The lake is plain Parquet
    for every tool, or a Delta Lake or Iceberg table; `holt pipeline table` shows the live queue in the same
    relation. It has one writer at a time: a second one is refused.

    Retention of completed messages (completedRetentionSeconds) waits for the group of this job.

    \b
      holt pipeline archive --queue orders --lake ./lake
      holt pipeline archive --queue orders --lake ./lake --engine arrow --every 30s
      holt pipeline archive --queue orders,clicks --lake s3://bucket/lake --format delta --every 30s
    """

    def job() -> dict[str, object]:
        from holtmq.spark.jobs.archive import archive as run

        return run(
            setting,
            queues,
            lake,
            group=group,
            max_rows=max_rows,
            from_latest=from_latest,
            fail_on_data_loss=fail_on_data_loss,
            format=table_format or "",
            catalog=pairs("--catalog", catalog) or None,
            engine=engine,
            care=_care(file_size, compact, keep, keep_removed),
        )

    finish(job)


def _care(file_size: str, compact: bool, keep: str, keep_removed: str) -> "Care":
    from holtmq.spark.lake.writer import Care
    from holtmq.spark.option_values import parse_seconds, parse_size

    def parsed(option: str, text: str, how: object) -> float:
        try:
            return float(how(text))  # type: ignore[operator]  # one of the two parsers above
        except ValueError as error:
            raise click.UsageError(f"{option} {text}: {error}") from None

    return Care(
        target_bytes=int(parsed("--file-size", file_size, parse_size)),
        compact=compact,
        keep_days=parsed("--keep", keep, parse_seconds) / 86_400 if keep else 0,
        keep_removed=parsed("--keep-removed", keep_removed, parse_seconds) if keep_removed else None,
    )


@click.command()
@job_options()
@queue_option
@lake_option
@catalog_option
@click.option(
    "--sql", default="SELECT queue, count(*) AS messages FROM messages GROUP BY queue", show_default=True
)
@click.option("--out", type=click.Path(), help="Write the result as Parquet instead of printing it.")
@click.option("--limit", default=20, show_default=True, help="Maximum number of rows.")
def table(
    setting: "Setting",
    queues: str,
    lake: str,
    catalog: tuple[str, ...],
    sql: str,
    out: str | None,
    limit: int,
) -> None:
    """Ask one relation over the lake and the live queue: every message once.

    The relation is called `messages`; payload is binary: CAST(payload AS STRING), or from_json on it.

    \b
      holt pipeline table --queue orders --lake ./lake \\
        --sql "SELECT date(created_at) AS day, count(*) FROM messages GROUP BY 1 ORDER BY 1"
    """

    def job() -> dict[str, object]:
        from holtmq.spark.lake import table as relation

        spark = setting.session("table")
        options = dict(setting.source)
        url = options.pop("url")
        chosen = pairs("--catalog", catalog) or None
        relation(spark, lake, url, queues, catalog=chosen, **options).createOrReplaceTempView("messages")
        result = spark.sql(sql)
        if out:
            result.write.mode("overwrite").parquet(out)
            return {"job": "table", "out": out, "rows": spark.read.parquet(out).count()}
        rows = [row.asDict(recursive=True) for row in result.limit(limit).collect()]
        return {"job": "table", "columns": result.columns, "rows": rows}

    finish(job)


@click.command()
@job_options(repeating=True)
@queue_option
@lake_option
@format_option
@click.option("--partial", is_flag=True, help="Include the current, incomplete minute.")
def rollup(setting: "Setting", queues: str, lake: str, table_format: str | None, partial: bool) -> None:
    """Figures per minute, queue, partition and consumer group, in the lake.

    Pushed, bytes, delivered, acked, failed, dead, and how long messages waited (p50, p95, p99). Deliveries
    come from the queue's newest history: run it every few minutes on a busy queue.

    \b
      holt pipeline rollup --queue orders --lake ./lake --every 1m
    """

    def job() -> dict[str, object]:
        from holtmq.spark.jobs.rollup import rollup as run

        return run(setting, queues, lake, partial=partial, format=table_format or "")

    finish(job)
