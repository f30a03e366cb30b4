"""How every job runs: its session, its trigger, a live line while it works, a summary at the end.

Owns: starting and following a streaming query, and what is told about it. Must not touch: what jobs compute.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TextIO

from holtmq.spark.spark_session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_POLL_SECONDS: Final = 0.2
_QUIET_SECONDS: Final = 10.0  # between two lines when nobody watches


@dataclass(frozen=True, slots=True)
class Setting:
    """What all jobs have in common."""

    url: str
    master: str = "local[*]"
    token: str = ""
    every: float | None = None  # seconds between batches; None: once, to the end of what is there
    conf: Mapping[str, str] = field(default_factory=dict)
    tls_ca: str = ""  # file of the authority behind an https url; empty: the system's
    out: TextIO = sys.stderr
    retry_timeout: str = ""  # how long the broker may be away: option retryTimeout; empty: its default

    def session(self, name: str) -> "SparkSession":
        return open_session(f"holt {name}", self.master, self.conf)

    @property
    def source(self) -> dict[str, str]:
        """Options every read and write starts from."""
        given = {
            "url": self.url,
            "token": self.token,
            "tlsCa": self.tls_ca,
            "retryTimeout": self.retry_timeout,
        }
        return {name: value for name, value in given.items() if value}


class Progress:
    """One line that is written over on a terminal, now and then a new one elsewhere."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._told = 0.0
        self._open = False

    def say(self, text: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if self._live:
            self._out.write(f"\r\x1b[K{text}")
            self._open = True
        elif always or now - self._told > _QUIET_SECONDS:
            self._out.write(f"{text}\n")
            self._told = now
        self._out.flush()

    def end(self) -> None:
        if self._open:
            self._out.write("\n")
            self._out.flush()


def run_stream(
    setting: Setting, name: str, writer: "DataStreamWriter", stop: Callable[[], bool] = lambda: False
) -> dict[str, object]:
    """Run a query to its end (or until interrupted, with ``every``); its summary. A failure goes up."""
    if setting.every is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{max(setting.every, 0.001):g} seconds")
    began = time.monotonic()
    query = writer.queryName(name).start()
    progress = Progress(setting.out)
    done: dict[int, int] = {}
    try:
        while query.isActive and not stop():
            time.sleep(_POLL_SECONDS)
            progress.say(_line(name, query))
            done |= _batches(query)
    except KeyboardInterrupt:
        progress.say(f"{name}: stopping after this batch", always=True)
    finally:
        query.stop()
        progress.end()
    error = query.exception()
    if error is not None:
        raise error
    done |= _batches(query)
    rows = sum(done.values())
    seconds = time.monotonic() - began
    return {
        "job": name,
        "rows": rows,
        "batches": len(done),
        "seconds": round(seconds, 2),
        "rows_per_second": round(rows / seconds, 1) if seconds else 0.0,
        "query": str(query.id),
    }


def _batches(query: "StreamingQuery") -> dict[int, int]:
    """Rows by batch; Spark remembers the last hundred."""
    return {one["batchId"]: one["numInputRows"] for one in query.recentProgress if one["numInputRows"]}


def _line(name: str, query: "StreamingQuery") -> str:
    last = query.lastProgress
    if last is None:
        return f"{name}: starting"
    lag = _lag(last["sources"][0])
    behind = "" if lag is None else f", {lag:,} behind"
    rate = last["processedRowsPerSecond"] or 0.0
    return f"{name}: batch {last['batchId']}, {last['numInputRows']:,} rows, {rate:,.0f} rows/s{behind}"


def _lag(source: Mapping[str, object]) -> int | None:
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


def repeat(setting: Setting, step: Callable[[], dict[str, object]]) -> dict[str, object]:
    """Run a batch job once, or every so often until interrupted; the last summary."""
    while True:
        began = time.monotonic()
        summary = step()
        if setting.every is None:
            return summary
        Progress(setting.out).say(json.dumps(summary), always=True)
        try:
            time.sleep(max(0.0, setting.every - (time.monotonic() - began)))
        except KeyboardInterrupt:
            return summary


def filtered(frame: "DataFrame", where: str) -> "DataFrame":
    """Rows a user's SQL condition keeps; the payload is also there as text, under ``json``."""
    if not where:
        return frame
    columns = frame.columns
    return frame.selectExpr("*", "CAST(payload AS STRING) AS json").where(where).select(*columns)
