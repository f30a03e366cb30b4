"""What the commands of ``holt pipeline`` share: their options, the setting made of them, how a job ends.

Owns: from command line to ``Setting``, and from a failure to one sentence. Must not touch: what jobs do.
"""

import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from holtmq.cli.pipeline.connection import PipelineBroker, with_pipeline_broker

if TYPE_CHECKING:
    from holtmq.spark.jobs.running import Setting

F = TypeVar("F", bound=Callable[..., object])

queue_option = click.option(
    "--queue",
    "queues",
    required=True,
    help=r"Queue, or several with commas between; \, is a comma of a name.",
)
lake_option = click.option(
    "--lake", required=True, metavar="PATH", help="Folder, or an address such as s3://bucket/lake."
)
format_option = click.option(
    "--format",
    "table_format",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    help="Table format of the lake.  [default: as it is; a new one as parquet]",
)
catalog_option = click.option(
    "--catalog",
    multiple=True,
    metavar="KEY=VALUE",
    help="Iceberg: a catalog as pyiceberg knows it (uri=..., type=...) and table=namespace.name.",
)
_broker = (
    click.option(
        "--retry-timeout",
        default="5m",
        show_default=True,
        metavar="TIME",
        help="How long the broker may be away before the job fails: 30s, 10m.",
    ),
)
_spark = (
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://...",
    ),
)
_repeating = (
    click.option("--every", metavar="TIME", help="Run until stopped, one batch per interval: 10s, 5m."),
    click.option("--once", is_flag=True, help="Process what is available now, then stop.  [default]"),
)


def job_options(*, repeating: bool = False) -> Callable[[F], F]:
    """Give a command the options every job has, as one ``setting``."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def run(
            *,
            broker: PipelineBroker,
            retry_timeout: str,
            master: str,
            conf: tuple[str, ...],
            once: bool = False,
            every: str | None = None,
            **rest: object,
        ) -> object:
            made = _setting(broker, master, retry_timeout, conf, once, every)
            return command(setting=made, **rest)

        wrapped: Callable[..., object] = with_pipeline_broker(run)
        for option in (*_spark, *_broker, *(_repeating if repeating else ())):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[return-value]  # click's own decorators are as loose

    return decorate


def _setting(
    broker: PipelineBroker,
    master: str,
    retry: str,
    conf: tuple[str, ...],
    once: bool,
    every: str | None,
) -> "Setting":
    try:
        from holtmq.spark.jobs.running import Setting
        from holtmq.spark.option_values import parse_seconds
    except ImportError as error:
        raise click.ClickException(missing(error)) from None
    if once and every:
        raise click.UsageError("--once and --every exclude each other")
    for option, value in (("--every", every), ("--retry-timeout", retry)):
        try:
            parse_seconds(value or "0")
        except ValueError as error:
            raise click.UsageError(f"{option} {value}: {error}") from None
    seconds = parse_seconds(every) if every else None
    return Setting(
        broker.url,
        master,
        broker.token,
        seconds,
        pairs("--conf", conf),
        broker.tls_ca,
        retry_timeout=retry,
        user=broker.user,
        password=broker.password,
    )


def pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE`` options as a table."""
    for one in given:
        if "=" not in one:
            raise click.UsageError(f"{option} {one}: write it as KEY=VALUE")
    return dict(one.partition("=")[::2] for one in given)


def missing(error: ImportError) -> str:
    """What to install when a module is not there."""
    advice = f"{error}. Install it with: pip install 'holtmq[spark]'"
    if (error.name or "").partition(".")[0] in ("pyarrow", "numpy"):
        advice += "; archive --engine arrow needs no more than pip install 'holtmq[arrow]'"
    return advice


def finish(job: Callable[[], dict[str, object]]) -> None:
    """Run a job and print its summary; a failure becomes one sentence."""
    try:
        summary = job()
    except ImportError as error:
        raise click.ClickException(missing(error)) from None
    except click.ClickException:
        raise
    except Exception as error:
        text = reason(error)
        if text is None:
            raise
        raise click.ClickException(text) from None
    click.echo(json.dumps(summary, indent=2, default=str))


def reason(error: Exception) -> str | None:
    """What to tell about a job's failure: our sentence first, Spark's wrapping after; None for a bug."""
    from holtmq.spark.errors import HoltSparkError, our_words

    if isinstance(error, HoltSparkError | OSError):
        return str(error)
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        return our_words(str(error))
    return None
