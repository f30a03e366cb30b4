"""The backups at one place: which there are, which objects each needs, and which are needed no more.

Owns: choosing, adding and deleting backups. Must not touch: the layout, which is ``journal.backup_format``.
"""

from collections.abc import Iterable, Iterator

import msgspec

from holtmq.cli.backup.stores import BackupError, Store
from holtmq.journal.backup_format import (
    BACKUPS,
    FORMAT,
    OBJECTS,
    BackupManifest,
    SavedFile,
    manifest_path,
    object_path,
)


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
        found = self.store.list(BACKUPS)
        return sorted(name.removeprefix(f"{BACKUPS}/").removesuffix(".json") for name in found)

    def read(self, name: str) -> BackupManifest:
        """One backup. Raises BackupError when it is missing or not understood."""
        raw = b"".join(self.store.get(manifest_path(name)))
        try:
            manifest = msgspec.json.decode(raw, type=BackupManifest)
        except msgspec.MsgspecError as error:
            raise BackupError(f"the manifest of backup {name} is damaged: {error}") from None
        if manifest.format != FORMAT:
            raise BackupError(f"backup {name} has format {manifest.format}; this program reads {FORMAT}")
        return manifest

    def rows(self) -> list[BackupRow]:
        """All backups, oldest first."""
        found = map(self.read, self.names())
        return [
            BackupRow(one.name, one.created, len(one.files), sum(file.size for file in one.files))
            for one in found
        ]

    def choose(self, name: str | None, at_ms: int | None) -> BackupManifest:
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
        return self.store.size(object_path(file.identity)) == file.size

    def put_object(self, identity: str, pieces: Iterable[bytes]) -> None:
        """Store the bytes of a file."""
        self.store.put(object_path(identity), pieces)

    def get_object(self, identity: str) -> Iterator[bytes]:
        """The bytes of a file."""
        return self.store.get(object_path(identity))

    def add(self, manifest: BackupManifest) -> None:
        """The backup is complete: from now on it is listed, and ``prune`` keeps its objects.

        Raises BackupError when ``prune`` of another process has deleted some before that.
        """
        self.store.put(manifest_path(manifest.name), [msgspec.json.encode(manifest)])
        there = set(self.store.list(OBJECTS))
        if any(object_path(file.identity) not in there for file in manifest.files):
            self.store.delete(manifest_path(manifest.name))
            raise BackupError(
                "another `holt backup --keep` deleted files that this backup needs: run one at a time"
            )

    def prune(self, keep: int) -> int:
        """Delete all but the newest backups, and the objects that only they needed; return how many."""
        names = self.names()
        gone, kept = names[:-keep], names[-keep:]
        needed = {file.identity for name in kept for file in self.read(name).files}
        for name in gone:
            self.store.delete(manifest_path(name))
        for found in self.store.list(OBJECTS):
            if found.removeprefix(f"{OBJECTS}/") not in needed:
                self.store.delete(found)
        return len(gone)
