"""``holt pipeline``: data pipelines on Spark.

Owns: from command line to a job, and its summary on standard output. Must not touch: what jobs do. pyspark is
imported when a job runs, not before: ``--help`` is quick and works without it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from holtmq.spark.jobs.running import Setting

F = TypeVar("F", bound=Callable[..., object])


@click.group()
def pipeline() -> None:
    """Queues as streams and tables, on Apache Spark.

    \b
    First time?  holt pipeline doctor
    Keep every message for ever:      holt pipeline archive --queue orders --lake ./lake
    Ask the lake and the live queue:  holt pipeline table --queue orders --lake ./lake --sql "..."
    See what fails and why:           holt pipeline dead-letters --queue orders --html report.html

    Needs Java 17 and pip install 'holtmq[spark]'. Every job prints a JSON summary on standard output and its
    progress on standard error.
    """


_url = click.option(
    "--url", default="http://127.0.0.1:6632", show_default=True, help="The broker's HTTP address."
)
_token = click.option("--token", default="", envvar="HOLT_TOKEN", help="Token for a broker that wants one.")
_tls_ca = click.option(
    "--tls-ca", default="", metavar="FILE", help="Authority behind an https address.  [default: the system's]"
)
_RETRY_TIMEOUT = "holtmq.retry_timeout"


def _keep_retry_timeout(context: click.Context, option: click.Parameter, value: str) -> None:
    from holtmq.spark.options import parse_seconds

    try:
        parse_seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, option) from None
    context.meta[_RETRY_TIMEOUT] = value


_retry_timeout = click.option(
    "--retry-timeout",
    default="5m",
    show_default=True,
    metavar="TIME",
    expose_value=False,  # the same for every job: ``_setting`` reads it from the context
    callback=_keep_retry_timeout,
    help="How long the broker may be away before the job fails: 30s, 10m.",
)


def _common(command: F) -> F:
    for option in (
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
        _retry_timeout,
        _tls_ca,
        _token,
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://...",
        ),
        _url,
    ):
        command = option(command)
    return command


def _repeating(command: F) -> F:
    every = click.option("--every", metavar="TIME", help="Go on for ever, a batch every so often: 10s, 5m.")
    once = click.option("--once", is_flag=True, help="Do what there is now, then end.  [default]")
    return once(every(command))


def _setting(
    url: str,
    master: str,
    token: str,
    tls_ca: str,
    conf: tuple[str, ...],
    once: bool = True,
    every: str | None = None,
) -> "Setting":
    try:
        from holtmq.spark.jobs.running import Setting
        from holtmq.spark.options import parse_seconds
    except ImportError as error:
        raise click.ClickException(f"{error}. Install it with: pip install 'holtmq[spark]'") from None
    if once and every:
        raise click.UsageError("--once and --every exclude each other")
    pairs = dict(pair.partition("=")[::2] for pair in conf)
    retry_timeout = click.get_current_context().meta[_RETRY_TIMEOUT]
    try:
        seconds = parse_seconds(every) if every else None
        return Setting(url, master, token, seconds, pairs, tls_ca, retry_timeout=retry_timeout)
    except ValueError as error:
        raise click.UsageError(f"--every: {error}") from None


def _finish(job: Callable[[], dict[str, object]]) -> None:
    from pyspark.errors import PySparkException

    from holtmq.spark.errors import HoltSparkError

    try:
        summary = job()
    except HoltSparkError as error:
        raise click.ClickException(str(error)) from None
    except PySparkException as error:
        raise click.ClickException(_reason(str(error))) from None
    click.echo(json.dumps(summary, indent=2, default=str))


def _reason(text: str) -> str:
    """The line a person needs, out of Spark's pages."""
    ours = [line.strip() for line in text.splitlines() if "holtmq.spark.errors." in line]
    return ours[-1].partition("holtmq.spark.errors.")[2] if ours else text.strip()[:2000]


_queue = click.option("--queue", "queues", required=True, help="Queue, or several with commas between.")
_lake = click.option("--lake", required=True, metavar="PATH", help="Folder, or hdfs:// or s3a:// address.")


