"""A table in Iceberg's format, through ``pyiceberg``: no JVM and no jars.

Owns: snapshots and properties of the table. Must not touch: the content of data files.

A commit adds existing files (as ``add_files`` does) in one snapshot. The batch is in the snapshot's summary;
positions are table properties of the same commit, because snapshots expire. Without a user's catalog the
table's own folder is the catalog (``folder_catalog``). A commit is attempted once: it fails when another
writer has committed before it.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

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
    import pyiceberg.table
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.conversions import from_bytes
    from pyiceberg.exceptions import (
        CommitFailedException,
        NamespaceAlreadyExistsError,
        NoSuchTableError,
        NotInstalledError,
    )
    from pyiceberg.io.pyarrow import (
        _pyarrow_to_schema_without_ids,
        parquet_files_to_data_files,
        schema_to_pyarrow,
    )
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema, assign_fresh_schema_ids
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import IcebergType, IntegerType, LongType, TimestampType, TimestamptzType

    from holtmq.spark.lake.folder_catalog import METADATA, FolderCatalog
except ImportError as missing:
    raise InvalidOption(f"{missing}: an Iceberg lake needs pip install 'holtmq[iceberg]'") from None

_POSITION: Final = "holtmq.position."
_PROPERTIES: Final = {
    "format-version": "2",
    "commit.retry.num-retries": "0",  # a retry would add rows that another writer has already added
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    "write.parquet.compression-codec": "zstd",
}
_NUMBERS: Final = (IntegerType, LongType, TimestampType, TimestamptzType)


class IcebergTable:
    """A lake's table in Iceberg format. ``catalog``: properties for ``load_catalog``, and ``table``."""

    format = "iceberg"

    def __init__(
        self,
        storage: Storage,
        schema: pa.Schema,
        partitioned: Sequence[str],
        *,
        create: bool,
        catalog: Mapping[str, str] | None = None,
    ) -> None:
        self._storage = storage
        if catalog:
            self._table = _of_catalog(catalog, storage, schema, partitioned, create)
            if self._table.location().rstrip("/") != storage.root:
                raise UnfitTable(
                    f"the catalog has the table at {self._table.location()}, not at {storage.root}: "
                    "give that address as the lake"
                )
        else:
            folder = FolderCatalog(storage)
            if folder.exists():
                self._table = folder.load_table(())
            elif create and not storage.names(METADATA):
                self._table = folder.create(*_shape(schema, partitioned), _PROPERTIES)
            else:
                raise UnfitTable(
                    f"the Iceberg table {storage.root} belongs to a catalog: name it "
                    "(--catalog, or option lakeCatalog)"
                )
        # The partition columns are in the files too: Iceberg reads a file's partition from them.
        self.in_file = tuple(one.name for one in self._table.spec().fields)
        if create:
            check_partitions(storage.root, self.in_file, partitioned)

    @property
    def version(self) -> int:
        snapshot = self._table.current_snapshot()
        return 0 if snapshot is None else snapshot.sequence_number or 0

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files())

    def refresh(self) -> None:
        self._table.refresh()

    def position(self, key: str) -> Position | None:
        text = self._table.properties.get(_POSITION + key)
        return None if text is None else Position.from_json(json.loads(text))

    def files(self) -> list[DataFile]:
        schema = self._table.schema()
        kinds = {field.field_id: (field.name, field.field_type) for field in schema.fields}
        return [self._file(entry.data_file, kinds) for entry in self._entries()]

    def _entries(self) -> Iterator[ManifestEntry]:
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return
        for manifest in snapshot.manifests(self._table.io):
            if manifest.content != 0:
                raise UnfitTable(
                    f"the Iceberg table {self._storage.root} has delete files: rewrite its data files first"
                )
            yield from manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)

    def _file(self, file: IcebergFile, kinds: Mapping[int, tuple[str, IcebergType]]) -> DataFile:
        bounds: Bounds = {}
        low, high = file.lower_bounds or {}, file.upper_bounds or {}
        for number, least in low.items():
            name, kind = kinds.get(number, ("", None))
            if isinstance(kind, _NUMBERS) and number in high:
                bounds[name] = (int(from_bytes(kind, least)), int(from_bytes(kind, high[number])))
        spec = self._table.specs()[file.spec_id]
        values = {one.name: _text(file.partition[place], one.name) for place, one in enumerate(spec.fields)}
        path = file.file_path.removeprefix(self._table.location() + "/")
        return DataFile(path, file.file_size_in_bytes, file.record_count, values, bounds)

    def schema(self) -> pa.Schema:
        kept = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        return pa.schema([pa.field(field.name, _plain(field.type)) for field in kept])

    def commit(self, change: Change) -> None:
        summary = {f"holtmq.{name}": value for name, value in change.note.items()}
        for key, position in change.positions.items():
            summary[f"holtmq.until.{key}"] = str(position.next)
        removed = {file.path for file in change.remove}
        old = [e.data_file for e in self._entries() if self._relative(e) in removed] if removed else []
        try:
            with self._table.transaction() as transaction:
                if self._table.metadata.name_mapping() is None:
                    mapping = self._table.schema().name_mapping.model_dump_json()
                    transaction.set_properties({"schema.name-mapping.default": mapping})
                marks = {_POSITION + k: json.dumps(p.to_json()) for k, p in change.positions.items()}
                if marks:
                    transaction.set_properties(marks)
                snapshot = transaction.update_snapshot(snapshot_properties=summary)
                producer = snapshot.overwrite() if removed else snapshot.merge_append()
                with producer as files:
                    for gone in old:
                        files.delete_data_file(gone)
                    paths = (self._storage.full(file.path) for file in change.add)
                    metadata = transaction.table_metadata
                    for new in parquet_files_to_data_files(self._table.io, metadata, paths):
                        files.append_data_file(new)
        except (CommitFailedException, FileNotFoundError) as error:
            raise LakeMoved(
                f"another job has written to the Iceberg table {self._storage.root}: {error}"
            ) from None

    def _relative(self, entry: ManifestEntry) -> str:
        return entry.data_file.file_path.removeprefix(self._table.location() + "/")

    def evolve(self, columns: Sequence[pa.Field]) -> None:
        with self._table.transaction() as transaction:
            with transaction.update_schema() as update:
                update.union_by_name(pa.schema(list(columns)))
            mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
            transaction.set_properties({"schema.name-mapping.default": mapping})

    def upkeep(self, keep_seconds: float) -> int:
        """Expire old snapshots, then delete the metadata and data files that only they used."""
        before = self._reachable()
        snapshots = sorted(self._table.metadata.snapshots, key=lambda one: one.timestamp_ms)
        oldest = int((time.time() - keep_seconds) * 1000)
        due = [one.snapshot_id for one in snapshots if one.timestamp_ms <= oldest]
        current = self._table.current_snapshot()
        due = [number for number in due if current is None or number != current.snapshot_id]
        if not due:
            return 0
        self._table.maintenance.expire_snapshots().by_ids(due).commit()
        self._table.refresh()
        gone = before - self._reachable()
        for location in gone:
            self._storage.delete(location.removeprefix(self._table.location() + "/"))
        return sum(location.endswith(".parquet") for location in gone)

    def _reachable(self) -> set[str]:
        found: set[str] = set()
        for snapshot in self._table.metadata.snapshots:
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(self._table.io):
                if manifest.manifest_path not in found:
                    found.add(manifest.manifest_path)
                    for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True):
                        found.add(entry.data_file.file_path)
        return found


