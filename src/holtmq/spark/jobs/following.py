"""Following streaming queries: Spark's progress reports as a few figures.

Owns: folding Spark's progress reports into rows in, rows out, watermark, lag, late rows. Must not touch:
starting or stopping queries.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.streaming.query import StreamingQuery

OBSERVED: Final = "holt_rows_out"  # name of the observation that counts a query's output
_EPOCH: Final = "1970-01-01T00:00:00.000Z"


@dataclass(slots=True)
class QueryFigures:
    """One query so far. Reports are folded batch by batch, because Spark keeps only the last hundred."""

    name: str
    rows_in: dict[int, int] = field(default_factory=dict)
    rows_out: dict[int, int] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)
    watermark: str | None = None
    lag: int | None = None
    rate: float = 0.0

    def take(self, query: "StreamingQuery") -> None:
        """Fold in Spark's current reports."""
        for one in query.recentProgress:
            number = one["batchId"]
            # Of each source, because Connect leaves out the sum.
            self.rows_in[number] = sum(source["numInputRows"] or 0 for source in one["sources"])
            observed = one["observedMetrics"].get(OBSERVED)
            if observed:  # without a value there was no output
                self.rows_out[number] = _only_value(observed)
            operators = one["stateOperators"]
            self.late[number] = sum(each["numRowsDroppedByWatermark"] for each in operators)
            mark = one["eventTime"].get("watermark")
            if mark and mark != _EPOCH:
                self.watermark = mark
            self.rate = one["processedRowsPerSecond"] or 0.0
            lags = [lag_of(source) for source in one["sources"]]
            known = [lag for lag in lags if lag is not None]
            self.lag = sum(known) if known else None

    def summary(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "rows_in": sum(self.rows_in.values()),
            "rows_out": sum(self.rows_out.values()),
            "batches": sum(1 for rows in self.rows_in.values() if rows),
            "lag": self.lag,
        }
        if self.watermark is not None:
            facts["watermark"] = self.watermark
            facts["late_rows"] = sum(self.late.values())
        if facts["rows_in"] and not facts["rows_out"]:
            facts["note"] = (
                "nothing was written: a window stays open until the watermark passes its end; "
                f"the watermark is at {self.watermark}"
                if self.watermark
                else "nothing was written: no row came through the steps"
            )
        return facts

    def line(self) -> str:
        behind = "" if self.lag is None else f", {self.lag:,} behind"
        rows = f"{sum(self.rows_in.values()):,} in, {sum(self.rows_out.values()):,} out"
        return f"{self.name}: {rows}, {self.rate:,.0f} rows/s{behind}"


def _only_value(observed: "Row") -> int:
    """The one observed value. Over Connect it comes in Spark's JSON form, as a list beside its schema."""
    value = observed["values"][0] if "values" in observed else observed[0]
    return int(value)


def lag_of(source: Mapping[str, object]) -> int | None:
    """Messages a query has not read yet, from one source's part of a report; None if unknown."""
    ends, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    if ends is None or latest is None:
        return None
    return sum(max(0, at - ends.get(queue, 0)) for queue, at in latest.items())


def _offsets(value: object) -> dict[str, int] | None:
    try:
        table = json.loads(value) if isinstance(value, str) else value
        assert isinstance(table, dict)
        return {queue: at[0] if isinstance(at, list) else int(at) for queue, at in table.items()}
    except (ValueError, AssertionError, TypeError):
        return None