@pipeline.command()
@_common
@_repeating
@_queue
@_lake
@click.option(
    "--checkpoint",
    default="",
    metavar="PATH",
    help="Where Spark notes how far it is.  [default: in the lake]",
)
@click.option(
    "--group",
    default="archive",
    show_default=True,
    help="Consumer group that shows the progress; '' for none.",
)
@click.option("--max-rows", default=500_000, show_default=True, help="Most messages in one batch.")
@click.option("--compact/--no-compact", default=True, help="Join small files at the end.  [default: compact]")
def archive(
    url: str,
    master: str,
    token: str,
    tls_ca: str,
    conf: tuple[str, ...],
    once: bool,
    every: str | None,
    queues: str,
    lake: str,
    checkpoint: str,
    group: str,
    max_rows: int,
    compact: bool,
) -> None:
    """Keep messages in a Parquet lake: queue=.../date=.../, each exactly once.

    Kill it at any time, kill the broker: run it again and it goes on where it was. The lake is plain Parquet
    for every tool; read it through `holt pipeline table` to see the live queue in the same relation.

    Retention of completed messages (completedRetentionSeconds) waits for the group of this job.

    \b
      holt pipeline archive --queue orders --lake ./lake
      holt pipeline archive --queue orders,clicks --lake s3a://bucket/lake --every 30s
    """
    setting = _setting(url, master, token, tls_ca, conf, once, every)
    from holtmq.spark.jobs.archive import archive as job

    _finish(lambda: job(setting, queues, lake, checkpoint, group=group, max_rows=max_rows, compact=compact))


