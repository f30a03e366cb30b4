"""``holt pipeline list``: streaming queries that report to the broker.

Owns: the table. Must not touch: Spark; nothing of it is needed here.
"""

import http.client
import json
import ssl
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec

from holtmq.cli.target import as_json, show

_TIMEOUT: Final = 30.0
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
@click.option("--url", default="http://127.0.0.1:6632", show_default=True, help="The broker's HTTP address.")
@click.option("--token", default="", envvar="HOLT_TOKEN", help="Token, if the broker requires one.")
@click.option("--tls-ca", default="", metavar="FILE", help="Authority behind an https address.")
@as_json
def list_pipelines(url: str, token: str, tls_ca: str, as_json: bool) -> None:
    """Show the streaming queries that report to a broker, with their last batch and last error.

    Every job reports by itself. In a program: holtmq.spark.report_to(spark, url).
    """
    answer = _get(url, token, tls_ca)
    if as_json:
        click.echo(json.dumps(json.loads(answer)["pipelines"], indent=2))
        return
    rows = [_line(row) for row in msgspec.json.decode(answer, type=PipelinesIn).pipelines]
    show(rows, Line.__struct_fields__, as_json=False)


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


def _get(url: str, token: str, tls_ca: str) -> bytes:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.BadParameter(f"{url!r} is not an address such as http://127.0.0.1:6632")
    connection = (
        http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT)
        if parts.scheme == "http"
        else http.client.HTTPSConnection(
            parts.hostname,
            parts.port,
            timeout=_TIMEOUT,
            context=ssl.create_default_context(cafile=tls_ca or None),
        )
    )
    try:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", parts.path.rstrip("/") + "/api/v1/pipelines", headers=headers)
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise click.ClickException(f"{url} did not answer: {error}") from None
    finally:
        connection.close()
    if response.status >= 300:
        reason = answer[:200].decode("utf-8", "replace")
        raise click.ClickException(f"the broker refused ({response.status}): {reason}")
    return answer
