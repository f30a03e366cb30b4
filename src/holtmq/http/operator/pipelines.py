"""Streaming queries that report to the broker: ``/api/v1/pipelines``.

Owns: the wire form. Must not touch: what a query does; the broker only shows what was reported.
"""

from typing import Final

import msgspec

from holtmq.http.engine.endpoints import ADMINISTER, MONITOR, WRITE, Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal
from holtmq.http.engine.pipeline_reports import Kept, QueryState, Report
from holtmq.http.engine.wire import iso_ms

_TEXT_MAX: Final = 2000
_SOURCES_MAX: Final = 100


class ReportIn(msgspec.Struct, rename="camel"):
    """One query after one batch; only the state must be known."""

    state: QueryState = QueryState.RUNNING
    name: str = ""
    batch: int | None = None
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0
    duration_ms: int = 0
    watermark: str = ""
    sources: list[str] = []
    sink: str = ""
    error: str = ""
    idle: bool = False  # nothing new since the last report: all other fields are ignored


async def report(call: Call) -> object:
    """Store a query's report; the next one replaces it. The answer says whether the query should stop."""
    query = call.path["query"]
    if not query or len(query) > 255:
        raise Refusal(400, "a query's id has 1 to 255 characters")
    given, pipelines = call.json(ReportIn), call.context.pipelines
    idle = pipelines.still_runs(query, call.now) if given.idle else None
    if idle is not None:
        return {"query": query, "stop": idle.is_asked_to_stop}
    kept = pipelines.add(
        Report(
            query,
            given.name[:255],
            given.state,
            given.batch,
            max(0, given.rows),
            given.rows_per_second,
            given.lag,
            given.state_rows,
            given.state_bytes,
            given.late_rows,
            given.duration_ms,
            given.watermark[:64],
            tuple(name[:255] for name in given.sources[:_SOURCES_MAX]),
            given.sink[:255],
            given.error[:_TEXT_MAX],
        ),
        call.now,
    )
    return {"query": query, "stop": kept.is_asked_to_stop}


async def stop(call: Call) -> object:
    """Ask a query to stop; it hears that in the answer to its next report."""
    query = call.path["query"]
    if not call.context.pipelines.ask_to_stop(query):
        raise Refusal(404, f"no query {query} is running")
    return Reply(202, {"query": query})


async def list_pipelines(call: Call) -> object:
    return {"pipelines": [_out(kept, call.now) for kept in call.context.pipelines.all()]}


def _out(kept: Kept, now: float) -> dict[str, object]:
    report = kept.report
    return {
        "query": report.query,
        "name": report.name,
        "state": report.state.value,
        "batch": report.batch,
        "rows": report.rows,
        "rowsPerSecond": report.rows_per_second,
        "rowsTotal": kept.rows_total,
        "batches": kept.batches,
        "lag": report.lag,
        "stateRows": report.state_rows,
        "stateBytes": report.state_bytes,
        "lateRows": report.late_rows,
        "durationMs": report.duration_ms,
        "watermark": report.watermark,
        "sources": list(report.sources),
        "sink": report.sink,
        "error": report.error,
        "lastError": kept.last_error,
        "reportedAt": iso_ms(round(kept.at * 1_000_000)),
        "isAskedToStop": kept.is_asked_to_stop,
        "silentSeconds": round(max(0.0, now - kept.at), 3),
    }


async def forget(call: Call) -> object:
    """Remove a query from the list; one that still runs reappears with its next report."""
    query = call.path["query"]
    if not call.context.pipelines.forget(query):
        raise Refusal(404, f"no query {query} has reported")
    return {"query": query}


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/api/v1/pipelines",
        MONITOR,
        "pipelines",
        "Streaming queries that report here, with their last batch",
        list_pipelines,
    ),
    Endpoint(
        "POST",
        "/api/v1/pipelines/{query}",
        WRITE,
        "pipelines",
        "Report a query's progress",
        report,
        body=ReportIn,
        statuses=(200, 400),
    ),
    Endpoint(
        "POST",
        "/api/v1/pipelines/{query}/stop",
        ADMINISTER,
        "pipelines",
        "Ask a query to stop",
        stop,
        statuses=(202, 404),
    ),
    Endpoint(
        "DELETE",
        "/api/v1/pipelines/{query}",
        WRITE,
        "pipelines",
        "Remove a query from the list",
        forget,
        statuses=(200, 404),
    ),
)