def _of_catalog(
    given: Mapping[str, str], storage: Storage, schema: pa.Schema, partitioned: Sequence[str], create: bool
) -> "pyiceberg.table.Table":
    properties = dict(given)
    name = properties.pop("table", "")
    if "." not in name:
        raise InvalidOption("a catalog needs the table's identifier too: --catalog table=namespace.name")
    try:
        catalog: Catalog = load_catalog(properties.pop("name", "holt"), **properties)
    except (NotInstalledError, ValueError) as error:
        raise InvalidOption(f"--catalog: {error}") from None
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        if not create:
            raise UnfitTable(f"the catalog has no table {name}") from None
    with suppress(NamespaceAlreadyExistsError):
        catalog.create_namespace(name.rpartition(".")[0])
    shape, spec = _shape(schema, partitioned)
    return catalog.create_table(name, shape, storage.root, spec, properties=_PROPERTIES)


def _shape(schema: pa.Schema, partitioned: Sequence[str]) -> tuple[Schema, PartitionSpec]:
    made = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))
    fields = [
        PartitionField(made.find_field(name).field_id, 1000 + place, IdentityTransform(), name)
        for place, name in enumerate(partitioned)
    ]
    return made, PartitionSpec(*fields)


def _text(value: object, name: str) -> str:
    if isinstance(value, int) and name == "date":
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=value)).date().isoformat()
    return str(value)


def _plain(kind: pa.DataType) -> pa.DataType:
    """pyiceberg uses large strings and binaries; the files have ordinary ones."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind
