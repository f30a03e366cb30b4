"""What every job shares: its settings, a progress line, repeating at an interval.

Owns: the output of a running job. Must not touch: what jobs compute. pyspark is imported only where a session
is created: jobs without Spark use this too.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TextIO

from holtmq.spark import register, report_to
from holtmq.spark.jobs.stopping import Stop
from holtmq.spark.spark_session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUIET_SECONDS: Final = 10.0  # between two lines when the output is not a terminal


def _unwatched(figures: Mapping[str, float]) -> None:
    """Ignore the figures."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings that all jobs share."""

    url: str
    master: str = "local[*]"
    token: str = ""
    every: float | None = None  # seconds between batches; None: run once, up to the current end
    conf: Mapping[str, str] = field(default_factory=dict)
    tls_ca: str = ""  # CA file for an https url; empty: the system's
    out: TextIO = sys.stderr
    retry_timeout: str = ""  # how long the broker may be unreachable: option retryTimeout; empty: its default
    threads: int = field(default_factory=lambda: os.cpu_count() or 2)  # for jobs that run without Spark
    watch: Callable[[Mapping[str, float]], None] = _unwatched  # gets rows, batches and lag while the job runs
    user: str = ""  # a broker user, instead of a token
    password: str = field(default="", repr=False)
    shared: bool = False  # several jobs in one driver: each has its own views and settings

    def session(self, name: str) -> "SparkSession":
        spark = open_session(f"holt {name}", self.master, self.conf)
        if self.shared:
            spark = register(spark.newSession())
            # Spark looks up a Python sink in the session that is active in this thread: this activates ours.
            spark.createDataFrame([], "none INT")
        report_to(spark, **self.source)
        return spark

    @property
    def source(self) -> dict[str, str]:
        """Options of every read and write."""
        given = {
            "url": self.url,
            "token": self.token,
            "user": self.user,
            "password": self.password,
            "tlsCa": self.tls_ca,
            "retryTimeout": self.retry_timeout,
        }
        return {name: value for name, value in given.items() if value}


class Progress:
    """On a terminal one line that is overwritten; elsewhere a new line at intervals, if something changed."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._told = 0.0
        self._last = ""
        self._open = False

    def say(self, text: str) -> None:
        """Show the job's progress, unless it is unchanged or the last line is too recent."""
        if text == self._last:
            return
        now = time.monotonic()
        if self._live:
            self._out.write(f"\r\x1b[K{text}")
            self._open = True
        elif now - self._told > _QUIET_SECONDS:
            self._out.write(f"{text}\n")
            self._told = now
        else:
            return
        self._last = text
        self._out.flush()

    def note(self, text: str) -> None:
        """Print a line in any case."""
        self._out.write(f"\r\x1b[K{text}\n" if self._open else f"{text}\n")
        self._open = False
        self._out.flush()

    def end(self) -> None:
        if self._open:
            self._out.write("\n")
            self._out.flush()


def repeat(
    setting: Setting, step: Callable[[], dict[str, object]], stop: Stop | None = None
) -> dict[str, object]:
    """Run a batch job once, or at an interval until stopped; return the last summary."""
    with Stop() if stop is None else stop as stopping:
        while True:
            began = time.monotonic()
            summary = step()
            if setting.every is None or stopping:
                return summary
            Progress(setting.out).note(json.dumps(summary, default=str))
            if stopping.wait(max(0.0, setting.every - (time.monotonic() - began))):
                return summary | {"stopped": stopping.reason}


def filtered(frame: "DataFrame", where: str) -> "DataFrame":
    """Rows that match a user's SQL condition; it can use the payload as text, in column ``json``."""
    if not where:
        return frame
    columns = frame.columns
    return frame.selectExpr("*", "CAST(payload AS STRING) AS json").where(where).select(*columns)
