"""A listener that reports the progress of every streaming query of a session to the broker.

Owns: the conversion of Spark's progress into a report, and the consumer groups that mirror it. Must not
touch: the queries, except to stop one that an operator asked to stop. An unreachable broker does not disturb
a query: that report is lost, the next one follows.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import HoltSparkError
from holtmq.spark.offsets import GROUP, queue_of
from holtmq.spark.options import source_options

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

log = logging.getLogger(__name__)

_PATIENCE: Final = 2.0  # seconds for one report: Spark calls all listeners of a session one after the other


class ProgressListener(StreamingQueryListener):
    """``spark.streams.addListener(ProgressListener(url))``."""

    def __init__(self, url: str, **options: str) -> None:
        given = source_options({**options, "url": url, "queue": "-"}, streaming=None).connection
        self._connection = replace(given, timeout=5.0, retry_seconds=_PATIENCE)
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        self._names[str(event.id)] = event.name or ""
        self._send(str(event.id), {"state": "running", "name": event.name or ""}, {})

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        self._send(str(progress.id), report_of(progress), cursors_of(progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Tell that the query still runs, and hear whether it should stop."""
        self._send(str(event.id), {"idle": True}, {})

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        error = event.exception or ""
        state = "failed" if error else "stopped"
        name = self._names.pop(str(event.id), "")
        self._send(str(event.id), {"state": state, "name": name, "error": _sentence(error)}, {})

    def _send(self, query: str, report: Mapping[str, object], cursors: Mapping[tuple[str, str], int]) -> None:
        try:
            with BrokerClient(self._connection) as broker:
                answer = broker.call("POST", f"/api/v1/pipelines/{query}", body=dict(report))
                for (queue, group), offset in cursors.items():
                    broker.mirror(queue, group, offset)
        except HoltSparkError as error:
            log.warning("the progress of query %s was not reported: %s", query, error)
            return
        if isinstance(answer, dict) and answer.get("stop"):
            # In a thread: the query ends only after its listeners have been told what happened so far.
            Thread(target=self._stop, args=(query,), name=f"stop {query}", daemon=True).start()

    def _stop(self, query: str) -> None:
        # Only Spark Connect tells a listener its session; else the application has one, as a rule.
        running = (self.spark or SparkSession.builder.getOrCreate()).streams.get(query)
        if running is None:
            log.warning("query %s should stop, but is not one of this session", query)
            return
        log.warning("query %s stops: an operator asked for it", query)
        running.stop()


def report_of(progress: "StreamingQueryProgress") -> dict[str, object]:
    """The report about one batch."""
    states = progress.stateOperators
    lags = [
        lag for source in progress.sources if (lag := _lag(source.endOffset, source.latestOffset)) is not None
    ]
    return {
        "state": "running",
        "name": progress.name or "",
        "batch": progress.batchId,
        "rows": sum(source.numInputRows or 0 for source in progress.sources),  # Connect leaves out the sum
        "rowsPerSecond": _number(progress.processedRowsPerSecond),
        "lag": sum(lags) if lags else None,
        "stateRows": sum(one.numRowsTotal for one in states),
        "stateBytes": sum(one.memoryUsedBytes for one in states),
        "lateRows": sum(one.numRowsDroppedByWatermark for one in states),
        "durationMs": progress.durationMs.get("triggerExecution", 0),
        "watermark": progress.eventTime.get("watermark", ""),
        "sources": _queues(progress) or [source.description for source in progress.sources],
        "sink": progress.sink.description,
    }


def cursors_of(progress: "StreamingQueryProgress") -> dict[tuple[str, str], int]:
    """The position of each mirrored group after this batch: (queue, group) to the next offset."""
    cursors: dict[tuple[str, str], int] = {}
    for source in progress.sources:
        latest, ends = _offsets(source.latestOffset), _offsets(source.endOffset)
        for key in latest:
            if key.startswith(GROUP):
                cursors |= {(queue_of(queue), key[len(GROUP) :]): at for queue, at in ends.items()}
    return cursors


def _queues(progress: "StreamingQueryProgress") -> list[str]:
    keys = [key for source in progress.sources for key in _offsets(source.endOffset)]
    return sorted({queue_of(key) for key in keys if queue_of(key)})


def _lag(end: object, latest: object) -> int | None:
    ends, heads = _offsets(end), _offsets(latest)
    if not heads:
        return None
    return sum(max(0, at - ends.get(key, 0)) for key, at in heads.items())


def _offsets(text: object) -> dict[str, int]:
    """Offsets of our source, by queue; empty for any other source."""
    try:
        table = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(table, dict):
        return {}
    found = {key: value[0] if isinstance(value, list) and value else value for key, value in table.items()}
    return {key: value for key, value in found.items() if isinstance(value, int) and "#" in key}


def _number(value: float | None) -> float:
    return value if value is not None and value == value and abs(value) != float("inf") else 0.0


def _sentence(error: str) -> str:
    """The one relevant line of Spark's error text."""
    ours = [line for line in error.splitlines() if "holtmq.spark.errors." in line]
    text = ours[-1].partition("holtmq.spark.errors.")[2] if ours else error.strip()
    return text[:2000]
