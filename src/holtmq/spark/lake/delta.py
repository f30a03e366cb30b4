"""A table in Delta Lake's format, through ``deltalake``: no JVM and no jars.

Owns: the Delta log of the table. Must not touch: the content of data files.

A position is an application transaction of the Delta protocol: appId ``holtmq:orders#7``, version the first
offset that is not in the table. It is in the same commit as the rows, it survives checkpoints, and any Delta
reader can see it. A commit is attempted once: it fails when another writer has committed before it.
"""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from holtmq.spark.errors import InvalidOption
from holtmq.spark.lake.model import (
    Bounds,
    Change,
    DataFile,
    LakeMoved,
    Position,
    UnfitTable,
    check_partitions,
)
from holtmq.spark.lake.storage import Storage

try:
    from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError as missing:
    raise InvalidOption(f"{missing}: a Delta Lake needs pip install 'holtmq[delta]'") from None

_SETTINGS: Final = {
    "delta.checkpointInterval": "50",
    # For the log only: upkeep has its own limit for data files. Positions are in every checkpoint.
    "delta.logRetentionDuration": "interval 1 day",
}
_STRANGE: Final = {"deletionVectors", "columnMapping"}


class DeltaLakeTable:
    """A lake's table in Delta format."""

    format = "delta"
    in_file: tuple[str, ...] = ()

    def __init__(
        self, storage: Storage, schema: pa.Schema, partitioned: Sequence[str], *, create: bool
    ) -> None:
        self._storage = storage
        address = storage.root.removeprefix("file://")
        self._options = {"timeout": "120s"}
        if create and not DeltaTable.is_deltatable(address, self._options):
            DeltaTable.create(
                address,
                schema=Schema.from_arrow(schema),
                partition_by=list(partitioned),
                mode="ignore",
                configuration=_SETTINGS,
                storage_options=self._options,
            )
        self._table = DeltaTable(address, storage_options=self._options)
        self._partitioned = list(self._table.metadata().partition_columns)
        if create:
            check_partitions(storage.root, self._partitioned, partitioned)
        strange = _STRANGE & set(self._table.protocol().reader_features or ())
        if strange:
            raise UnfitTable(
                f"the Delta table {storage.root} uses {', '.join(sorted(strange))}: it cannot be written here"
            )

    @property
    def version(self) -> int:
        return int(self._table.version())

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files())

    def refresh(self) -> None:
        self._table.update_incremental()

    def position(self, key: str) -> Position | None:
        following = self._table.transaction_version(f"holtmq:{key}")
        if following is None:
            return None
        seen = self._table.transaction_version(f"holtmq:{key}:seen")
        waiting = self._table.transaction_version(f"holtmq:{key}:waiting")
        return Position(int(following), int(seen or following), int(waiting or 0))

    def files(self) -> list[DataFile]:
        found = []
        for row in pa.table(self._table.get_add_actions(flatten=True)).to_pylist():
            bounds: Bounds = {}
            for name, low in row.items():
                column = name.removeprefix("min.")
                if column != name and low is not None and row.get(f"max.{column}") is not None:
                    pair = _number(low), _number(row[f"max.{column}"])
                    if pair[0] is not None and pair[1] is not None:
                        bounds[column] = (pair[0], pair[1])
            partition = {name: str(row[f"partition.{name}"]) for name in self._partitioned}
            found.append(
                DataFile(unquote(row["path"]), row["size_bytes"], row["num_records"] or 0, partition, bounds)
            )
        return found

    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    def commit(self, change: Change) -> None:
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path,
                file.size,
                dict(file.partition),
                now,
                not change.rearranged,
                _stats(file, self.schema()),
            )
            for file in change.add
        ]
        actions += [
            RemoveAction(file.path, not change.rearranged, now, file.size, dict(file.partition))
            for file in change.remove
        ]
        marks = [
            mark
            for key, position in change.positions.items()
            for mark in (
                Transaction(f"holtmq:{key}", position.next),
                Transaction(f"holtmq:{key}:seen", position.seen),
                Transaction(f"holtmq:{key}:waiting", position.waiting),
            )
        ]
        properties = CommitProperties(
            custom_metadata={f"holtmq.{name}": value for name, value in change.note.items()},
            max_commit_retries=0,
            app_transactions=marks,
        )
        try:
            self._table.create_write_transaction(
                actions, "append", self._table.schema(), self._partitioned, commit_properties=properties
            )
        except CommitFailedError as error:
            raise LakeMoved(
                f"another job has written to the Delta table {self._storage.root}: {error}"
            ) from None
        self._table.update_incremental()

    def evolve(self, columns: Sequence[pa.Field]) -> None:
        wider = Schema.from_arrow(pa.schema(list(columns)))
        self._table.alter.add_columns([Field(one.name, one.type, nullable=True) for one in wider.fields])
        self._table.update_incremental()

    def upkeep(self, keep_seconds: float) -> int:
        hours = int(keep_seconds // 3600)
        gone = self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        self._table.update_incremental()
        return len(gone)


def _number(value: object) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime):
        return round(value.timestamp() * 1_000_000)
    return None


def _stats(file: DataFile, schema: pa.Schema) -> str:
    low: dict[str, int | str] = {}
    high: dict[str, int | str] = {}
    for name, (least, most) in file.bounds.items():
        low[name], high[name] = least, most
        if pa.types.is_timestamp(schema.field(name).type):
            # Delta's statistics are in milliseconds: the upper bound is rounded up.
            low[name], high[name] = _iso(least // 1000), _iso(-(-most // 1000))
    return json.dumps({"numRecords": file.rows, "minValues": low, "maxValues": high, "nullCount": {}})


def _iso(milliseconds: int) -> str:
    second, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)) + f".{rest:03d}Z"
