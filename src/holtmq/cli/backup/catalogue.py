"""The backups at one place: which there are, which objects each needs, and which are needed no more.

Owns: the layout (``objects/`` and ``backups/``) and the manifest of a backup, which is written last. Must not
touch: the journal's formats.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from holtmq.cli.backup.stores import BackupError, Store

_FORMAT: Final = 1
_BACKUPS: Final = "backups"
_OBJECTS: Final = "objects"


class SavedFile(msgspec.Struct, frozen=True):
    """One file of a data folder, and the object that holds its bytes."""

    name: str
    size: int
    identity: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One backup."""

    format: int
    name: str
    created: int  # milliseconds
    position: int
    last_base: int
    checkpoint: int
    epoch: int
    files: tuple[SavedFile, ...]


class BackupRow(msgspec.Struct, frozen=True):
    """One backup, in a list."""

    name: str
    created: int
    files: int
    bytes: int


class Catalogue:
    """The backups in a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def names(self) -> list[str]:
        """All backups, oldest first."""
        found = self.store.list(_BACKUPS)
        return sorted(name.removeprefix(f"{_BACKUPS}/").removesuffix(".json") for name in found)

    def read(self, name: str) -> Manifest:
        """One backup. Raises BackupError when it is missing or not understood."""
        raw = b"".join(self.store.get(f"{_BACKUPS}/{name}.json"))
        try:
            manifest = msgspec.json.decode(raw, type=Manifest)
        except msgspec.MsgspecError as error:
            raise BackupError(f"the manifest of backup {name} is damaged: {error}") from None
        if manifest.format != _FORMAT:
            raise BackupError(f"backup {name} has format {manifest.format}; this program reads {_FORMAT}")
        return manifest

    def rows(self) -> list[BackupRow]:
        """All backups, oldest first."""
        found = map(self.read, self.names())
        return [
            BackupRow(one.name, one.created, len(one.files), sum(file.size for file in one.files))
            for one in found
        ]

    def choose(self, name: str | None, at_ms: int | None) -> Manifest:
        """A backup by its name, or the newest one at or before a time."""
        names = self.names()
        if not names:
            raise BackupError("there is no backup at this place")
        if name is not None:
            if name not in names:
                raise BackupError(f"there is no backup {name}; there are {', '.join(names)}")
            return self.read(name)
        for found in reversed(names):
            manifest = self.read(found)
            if at_ms is None or manifest.created <= at_ms:
                return manifest
        raise BackupError(f"every backup is newer than that; the oldest is {names[0]}")

    def known(self) -> dict[str, SavedFile]:
        """Files of the newest backup by identity: they need not be copied again."""
        names = self.names()
        return {file.identity: file for file in self.read(names[-1]).files} if names else {}

    def has(self, file: SavedFile) -> bool:
        """Whether the object of a file is there, whole."""
        return self.store.size(_object(file.identity)) == file.size

    def put_object(self, identity: str, pieces: Iterable[bytes]) -> None:
        """Store the bytes of a file."""
        self.store.put(_object(identity), pieces)

    def get_object(self, identity: str) -> Iterator[bytes]:
        """The bytes of a file."""
        return self.store.get(_object(identity))

    def add(self, manifest: Manifest) -> None:
        """The backup is complete: from now on it is listed."""
        self.store.put(f"{_BACKUPS}/{manifest.name}.json", [msgspec.json.encode(manifest)])

    def prune(self, keep: int) -> int:
        """Delete all but the newest backups, and the objects that only they needed; return how many."""
        names = self.names()
        gone, kept = names[:-keep], names[-keep:]
        needed = {file.identity for name in kept for file in self.read(name).files}
        for name in gone:
            self.store.delete(f"{_BACKUPS}/{name}.json")
        for found in self.store.list(_OBJECTS):
            if found.removeprefix(f"{_OBJECTS}/") not in needed:
                self.store.delete(found)
        return len(gone)


def new_manifest(
    name: str,
    created: int,
    position: int,
    last_base: int,
    checkpoint: int,
    epoch: int,
    files: list[SavedFile],
) -> Manifest:
    """A manifest in the present format."""
    return Manifest(
        format=_FORMAT,
        name=name,
        created=created,
        position=position,
        last_base=last_base,
        checkpoint=checkpoint,
        epoch=epoch,
        files=tuple(files),
    )


def _object(identity: str) -> str:
    return f"{_OBJECTS}/{identity}"
