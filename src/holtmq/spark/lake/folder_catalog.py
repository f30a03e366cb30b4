"""An Iceberg catalog that is the table's own folder: ``metadata/v12.metadata.json`` and a version hint.

Owns: the names of metadata files and the one atomic step of a commit, which creates the next of them. Must
not touch: their content, which pyiceberg writes. The layout is that of Iceberg's Hadoop tables, which Spark,
Trino, DuckDB and pyiceberg's StaticTable open by path.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from holtmq.spark.lake.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Mapping

METADATA: Final = "metadata"
_HINT: Final = f"{METADATA}/version-hint.text"
_NAME: Final = ("holt", "lake")


class FolderCatalog(NoopCatalog):
    """A catalog of one table."""

    def __init__(self, storage: Storage) -> None:
        super().__init__("folder")
        self._storage = storage

    def exists(self) -> bool:
        return self._newest() > 0

    def create(self, schema: Schema, spec: PartitionSpec, properties: "Mapping[str, str]") -> Table:
        """Create the table, or open the one another job created meanwhile."""
        metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, self._storage.root, dict(properties))
        with suppress(FileExistsError):
            self._put(1, metadata)
        return self.load_table(_NAME)

    def load_table(self, identifier: object) -> Table:
        version = self._newest()
        if not version:
            raise NoSuchTableError(f"there is no Iceberg table at {self._storage.root}")
        location = self._storage.full(_path(version))
        io = load_file_io(location=location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table(_NAME, metadata, location, io, self)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        current = self.load_table(_NAME)
        if current.metadata_location != table.metadata_location:
            self._moved(current)
        for requirement in requirements:
            requirement.validate(current.metadata)
        updated = update_table_metadata(
            current.metadata, updates, metadata_location=current.metadata_location
        )
        version = _number(current.metadata_location) + 1
        try:
            self._put(version, updated)
        except FileExistsError:
            self._moved(current)
        self._delete_old_metadata(current.io, current.metadata, updated)
        where = self._storage.full(_path(version))
        return CommitTableResponse.model_validate({"metadata": updated, "metadata-location": where})

    def _moved(self, current: Table) -> NoReturn:
        raise CommitFailedException(f"the table moved on since it was read, to {current.metadata_location}")

    def _put(self, version: int, metadata: TableMetadata) -> None:
        self._storage.create(_path(version), metadata.model_dump_json().encode())
        if self._newest() != version:  # other writers removed its version while this one was suspended
            self._storage.delete(_path(version))
            raise FileExistsError(_path(version))
        self._storage.write(_HINT, str(version).encode())

    def _newest(self) -> int:
        """Found by listing the files: the hint, which is for other programs, may be old after a crash."""
        names = self._storage.names(METADATA)
        return max((_number(name) for name in names if name.endswith(".metadata.json")), default=0)


def _path(version: int) -> str:
    return f"{METADATA}/v{version}.metadata.json"


def _number(location: str) -> int:
    digits = location.rpartition("/")[2].removeprefix("v").removesuffix(".metadata.json")
    return int(digits) if digits.isdigit() else 0
