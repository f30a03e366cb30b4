"""Status reports from streaming queries that run outside the broker.

Owns: the last report of each query, and how many are kept. Must not touch: the wire, the queues. Nothing here
is durable: a running query reports again after a restart.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

QUERIES_MAX: Final = 1000  # the oldest reports are dropped first, those of ended queries before others


class QueryState(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Report:
    """One query after one batch."""

    query: str  # its id, which outlives restarts
    name: str = ""
    state: QueryState = QueryState.RUNNING
    batch: int | None = None
    rows: int = 0  # of this batch
    rows_per_second: float = 0.0
    lag: int | None = None  # messages in its sources that it has not read
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0
    duration_ms: int = 0
    watermark: str = ""
    sources: tuple[str, ...] = ()
    sink: str = ""
    error: str = ""


@dataclass(slots=True)
class Kept:
    """The newest report of a query, and its totals."""

    report: Report
    at: float
    began: float
    rows_total: int = 0
    batches: int = 0
    last_error: str = ""
    is_asked_to_stop: bool = False


@dataclass(slots=True)
class PipelineReports:
    """One per node, on the loop's thread."""

    _kept: dict[str, Kept] = field(default_factory=dict)

    def add(self, report: Report, now: float) -> Kept:
        """Store a report; a batch that is reported twice in a row counts once."""
        kept = self._kept.pop(report.query, None)
        if kept is None:
            kept = Kept(report, now, now)
            self._count(kept, report)
        else:
            if report.batch is not None and report.batch != kept.report.batch:
                self._count(kept, report)
            kept.report, kept.at = report, now
        kept.last_error = report.error or kept.last_error
        if report.state is not QueryState.RUNNING:
            kept.is_asked_to_stop = False  # it has, or it was started anew
        self._kept[report.query] = kept  # the newest last
        while len(self._kept) > QUERIES_MAX:
            ended = (q for q, one in self._kept.items() if one.report.state is not QueryState.RUNNING)
            del self._kept[next(ended, next(iter(self._kept)))]
        return kept

    def still_runs(self, query: str, now: float) -> Kept | None:
        """Note that a query has nothing new to report; None when it has never reported."""
        kept = self._kept.get(query)
        if kept is not None:
            kept.at = now
        return kept

    def ask_to_stop(self, query: str) -> bool:
        """Ask a query to stop with its next report; False when no running one has this id."""
        kept = self._kept.get(query)
        if kept is None or kept.report.state is not QueryState.RUNNING:
            return False
        kept.is_asked_to_stop = True
        return True

    @staticmethod
    def _count(kept: Kept, report: Report) -> None:
        if report.batch is not None:
            kept.batches += 1
            kept.rows_total += report.rows

    def all(self) -> list[Kept]:
        """Queries, by name and id."""
        return sorted(self._kept.values(), key=lambda kept: (kept.report.name, kept.report.query))

    def forget(self, query: str) -> bool:
        """Drop a query's report; False when there is none."""
        return self._kept.pop(query, None) is not None
