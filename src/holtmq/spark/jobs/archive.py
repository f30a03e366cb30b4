"""``holt pipeline archive``: writes queues into a lake, exactly once.

Owns: the job: plan a batch, let tasks write it, commit it, report progress, maintain the lake. Must not
touch: how the lake works. The lake is its own checkpoint: each queue continues where the lake ends for it,
so one lake accepts any queues, together or one after the other.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from holtmq.spark.client import BrokerClient
from holtmq.spark.errors import InvalidOption
from holtmq.spark.jobs.running import Progress, Setting
from holtmq.spark.jobs.stopping import Stop
from holtmq.spark.lake.engines import Engine, SparkEngine, ThreadEngine
from holtmq.spark.lake.model import DataFile, Position, Table, position_key
from holtmq.spark.lake.opening import open_table
from holtmq.spark.lake.ranges import BOUNDED, MESSAGE, PARTITIONED, Slice, plan_batch, read_slice
from holtmq.spark.lake.storage import Storage
from holtmq.spark.lake.writer import Care, Evolution, LakeWriter, evolve
from holtmq.spark.lake.writing import Layout, write_rows
from holtmq.spark.offsets import Head
from holtmq.spark.options import Connection, Selection, source_options

ENGINES: Final = ("spark", "arrow")
_CARE_SECONDS: Final = 60.0  # between two compactions while the job runs


@dataclass(slots=True)
class _Figures:
    """The totals of a run so far."""

    rows: int = 0
    batches: int = 0
    behind: int = 0
    began: float = field(default_factory=time.monotonic)
    columns: Evolution = field(default_factory=lambda: Evolution([], []))


def archive(
    setting: Setting,
    queues: str,
    lake: str,
    *,
    group: str = "archive",
    max_rows: int = 500_000,
    from_latest: bool = False,
    fail_on_data_loss: bool = True,
    format: str = "",
    catalog: Mapping[str, str] | None = None,
    engine: str = "spark",
    care: Care | None = None,
    stop: Stop | None = None,
) -> dict[str, object]:
    """Bring the lake up to date, once or until stopped.

    ``group`` mirrors the job's progress to the broker: retention of completed messages waits for it.
    """
    if engine not in ENGINES:
        raise InvalidOption(f"there is no engine {engine!r}; there are {' and '.join(ENGINES)}")
    options = source_options({**setting.source, "queue": queues}, streaming=True)
    care = care or Care()
    storage = Storage(lake)
    progress = Progress(setting.out)
    figures = _Figures()
    runner: Engine = (
        ThreadEngine(setting.threads) if engine == "arrow" else SparkEngine(setting.session("archive"))
    )

    def layout(table: Table) -> Layout:
        figures.columns = evolve(table, MESSAGE)
        return Layout(table.schema(), PARTITIONED, BOUNDED, table.in_file, care.target_bytes)

    opened = partial(open_table, storage, format, create=True, catalog=catalog)
    writer = LakeWriter(storage, opened, layout, f"archive of {queues}", care, progress.note)
    with writer, Stop() if stop is None else stop as stopping, BrokerClient(options.connection) as broker:
        job = _Job(
            broker,
            options.connection,
            options.selection,
            writer,
            runner,
            group,
            figures,
            progress,
            setting.watch,
        )
        job.from_latest = from_latest
        job.fail_on_data_loss = fail_on_data_loss
        job.max_rows = max_rows
        _run(setting, job, stopping)
        table = writer.table
        progress.end()
        return _summary(figures, writer, table, storage, stopping)


def _run(setting: Setting, job: "_Job", stopping: Stop) -> None:
    cared = time.monotonic()
    while True:
        began = time.monotonic()
        job.catch_up(stopping)
        job.report()
        if setting.every is None or stopping:
            break
        if time.monotonic() - cared >= _CARE_SECONDS:
            job.writer.care(job.engine)
            cared = time.monotonic()
        job.progress.say(job.line())
        if stopping.wait(max(0.0, setting.every - (time.monotonic() - began))):
            break
    if stopping:
        job.progress.note(f"archive: stopping ({stopping.reason})")
    else:
        job.writer.care(job.engine)


@dataclass(slots=True)
class _Job:
    broker: BrokerClient
    connection: Connection
    selection: Selection
    writer: LakeWriter
    engine: Engine
    group: str
    figures: _Figures
    progress: Progress
    watch: Callable[[Mapping[str, float]], None]
    max_rows: int = 500_000
    from_latest: bool = False
    fail_on_data_loss: bool = True

    def catch_up(self, stopping: Stop) -> None:
        """Archive what the broker has at this moment, batch by batch."""
        target = {head.key: head.next for head in self.broker.heads(self.selection)}
        while not stopping:
            if not self._batch(self.broker.heads(self.selection), target):
                return

    def _batch(self, heads: list[Head], until: Mapping[str, int]) -> bool:
        began = time.monotonic()
        known: dict[str, Position] = {}
        for head in heads:
            key = position_key(head.name, head.number)
            position = self.writer.table.position(key)
            if position is not None:
                known[key] = position
        plan = plan_batch(
            self.broker,
            heads,
            known,
            self.max_rows,
            self.engine.width,
            until=until,
            from_latest=self.from_latest,
            fail_on_data_loss=self.fail_on_data_loss,
        )
        self.figures.behind = plan.behind
        if not plan.positions:
            return False
        folder = self.writer.staging()
        layout, connection, strict = self.writer.layout, self.connection, self.fail_on_data_loss

        def write(part: Slice) -> list[DataFile]:
            return write_rows(read_slice(connection, part, strict=strict), layout, folder)

        files = [file for made in self.engine.run(write, plan.slices) for file in made] if plan.slices else []
        note = {f"{part.queue}#{part.number}": f"{part.first}-{part.stop - 1}" for part in plan.slices[:20]}
        self.writer.add(files, plan.positions, **note)
        # The lake has the authoritative position; the mirror follows it.
        if self.group:
            for queue, at in plan.ends.items():
                self.broker.mirror(queue, self.group, at)
        rows = sum(file.rows for file in files)
        self.figures.rows += rows
        self.figures.batches += bool(rows)
        seconds = time.monotonic() - began
        self.progress.say(self.line(rows, seconds))
        self.report()
        return bool(plan.slices)

    def report(self) -> None:
        figures = self.figures
        self.watch({"rows": figures.rows, "batches": figures.batches, "behind": figures.behind})

    def line(self, rows: int = 0, seconds: float = 0.0) -> str:
        figures = self.figures
        rate = f", {rows / seconds:,.0f} rows/s" if rows and seconds else ""
        return f"archive: batch {figures.batches}, {figures.rows:,} rows{rate}, {figures.behind:,} behind"


def _summary(
    figures: _Figures, writer: LakeWriter, table: Table, storage: Storage, stopping: Stop
) -> dict[str, object]:
    seconds = time.monotonic() - figures.began
    files = table.files()
    summary: dict[str, object] = {
        "job": "archive",
        "rows": figures.rows,
        "batches": figures.batches,
        "behind": figures.behind,
        "seconds": round(seconds, 2),
        "rows_per_second": round(figures.rows / seconds, 1) if seconds else 0.0,
        "lake": storage.root,
        "format": table.format,
        "lake_rows": table.rows,
        "lake_files": len(files),
        "lake_bytes": sum(file.size for file in files),
        "compacted_files": writer.compacted,
        "expired_rows": writer.expired_rows,
    }
    if figures.columns.added or figures.columns.missing:
        summary["columns"] = {"added": figures.columns.added, "no_longer_written": figures.columns.missing}
    if stopping:
        summary["stopped"] = stopping.reason
    return summary
