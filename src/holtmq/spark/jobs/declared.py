"""``holt pipeline run FILE.toml``: the format of that file, checked before Spark starts.

Owns: the file's grammar, and errors that point at a line. Must not touch: running it (``declared_run``), and
SQL; Spark checks that.

    [sources.orders]                     [steps.per_minute]
    queue = "orders"                     sql = "SELECT window, kind, count(*) AS n FROM orders GROUP BY 1, 2"
    payload_schema = "id BIGINT, …"
    watermark = "created_at 10 minutes"  [sinks.counts]
                                         from = "per_minute"
                                         queue = "order-counts"
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holtmq.spark.ddl import split_ddl
from holtmq.spark.errors import InvalidOption
from holtmq.spark.jobs.toml_file import PipelineFileError, TomlFile
from holtmq.spark.lake.opening import FORMATS
from holtmq.spark.options import source_options

_SOURCE: Final = {
    "queue": "queue",
    "queue_pattern": "queuePattern",
    "namespace": "namespace",
    "task": "task",
    "payload_schema": "payloadSchema",
    "columns": "columns",
    "starting_offsets": "startingOffsets",
    "starting_timestamp": "startingTimestamp",
    "max_offsets": "maxOffsetsPerTrigger",
    "max_bytes": "maxBytesPerTrigger",
    "fail_on_data_loss": "failOnDataLoss",
    "consumer_group": "consumerGroup",
}
_SOURCE_KEYS: Final = {*_SOURCE, "lake", "watermark"}
_SINK_KEYS: Final = {"from", "queue", "lake", "console", "mode", "partition_by", "format"}
_MODES: Final = ("append", "update", "complete")


@dataclass(frozen=True, slots=True)
class Source:
    name: str
    options: Mapping[str, str]
    lake: str = ""
    watermark: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Sink:
    name: str
    origin: str
    queue: str = ""
    lake: str = ""
    mode: str = "append"
    partition_by: tuple[str, ...] = ()
    format: str = "parquet"


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    sources: list[Source]
    steps: list[Step]
    sinks: list[Sink]
    conf: dict[str, str]
    file: TomlFile


def load_pipeline(path: Path) -> Pipeline:
    """Read and check a file; this does not need Spark."""
    return parse_pipeline(path.read_text(encoding="utf-8"), path.name)


def parse_pipeline(text: str, name: str) -> Pipeline:
    """Like ``load_pipeline``, for text."""
    file = TomlFile(text, name)
    file.only("", file.data, {"name", "sources", "steps", "sinks", "spark"})
    sources = [_source(file, key, table) for key, table in file.tables("sources").items()]
    steps = [_step(file, key, table) for key, table in file.tables("steps").items()]
    known = [source.name for source in sources] + [step.name for step in steps]
    for twice in {key for key in known if known.count(key) > 1}:
        raise file.refuse(f"steps.{twice}", "a source has this name already")
    sinks = [_sink(file, key, table, known) for key, table in file.tables("sinks").items()]
    if not sources or not sinks:
        raise PipelineFileError(f"{name}: a pipeline needs at least one [sources.name] and one [sinks.name]")
    conf = {key: file.text(f"spark.{key}", value) for key, value in file.data.get("spark", {}).items()}
    title = str(file.data.get("name", Path(name).stem))
    return Pipeline(title, sources, steps, sinks, conf, file)


def _source(file: TomlFile, name: str, table: Mapping[str, object]) -> Source:
    where = f"sources.{name}"
    file.only(where, table, _SOURCE_KEYS)
    given = {key: file.text(f"{where}.{key}", value) for key, value in table.items()}
    watermark = None
    if "watermark" in given:
        column, _, delay = given["watermark"].partition(" ")
        if not column or not re.fullmatch(r"\d+ \w+", delay.strip()):
            raise file.refuse(f"{where}.watermark", 'write it as "created_at 10 minutes"')
        watermark = (column, delay.strip())
    if "lake" in given:
        return Source(name, {}, given["lake"], watermark)
    options = {_SOURCE[key]: value for key, value in given.items() if key in _SOURCE}
    try:
        source_options(options, streaming=True)
        if "payloadSchema" in options:
            split_ddl(options["payloadSchema"])
    except InvalidOption as error:
        key = next((key for key in given if _SOURCE.get(key, "-") in str(error)), "")
        raise file.refuse(f"{where}.{key}" if key else where, str(error)) from None
    return Source(name, options, "", watermark)


def _step(file: TomlFile, name: str, table: Mapping[str, object]) -> Step:
    file.only(f"steps.{name}", table, {"sql"})
    sql = table.get("sql")
    if not isinstance(sql, str) or not sql.strip():
        raise file.refuse(f"steps.{name}.sql", "a step is a SELECT")
    return Step(name, sql)


def _sink(file: TomlFile, name: str, table: Mapping[str, object], known: list[str]) -> Sink:
    where = f"sinks.{name}"
    file.only(where, table, _SINK_KEYS)
    origin = file.text(f"{where}.from", table.get("from", known[-1] if known else ""))
    if origin not in known:
        raise file.refuse(
            f"{where}.from", f"there is no source or step {origin!r}; there are {', '.join(known)}"
        )
    targets = [key for key in ("queue", "lake", "console") if table.get(key)]
    if len(targets) != 1:
        raise file.refuse(where, "say where to: exactly one of queue, lake, console = true")
    mode = file.text(f"{where}.mode", table.get("mode", "append"))
    if mode not in _MODES:
        raise file.refuse(f"{where}.mode", f"must be one of {', '.join(_MODES)}")
    columns = table.get("partition_by", [])
    if not isinstance(columns, list) or not all(isinstance(one, str) for one in columns):
        raise file.refuse(f"{where}.partition_by", 'must be a list of columns: ["kind"]')
    queue, lake = (file.text(f"{where}.{key}", table.get(key, "")) for key in ("queue", "lake"))
    kept = file.text(f"{where}.format", table.get("format", "parquet"))
    if kept not in FORMATS:
        raise file.refuse(f"{where}.format", f"must be one of {', '.join(FORMATS)}")
    if lake and mode != "append":
        raise file.refuse(f"{where}.mode", "a lake takes append only: rows are added, never changed")
    return Sink(name, origin, queue, lake, mode, tuple(columns), kept)