@pipeline.command()
@_common
@_queue
@_lake
@click.option(
    "--sql", default="SELECT queue, count(*) AS messages FROM messages GROUP BY queue", show_default=True
)
@click.option("--out", type=click.Path(), help="Write the result as Parquet instead of printing it.")
@click.option("--limit", default=20, show_default=True, help="Most rows to print.")
def table(
    url: str,
    master: str,
    token: str,
    tls_ca: str,
    conf: tuple[str, ...],
    queues: str,
    lake: str,
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
    setting = _setting(url, master, token, tls_ca, conf)

    def job() -> dict[str, object]:
        from holtmq.spark.lake import table as relation

        spark = setting.session("table")
        extra = {name: value for name, value in setting.source.items() if name != "url"}
        relation(spark, lake, url, queues, **extra).createOrReplaceTempView("messages")
        result = spark.sql(sql)
        if out:
            result.write.mode("overwrite").parquet(out)
            return {"job": "table", "out": out, "rows": spark.read.parquet(out).count()}
        rows = [row.asDict(recursive=True) for row in result.limit(limit).collect()]
        return {"job": "table", "columns": result.columns, "rows": rows}

    _finish(job)


@pipeline.command()
@_common
@_repeating
@_queue
@_lake
@click.option("--partial", is_flag=True, help="Take the minute that is not over yet too.")
def rollup(
    url: str,
    master: str,
    token: str,
    tls_ca: str,
    conf: tuple[str, ...],
    once: bool,
    every: str | None,
    queues: str,
    lake: str,
    partial: bool,
) -> None:
    """Figures per minute, queue, partition and consumer group, in the lake.

    Pushed, bytes, delivered, acked, failed, dead, and how long messages waited (p50, p95, p99). Deliveries
    come from the queue's newest history: run it every few minutes on a busy queue.

    \b
      holt pipeline rollup --queue orders --lake ./lake --every 1m
    """
    setting = _setting(url, master, token, tls_ca, conf, once, every)
    from holtmq.spark.jobs.rollup import rollup as job

    _finish(lambda: job(setting, queues, lake, partial=partial))


@pipeline.command("dead-letters")
@_common
@_queue
@click.option("--lake", default="", metavar="PATH", help="Keep them as Parquet below this folder.")
@click.option("--html", default="", type=click.Path(), help="Write a report with charts, one file.")
@click.option("--since", default="", metavar="TIME", help="Only failures since then (ISO-8601).")
def dead_letters(
    url: str,
    master: str,
    token: str,
    tls_ca: str,
    conf: tuple[str, ...],
    queues: str,
    lake: str,
    html: str,
    since: str,
) -> None:
    """What fails and why: errors grouped into families, by queue, group and hour.

    "order 17 not found" and "order 18 not found" are one family. Each comes with its first and last time,
    and with samples.

    \b
      holt pipeline dead-letters --queue orders --html report.html
    """
    setting = _setting(url, master, token, tls_ca, conf)
    from holtmq.spark.jobs.dead_letters import dead_letters as job

    _finish(lambda: job(setting, queues, lake=lake, html=html, since=since))


@pipeline.command()
@_common
@click.option("--queue", default="", help="Take messages of this queue.")
@click.option("--lake", default="", metavar="PATH", help="Take messages of this lake.")
@click.option("--where", default="", metavar="SQL", help="Which; `json` is the payload as text.")
@click.option("--to", required=True, metavar="QUEUE", help="Where they go.")
@click.option(
    "--id", "write_id", default="", help="Name of this replay: it happens once, however often it is run."
)
@click.option("--limit", default=0, help="At most so many, the oldest first.")
@click.option("--dry-run", is_flag=True, help="Only count.")
def replay(
    url: str,
    master: str,
    token: str,
    tls_ca: str,
    conf: tuple[str, ...],
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
    setting = _setting(url, master, token, tls_ca, conf)
    from holtmq.spark.jobs.replay import replay as job

    _finish(
        lambda: job(
            setting,
            queue=queue,
            lake=lake,
            where=where,
            to=to,
            write_id=write_id,
            dry_run=dry_run,
            limit=limit,
        )
    )


@pipeline.command()
@_common
@_queue
@click.option(
    "--where", default="", metavar="SQL", help="Which: error, attempts, group, last_failed_at, json ..."
)
@click.option(
    "--rate", default=100.0, show_default=True, type=click.FloatRange(0.1), help="Most messages a second."
)
@click.option("--to", default="", metavar="QUEUE", help="Another queue than the one they came from.")
@click.option("--limit", default=0, help="At most so many, the oldest first.")
@click.option("--dry-run", is_flag=True, help="Only count.")
def redrive(
    url: str,
    master: str,
    token: str,
    tls_ca: str,
    conf: tuple[str, ...],
    queues: str,
    where: str,
    rate: float,
    to: str,
    limit: int,
    dry_run: bool,
) -> None:
    """Send dead letters back to the queue they came from, at a measured pace.

    Each is pushed and taken off the dead letters in one step: a run that died is simply repeated.

    \b
      holt pipeline redrive --queue orders --dry-run --where "error LIKE '%timeout%' AND attempts < 5"
    """
    setting = _setting(url, master, token, tls_ca, conf)
    from holtmq.spark.jobs.replay import redrive as job

    _finish(lambda: job(setting, queues, where=where, rate=rate, to=to, dry_run=dry_run, limit=limit))


@pipeline.command()
@_common
@_repeating
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--checkpoint",
    default="",
    metavar="PATH",
    help="Where Spark notes how far it is.  [default: beside FILE]",
)
@click.option("--check", is_flag=True, help="Only check the file.")
def run(
    url: str,
    master: str,
    token: str,
    tls_ca: str,
    conf: tuple[str, ...],
    once: bool,
    every: str | None,
    file: Path,
    checkpoint: str,
    check: bool,
) -> None:
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
    setting = _setting(url, master, token, tls_ca, conf, once, every)
    from holtmq.spark.errors import HoltSparkError
    from holtmq.spark.jobs.declared import load_pipeline, run_pipeline

    try:
        loaded = load_pipeline(file)
    except HoltSparkError as error:
        raise click.ClickException(str(error)) from None
    if check:
        click.echo(
            f"{file}: {len(loaded.sources)} sources, {len(loaded.steps)} steps, {len(loaded.sinks)} sinks"
        )
        return
    where = checkpoint or str(file.resolve().with_suffix(".checkpoint"))
    _finish(lambda: run_pipeline(setting, loaded, where))


@pipeline.command()
@_url
@_token
@_tls_ca
@click.option("--spark/--no-spark", default=True, help="Start Spark for a moment too.  [default: spark]")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(url: str, token: str, tls_ca: str, spark: bool, as_json: bool) -> None:
    """Say in plain words what is missing: Java, packages, broker, permissions."""
    from holtmq.spark import doctor as examination

    findings = []
    for finding in examination.examine(url, token, tls_ca, start_spark=spark):
        findings.append(finding)
        if not as_json:
            mark = click.style("ok     ", fg="green") if finding.good else click.style("missing", fg="red")
            click.echo(f"{mark}  {finding.what}: {finding.text}")
    if as_json:
        click.echo(examination.as_json(findings))
    if not all(finding.good for finding in findings):
        raise SystemExit(1)
