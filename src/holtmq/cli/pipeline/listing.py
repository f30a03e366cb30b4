"""``holt pipeline list``: streaming queries that report to the broker.

Owns: the table. Must not touch: Spark; nothing of it is needed here.
"""

import json
from contextlib import closing
from pathlib import Path
from typing import Final

import click
import msgspec

from holtmq.cli.broker_api import BrokerApi, BrokerUnreachable
from holtmq.cli.pipeline.connection import PipelineBroker, with_pipeline_broker
from holtmq.cli.target import as_json, show

_SILENT_SECONDS: Final = 120.0


class PipelineRow(msgspec.Struct, rename="camel", frozen=True):
    """One query."""

    query: str
    name: str
    state: str
    batch: int | None
    rows_per_second: float
    rows_total: int
    lag: int | None
    state_rows: int
    late_rows: int
    silent_seconds: float
    sources: list[str]
    last_error: str


class PipelinesIn(msgspec.Struct, frozen=True):
    pipelines: list[PipelineRow]


class Line(msgspec.Struct, frozen=True):
    """One query, as it is shown."""

    name: str
    state: str
    batch: int | None
    rows_per_second: str
    rows: str
    behind: str
    state_rows: int
    late: int
    reads: list[str]
    last_error: str


@click.command("list")
@with_pipeline_broker
@as_json
def list_pipelines(broker: PipelineBroker, as_json: bool) -> None:
    """Show the streaming queries that report to a broker, with their last batch and last error.

    Every job reports by itself. In a program: holtmq.spark.report_to(spark, url).
    """
    tls_ca = Path(broker.tls_ca) if broker.tls_ca else None
    token = None if broker.user else broker.token
    api = BrokerApi(broker.url, broker.user, broker.password, tls_ca, token)
    with closing(api):
        try:
            api.open()
        except BrokerUnreachable as silence:
            raise click.ClickException(str(silence)) from None
        answer = api.send("GET", "v1", "pipelines")
        found = api.decoded(PipelinesIn, answer).pipelines
    if as_json:
        click.echo(json.dumps(json.loads(answer)["pipelines"], indent=2))
        return
    show([_line(row) for row in found], Line.__struct_fields__, as_json=False)


def _line(row: PipelineRow) -> Line:
    silent = row.state == "running" and row.silent_seconds > _SILENT_SECONDS
    return Line(
        row.name or row.query[:8],
        f"silent {row.silent_seconds:.0f}s" if silent else row.state,
        row.batch,
        f"{row.rows_per_second:,.0f}",
        f"{row.rows_total:,}",
        "" if row.lag is None else f"{row.lag:,}",
        row.state_rows,
        row.late_rows,
        row.sources,
        row.last_error.partition("\n")[0][:80],
    )
