"""``jobs.toml``: which jobs a service runs, checked before any of them starts.

Owns: the file's grammar. Must not touch: running it (``service``).

    [jobs.keep-orders]            [jobs.totals]
    kind = "archive"              kind = "run"
    queue = "orders"              file = "totals.toml"
    lake = "lake"                 every = "10s"
    every = "30s"
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from holtmq.spark.jobs.running import Setting
from holtmq.spark.jobs.stopping import Stop
from holtmq.spark.jobs.toml_file import TomlFile
from holtmq.spark.option_values import parse_seconds, parse_size

Run = Callable[[Setting, Stop], dict[str, object]]

_EVERYWHERE: Final = {"kind", "every", "url", "tls_ca", "retry_timeout"}
_KINDS: Final = {
    "archive": {
        "queue",
        "lake",
        "format",
        "catalog",
        "engine",
        "group",
        "max_rows",
        "file_size",
        "compact",
        "keep",
        "keep_removed",
        "from_latest",
        "fail_on_data_loss",
    },
    "rollup": {"queue", "lake", "format", "partial"},
    "run": {"file", "checkpoint"},
}


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the file. ``run`` executes it until it ends or is asked to stop."""

    name: str
    kind: str
    setting: Setting
    needs_spark: bool
    run: Run


def load_jobs(path: Path, common: Setting) -> list[Job]:
    """Read and check a file. Paths are relative to its folder; ``common`` has the defaults of all jobs."""
    file = TomlFile(path.read_text(encoding="utf-8"), path.name)
    file.only("", file.data, {"jobs"})
    tables = file.tables("jobs", sql=False)
    if not tables:
        raise file.refuse("jobs", "a service needs at least one [jobs.name]")
    return [_job(file, path.resolve().parent, name, table, common) for name, table in tables.items()]


def _job(file: TomlFile, folder: Path, name: str, table: Mapping[str, object], common: Setting) -> Job:
    where = f"jobs.{name}"
    kind = file.text(f"{where}.kind", table.get("kind", ""))
    if kind not in _KINDS:
        raise file.refuse(f"{where}.kind", f"must be one of {', '.join(_KINDS)}")
    file.only(where, table, _KINDS[kind] | _EVERYWHERE)
    given = _Given(file, where, folder, table)
    every = given.parsed("every", parse_seconds)
    if every is None:
        raise file.refuse(where, 'a service goes on and on: say how often, every = "30s"')
    if given.parsed("retry_timeout", parse_seconds) is None:
        retry = common.retry_timeout
    else:
        retry = given.text("retry_timeout")
    setting = replace(
        common,
        url=given.text("url") or common.url,
        tls_ca=given.text("tls_ca") or common.tls_ca,
        every=every,
        retry_timeout=retry,
        shared=True,
    )
    run = {"archive": _archive, "rollup": _rollup, "run": _run}[kind](given)
    return Job(name, kind, setting, given.text("engine") != "arrow", run)


class _Given:
    """The keys of one job, with errors that name their line."""

    def __init__(self, file: TomlFile, where: str, folder: Path, table: Mapping[str, object]) -> None:
        self.file = file
        self.where = where
        self.folder = folder
        self.table = table

    def text(self, key: str) -> str:
        return self.file.text(f"{self.where}.{key}", self.table.get(key, ""))

    def needed(self, key: str) -> str:
        if not self.text(key):
            raise self.file.refuse(f"{self.where}.{key}", "is missing")
        return self.text(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self.table.get(key, default)
        if not isinstance(value, bool):
            raise self.file.refuse(f"{self.where}.{key}", "must be true or false")
        return value

    def count(self, key: str, default: int) -> int:
        value = self.table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.file.refuse(f"{self.where}.{key}", "must be a whole number of at least 1")
        return value

    def one_of(self, key: str, choices: tuple[str, ...]) -> str:
        value = self.text(key)
        if value and value not in choices:
            raise self.file.refuse(f"{self.where}.{key}", f"must be one of {', '.join(choices)}")
        return value

    def parsed(self, key: str, how: Callable[[str], float]) -> float | None:
        if key not in self.table:
            return None
        try:
            return how(self.text(key))
        except ValueError as error:
            raise self.file.refuse(f"{self.where}.{key}", str(error)) from None

    def path(self, key: str) -> str:
        value = self.needed(key)
        return value if "://" in value else str(self.folder / value)


def _archive(given: _Given) -> Run:
    from holtmq.spark.jobs.archive import ENGINES, archive
    from holtmq.spark.lake.opening import FORMATS
    from holtmq.spark.lake.writer import Care

    queue, lake = given.needed("queue"), given.path("lake")
    kept, engine = given.one_of("format", FORMATS), given.one_of("engine", ENGINES) or "spark"
    catalog = given.table.get("catalog")
    if catalog is not None and not isinstance(catalog, dict):
        raise given.file.refuse(f"{given.where}.catalog", 'must be a table: {uri = "…", table = "a.b"}')
    care = Care(
        target_bytes=int(given.parsed("file_size", parse_size) or Care().target_bytes),
        compact=given.flag("compact", True),
        keep_days=(given.parsed("keep", parse_seconds) or 0) / 86_400,
        keep_removed=given.parsed("keep_removed", parse_seconds),
    )
    group = given.text("group") if "group" in given.table else "archive"
    most = given.count("max_rows", 500_000)
    latest, fail = given.flag("from_latest", False), given.flag("fail_on_data_loss", True)
    properties = {str(key): str(value) for key, value in catalog.items()} if catalog else None
    return lambda setting, stop: archive(
        setting,
        queue,
        lake,
        group=group,
        max_rows=most,
        from_latest=latest,
        fail_on_data_loss=fail,
        format=kept,
        catalog=properties,
        engine=engine,
        care=care,
        stop=stop,
    )


def _rollup(given: _Given) -> Run:
    from holtmq.spark.lake.opening import FORMATS

    queue, lake = given.needed("queue"), given.path("lake")
    kept, partial = given.one_of("format", FORMATS), given.flag("partial", False)

    def run(setting: Setting, stop: Stop) -> dict[str, object]:
        from holtmq.spark.jobs.rollup import rollup

        return rollup(setting, queue, lake, partial=partial, format=kept, stop=stop)

    return run


def _run(given: _Given) -> Run:
    from holtmq.spark.jobs.declared import load_pipeline

    path = Path(given.path("file"))
    if not path.is_file():
        raise given.file.refuse(f"{given.where}.file", f"there is no file {path}")
    pipeline = load_pipeline(path)
    checkpoint = (
        given.path("checkpoint") if given.text("checkpoint") else str(path.with_suffix(".checkpoint"))
    )

    def run(setting: Setting, stop: Stop) -> dict[str, object]:
        from holtmq.spark.jobs.declared_run import run_pipeline

        return run_pipeline(setting, pipeline, checkpoint, stop)

    return run
