"""``holt pipeline serve``: several jobs in one driver, each restarted when it fails, all stopped gracefully.

Owns: the life cycle of each job: its thread, its state, the delay before a restart. Must not touch: what jobs
do, the format of health and metrics (``service_http``).
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from holtmq.spark.errors import HoltSparkError, InvalidOption, UnfitSchema, our_words
from holtmq.spark.jobs.running import Progress, Setting
from holtmq.spark.jobs.service_file import Job
from holtmq.spark.jobs.stopping import Stop
from holtmq.spark.jobs.toml_file import PipelineFileError
from holtmq.spark.lake.model import UnfitTable

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 300.0
_STEADY_SECONDS: Final = 300.0  # after running this long, a job restarts with the shortest delay
_HOPELESS: Final = (InvalidOption, UnfitSchema, UnfitTable, PipelineFileError)  # a restart would fail again


class State(Enum):
    """The state of a job."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting to be restarted"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(slots=True)
class JobLife:
    """One job as shown in health and metrics. Written by the job's thread, read by others."""

    job: Job
    state: State = State.STARTING
    restarts: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    done: dict[str, float] = field(default_factory=dict)  # totals of earlier runs
    last_error: str = ""
    last_error_at: float = 0.0
    last_progress_at: float = 0.0

    def total(self, name: str) -> float:
        """A counter over all runs."""
        return self.done.get(name, 0.0) + self.figures.get(name, 0.0)


class Service:
    """Runs jobs until it is asked to stop, or until no job can continue."""

    def __init__(self, jobs: Sequence[Job], progress: Progress, pause: float = _FIRST_PAUSE) -> None:
        self.lives = [JobLife(job) for job in jobs]
        self._progress = progress
        self._pause = pause
        self._speaking = threading.Lock()
        self.stop = Stop()
        self.broken = ""  # why the whole process must be restarted

    @property
    def healthy(self) -> bool:
        """Whether every job is running or about to run."""
        good = (State.STARTING, State.RUNNING, State.STOPPED)
        return not self.broken and all(life.state in good for life in self.lives)

    def run(self) -> dict[str, object]:
        """Run until all jobs have ended; return the summary."""
        began = time.monotonic()
        with self.stop:
            threads = [
                threading.Thread(target=self._live, args=(life,), name=f"job-{life.job.name}")
                for life in self.lives
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # short: signals are handled between two joins
        return {
            "job": "serve",
            "jobs": {life.job.name: _summary(life) for life in self.lives},
            "seconds": round(time.monotonic() - began, 2),
            "stopped": self.broken or self.stop.reason,
        }

    def _live(self, life: JobLife) -> None:
        pause = self._pause
        while not self.stop:
            began = time.monotonic()
            try:
                self._once(life)
                life.state = State.STOPPED
                return
            except Exception as error:
                life.last_error, life.last_error_at = _sentence(error), time.time()
                if self.stop:
                    life.state = State.STOPPED
                    return
                if isinstance(error, _HOPELESS):
                    life.state = State.FAILED
                    self._say(life, f"failed: {life.last_error}")
                    self._end_if_nothing_is_left()
                    return
                if life.job.needs_spark and not _spark_lives(life.job.setting):
                    self.broken = "Spark's JVM is gone"
                    life.state = State.FAILED
                    self.stop.set(self.broken)
                    return
            if time.monotonic() - began > _STEADY_SECONDS:
                pause = self._pause
            life.state = State.WAITING
            life.restarts += 1
            for name, value in life.figures.items():
                life.done[name] = life.done.get(name, 0.0) + value
            life.figures = {}
            self._say(life, f"{life.last_error}; trying again in {pause:g} s")
            self.stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        life.state = State.STOPPED

    def _once(self, life: JobLife) -> None:
        def watch(figures: Mapping[str, float]) -> None:
            life.state = State.RUNNING
            life.figures = dict(figures)
            life.last_progress_at = time.time()

        self._say(life, f"starting ({life.job.kind})")
        life.job.run(replace(life.job.setting, watch=watch), self.stop)

    def _end_if_nothing_is_left(self) -> None:
        if all(life.state is State.FAILED for life in self.lives):
            self.stop.set("no job can go on")

    def _say(self, life: JobLife, text: str) -> None:
        with self._speaking:
            self._progress.note(f"{life.job.name}: {text}")


def _summary(life: JobLife) -> dict[str, object]:
    facts: dict[str, object] = {
        "state": life.state.value,
        "restarts": life.restarts,
        "rows": int(life.total("rows")),
        "behind": life.figures.get("behind"),  # None: unknown
    }
    return facts | ({"last_error": life.last_error} if life.last_error else {})


def _sentence(error: Exception) -> str:
    if isinstance(error, HoltSparkError):
        return str(error)
    return our_words(f"{type(error).__name__}: {error}").partition("\n\tat ")[0]


def _spark_lives(setting: Setting) -> bool:
    try:
        return bool(setting.session("probe").range(1).count() == 1)
    except Exception:  # py4j and Spark raise various exceptions when the JVM is gone
        return False
