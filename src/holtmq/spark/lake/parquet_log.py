"""A table of plain Parquet files with a log that says which of them are live.

Owns: the log below ``_holt/log``, its checkpoints, and the state they fold into. Must not touch: the content
of data files.

An entry is one JSON file with a rising number, created by one writer only. Every 32 entries a checkpoint
stores the fold of all entries before it, and older entries are deleted: reading the log costs a checkpoint
and at most a few dozen entries, however old the lake is. A writer that commits from memory reads nothing.
"""

import base64
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import unquote

import pyarrow as pa

from holtmq.spark.lake.model import Bounds, Change, DataFile, LakeMoved, Position, UnfitTable
from holtmq.spark.lake.storage import Storage

LOG: Final = "_holt/log"
_CHECKPOINT: Final = ".checkpoint.json"
_EVERY: Final = 32
_KEPT: Final = 64  # entries kept before the newest checkpoint, for readers that have already listed them
_TRIES: Final = 20


@dataclass(slots=True)
class _State:
    """The state that the log folds into."""

    entries: int = 0  # number of the next entry
    files: dict[str, DataFile] = field(default_factory=dict)
    positions: dict[str, Position] = field(default_factory=dict)
    rows: int = 0
    removed: dict[str, int] = field(default_factory=dict)  # path -> when, in epoch milliseconds
    schema: str = ""  # base64 of an Arrow schema; empty: the schema the table was opened with

    def fold(self, entry: dict[str, object]) -> None:
        for path in cast(list[str], entry.get("remove", [])):
            self.files.pop(path, None)
            self.removed[path] = cast(int, entry.get("at", 0))
        for path in cast(list[str], entry.get("forget", [])):
            self.removed.pop(path, None)
        for path, facts in cast(dict[str, object], entry.get("add", {})).items():
            self.files[path] = _file(path, facts)
        for key, value in cast(dict[str, object], entry.get("next", {})).items():
            self.positions[key] = Position.from_json(value)
        if "writer" in entry:  # lakes of version 0.1 counted batches of a Spark query
            self.positions[f"writer:{entry['writer']}"] = Position(cast(int, entry["batch"]) + 1)
        self.rows += cast(int, entry.get("rows", 0))
        self.schema = cast(str, entry.get("schema", self.schema))

    def to_json(self) -> bytes:
        facts = {
            "add": {path: _facts(file) for path, file in self.files.items()},
            "next": {key: position.to_json() for key, position in self.positions.items()},
            "rows": self.rows,
            "removed": self.removed,
            "schema": self.schema,
        }
        return json.dumps(facts).encode()


