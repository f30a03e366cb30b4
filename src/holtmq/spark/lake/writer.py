"""The one writer of a lake: adds batches exactly once, merges small files, deletes old days.

Owns: the order of steps that makes a crash harmless. Must not touch: where rows come from, table formats.

Tasks write files to a staging folder (``_holt/staging``). An intent lists their final paths; they are moved
there; one table commit makes them live, together with the position of the next batch. After a crash, files
that were not committed are deleted by the next writer, which finds them in the intent.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final

import pyarrow as pa

from holtmq.spark.lake.compaction import Rewrite, rewrite, small_groups
from holtmq.spark.lake.engines import Engine
from holtmq.spark.lake.lock import LockLost, WriterLock
from holtmq.spark.lake.model import Change, DataFile, LakeMoved, Position, Table, UnfitTable
from holtmq.spark.lake.opening import KEEP_SECONDS
from holtmq.spark.lake.storage import Storage
from holtmq.spark.lake.writing import Layout

_STAGING: Final = "_holt/staging"


@dataclass(frozen=True, slots=True)
class Care:
    """How the lake is maintained. ``keep_days``: days of messages to keep, 0 for all."""

    target_bytes: int = 128 << 20
    compact: bool = True
    compact_from: int = 8  # small files of one folder that are worth merging
    keep_days: float = 0
    keep_removed: float | None = None  # seconds; None: the default of the table's format


class LakeWriter:
    """A context manager that locks the lake."""

    def __init__(
        self,
        storage: Storage,
        open_table: Callable[[], Table],
        layout: Callable[[Table], Layout],
        job: str,
        care: Care | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._storage = storage
        self._open = open_table
        self._layout = layout
        self._lock = WriterLock(storage, job, say=say)
        self._care = care or Care()
        self._say = say
        self._batches = 0
        self.compacted = 0
        self.expired_rows = 0

    def __enter__(self) -> "LakeWriter":
        self._lock.__enter__()
        try:
            self.table = self._open()
            self.layout = self._layout(self.table)
            if self._lock.inherited:
                # The previous holder may only be suspended with a commit ready: make that commit fail.
                self._fence()
            self._settle()
        except BaseException as error:
            self._lock.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def staging(self) -> str:
        """The address of a new folder for the files of a batch."""
        self._batches += 1
        return self._storage.full(self._token())

    def add(self, files: Sequence[DataFile], positions: Mapping[str, Position], **note: str) -> None:
        """Commit a batch of staged files together with the table's positions."""
        self._commit(files, (), positions, note)

    def replace(
        self, files: Sequence[DataFile], remove: Sequence[DataFile], positions: Mapping[str, Position]
    ) -> None:
        """As ``add``, and remove other files in the same commit."""
        self._commit(files, remove, positions, {})

    def _token(self) -> str:
        return f"{_STAGING}/{self._lock.epoch}-{self._batches}"

    def _commit(
        self,
        files: Sequence[DataFile],
        remove: Sequence[DataFile],
        positions: Mapping[str, Position],
        note: Mapping[str, str],
        *,
        rearranged: bool = False,
    ) -> None:
        token = self._token()
        paths = [file.path for file in files]
        if paths:
            self._storage.write(f"{token}.intent", json.dumps(paths).encode())
            for path in paths:
                self._storage.move(f"{token}/{path}", path)
            self._storage.settled(paths)
        told = {**note, "epoch": str(self._lock.epoch)}
        try:
            self._lock.check()
            self.table.commit(Change(files, remove, positions, told, rearranged))
        except (LakeMoved, LockLost):
            self._take_back(paths)
            raise
        self._lock.check()
        self._storage.delete(token)  # including files of tasks that ran twice
        self._storage.delete(f"{token}.intent")

    def _take_back(self, paths: Sequence[str]) -> None:
        """Delete files of a batch that was not committed: readers by folder would see their rows twice."""
        self.table.refresh()
        counting = {file.path for file in self.table.files()}
        for path in paths:
            if path not in counting:
                self._storage.delete(path)

    def _fence(self) -> None:
        self.table.refresh()
        self.table.commit(Change(note={"epoch": str(self._lock.epoch)}))

    def _settle(self) -> None:
        """Clean up after a crash."""
        names = self._storage.names(_STAGING)
        intents = [name for name in names if name.endswith(".intent")]
        if intents:
            counting = {file.path for file in self.table.files()}
            for name in intents:
                for path in json.loads(self._storage.read(f"{_STAGING}/{name}")):
                    if path not in counting:
                        self._storage.delete(path)
        for name in names:
            self._storage.delete(f"{_STAGING}/{name}")

    def care(self, engine: Engine) -> None:
        """Merge small files, delete old days and files that are no longer needed."""
        if self._care.compact:
            self._compact(engine)
        if self._care.keep_days:
            self._expire()
        keep = self._care.keep_removed
        self.table.upkeep(KEEP_SECONDS[self.table.format] if keep is None else keep)

    def _compact(self, engine: Engine) -> None:
        groups = small_groups(self.table.files(), self._care.target_bytes, self._care.compact_from)
        if not groups:
            return
        folder = self.staging()
        items = [Rewrite(self._storage.root, folder, tuple(group)) for group in groups]
        layout = self.layout
        joined = engine.run(lambda item: rewrite(item, layout), items)
        old = [file for group in groups for file in group]
        self._commit(joined, old, {}, {"compacted": str(len(old))}, rearranged=True)
        self.compacted += sum(len(group) for group in groups)

    def _expire(self) -> None:
        oldest = (datetime.now(UTC) - timedelta(days=self._care.keep_days)).date().isoformat()
        gone = [file for file in self.table.files() if file.partition.get("date", oldest) < oldest]
        if gone:
            self._lock.check()
            self.table.commit(Change(remove=gone, note={"expired": oldest}))
            self.expired_rows += sum(file.rows for file in gone)


@dataclass(slots=True)
class Evolution:
    """How the table's columns changed."""

    added: list[str]
    missing: list[str]


def evolve(table: Table, wanted: pa.Schema) -> Evolution:
    """Add missing columns to a table before writing; refuse a column whose type has changed."""
    have = table.schema()
    added = [field for field in wanted if field.name not in have.names]
    for field in wanted:
        if field.name in have.names and have.field(field.name).type != field.type:
            raise UnfitTable(
                f"column {field.name} of the lake is {have.field(field.name).type}, and would now be "
                f"{field.type}: a column keeps its type. Give the new one another name"
            )
    if added:
        table.evolve(added)
    return Evolution(
        [field.name for field in added], [field.name for field in have if field.name not in wanted.names]
    )
