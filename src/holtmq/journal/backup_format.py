"""The layout of backups: one object for each file of a journal, and a manifest for each backup.

Owns: the names of objects and manifests, and the manifest's fields. Must not touch: where backups are kept.
"""

import time
from typing import Final

import msgspec

from holtmq.journal.file_set import FileSet

FORMAT: Final = 1
BACKUPS: Final = "backups"
OBJECTS: Final = "objects"


class SavedFile(msgspec.Struct, frozen=True):
    """One file of a data folder, and the object that holds its bytes."""

    name: str
    size: int
    identity: str
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One backup. It is written last: without it, nothing of it is a backup."""

    format: int
    name: str
    created: int  # milliseconds
    position: int
    last_base: int
    checkpoint: int
    epoch: int
    files: tuple[SavedFile, ...]


def backup_name(now: float) -> str:
    """The name of a backup that begins now; names sort by time."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))


def object_path(identity: str) -> str:
    """Where the bytes of a file are."""
    return f"{OBJECTS}/{identity}"


def manifest_path(name: str) -> str:
    """Where the manifest of a backup is."""
    return f"{BACKUPS}/{name}.json"


def manifest_of(files: FileSet, name: str, created_ms: int, saved: list[SavedFile]) -> BackupManifest:
    """The manifest of a set of files that was saved whole."""
    return BackupManifest(
        format=FORMAT,
        name=name,
        created=created_ms,
        position=files.end,
        last_base=files.last_base,
        checkpoint=files.checkpoint,
        epoch=files.epoch,
        files=tuple(saved),
    )