class ParquetTable:
    """A lake's table as plain Parquet with its own log."""

    format = "parquet"
    in_file: tuple[str, ...] = ()

    def __init__(self, storage: Storage, schema: pa.Schema) -> None:
        self._storage = storage
        self._default = schema
        self._state = _State()
        self._checkpoint = -1  # number of the newest checkpoint
        self.refresh()

    @property
    def version(self) -> int:
        return self._state.entries

    @property
    def rows(self) -> int:
        return self._state.rows

    def refresh(self) -> None:
        """Fold the log again."""
        for _ in range(_TRIES):
            try:
                self._state, self._checkpoint = self._load()
                return
            except FileNotFoundError:  # deleted between listing and reading: there is a newer checkpoint
                continue
        raise UnfitTable(f"the log of the lake {self._storage.root} changes faster than it can be read")

    def _load(self) -> tuple[_State, int]:
        names = [name for name in self._storage.names(LOG) if not name.startswith(".")]
        newest = max((name for name in names if name.endswith(_CHECKPOINT)), default="")
        state, at = _State(), -1
        if newest:
            at = int(newest.removesuffix(_CHECKPOINT))
            facts = json.loads(self._storage.read(f"{LOG}/{newest}"))
            state.fold(facts)
            state.removed = facts["removed"]
            state.entries = at + 1
        for name in names:
            if name.endswith(_CHECKPOINT) or not name.endswith(".json"):
                continue
            number = int(name.removesuffix(".json"))
            if number <= at:
                continue
            if number != state.entries:
                # A listing that began before an entry was created may miss it and show a later one.
                if self._storage.exists(_entry(state.entries)):
                    raise FileNotFoundError(name)
                raise UnfitTable(
                    f"the log of the lake {self._storage.root} is damaged: entry {state.entries} is missing, "
                    f"entry {number} is there"
                )
            state.fold(json.loads(self._storage.read(f"{LOG}/{name}")))
            state.entries = number + 1
        return state, at

    def position(self, key: str) -> Position | None:
        return self._state.positions.get(key)

    def files(self) -> list[DataFile]:
        return list(self._state.files.values())

    def schema(self) -> pa.Schema:
        if not self._state.schema:
            return self._default
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._state.schema)))

    def commit(self, change: Change) -> None:
        entry: dict[str, object] = {"at": int(time.time() * 1000)}
        if change.add:
            entry["add"] = {file.path: _facts(file) for file in change.add}
        if change.remove:
            entry["remove"] = [file.path for file in change.remove]
        if change.positions:
            entry["next"] = {key: position.to_json() for key, position in change.positions.items()}
        if not change.rearranged:
            entry["rows"] = sum(file.rows for file in change.add) - sum(file.rows for file in change.remove)
        if change.note:
            entry["note"] = dict(change.note)
        self._append(entry)

    def evolve(self, columns: Sequence[pa.Field]) -> None:
        wider = pa.schema([*self.schema(), *columns])
        self._append({"schema": base64.b64encode(wider.serialize().to_pybytes()).decode()})

    def upkeep(self, keep_seconds: float) -> int:
        oldest = (time.time() - keep_seconds) * 1000
        due = [path for path, at in self._state.removed.items() if at <= oldest]
        for path in due:
            self._storage.delete(path)
        if due:
            self._append({"forget": due})
        return len(due)

    def _append(self, entry: dict[str, object]) -> None:
        number = self._state.entries
        try:
            self._storage.create(_entry(number), json.dumps(entry).encode())
        except FileExistsError:
            raise LakeMoved(
                f"another job has written to the lake {self._storage.root} (entry {number} of its log)"
            ) from None
        self._state.fold(entry)
        self._state.entries = number + 1
        if number - self._checkpoint >= _EVERY:
            self._write_checkpoint(number)

    def _write_checkpoint(self, number: int) -> None:
        self._storage.write(f"{LOG}/{number:020d}{_CHECKPOINT}", self._state.to_json())
        before, self._checkpoint = self._checkpoint, number
        for name in self._storage.names(LOG):
            digits = name.partition(".")[0]
            if not digits.isdigit():
                continue
            if int(digits) < (before if name.endswith(_CHECKPOINT) else number - _KEPT):
                self._storage.delete(f"{LOG}/{name}")


def _entry(number: int) -> str:
    return f"{LOG}/{number:020d}.json"


def _facts(file: DataFile) -> dict[str, object]:
    return {"size": file.size, "rows": file.rows, "bounds": file.bounds}


def _file(path: str, facts: object) -> DataFile:
    partition = dict(hive_values(path))
    if isinstance(facts, int):  # version 0.1 stored the size only
        return DataFile(path, facts, 0, partition)
    assert isinstance(facts, dict)
    bounds: Bounds = {name: (low, high) for name, (low, high) in facts["bounds"].items()}
    return DataFile(path, facts["size"], facts["rows"], partition, bounds)


def hive_values(path: str) -> Iterable[tuple[str, str]]:
    """Partition values from ``queue=orders/date=2026-05-01/…``."""
    for part in path.split("/")[:-1]:
        name, mark, value = part.partition("=")
        if mark:
            yield name, unquote(value)
