"""Progress reports of streaming queries as figures."""

from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import Row
from pyspark.sql.streaming.query import StreamingQuery

from holtmq.spark.jobs.following import OBSERVED, QueryFigures


def report(number: int, rows_in: int | None, observed: dict[str, Row]) -> dict[str, Any]:
    """One of Spark's reports, as far as it is read."""
    return {
        "batchId": number,
        "numInputRows": None,  # so a Connect client reads it
        "observedMetrics": observed,
        "stateOperators": [],
        "eventTime": {},
        "processedRowsPerSecond": 1.0,
        "sources": [{"numInputRows": rows_in, "endOffset": None, "latestOffset": None}],
    }


def test_batches_are_counted_once_also_where_spark_observed_nothing() -> None:
    figures = QueryFigures("out")
    empty = report(1, None, {OBSERVED: Row()})  # what a Connect client makes of no output
    over_connect = Row("values", "schema")([1], {"type": "struct"})
    reports = [report(0, 4, {OBSERVED: Row(rows=3)}), empty, report(2, 1, {OBSERVED: over_connect})]
    query = cast(StreamingQuery, SimpleNamespace(recentProgress=reports))

    figures.take(query)
    figures.take(query)

    assert figures.summary() == {"rows_in": 5, "rows_out": 4, "batches": 2, "lag": None}
