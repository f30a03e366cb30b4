"""Makes one backup: copies what is new, then writes the manifest.

Owns: which files are copied, and their checksums. Must not touch: the source's formats, the store's layout.
"""

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from holtmq.cli.backup.catalogue import Catalogue
from holtmq.cli.backup.sources import FileIn, Source
from holtmq.cli.backup.stores import BackupError
from holtmq.journal.backup_format import FORMAT, BackupManifest, SavedFile, backup_name


class Made(msgspec.Struct, frozen=True):
    """A backup that is complete."""

    name: str
    files: int
    bytes: int
    copied: int


def save(source: Source, catalogue: Catalogue, now: float) -> Made:
    """Copy the files that the newest backup does not have. Without the manifest nothing of it is a backup."""
    known, files = catalogue.known(), source.files
    saved: list[SavedFile] = []
    copied = 0
    for file in files.files:
        found = known.get(file.identity)
        if found is None or not catalogue.has(found):
            found = _copy(source, catalogue, file)
            copied += file.size
        saved.append(found)
    name = _free_name(catalogue, now)
    catalogue.add(
        BackupManifest(
            format=FORMAT,
            name=name,
            created=int(now * 1000),
            position=files.position,
            last_base=files.last_base,
            checkpoint=files.checkpoint,
            epoch=files.epoch,
            files=tuple(saved),
        )
    )
    return Made(name, len(saved), sum(file.size for file in saved), copied)


def _free_name(catalogue: Catalogue, now: float) -> str:
    """The time of the backup, which also orders them; a second one in the same second gets a number."""
    base = backup_name(now)
    taken = set(catalogue.names())
    return next(
        name for name in (base, *(f"{base}.{number:03d}" for number in range(1, 1000))) if name not in taken
    )


def _copy(source: Source, catalogue: Catalogue, file: FileIn) -> SavedFile:
    counted = _Counted(source.read(file.name), file)
    catalogue.put_object(file.identity, counted)
    return SavedFile(file.name, file.size, file.identity, counted.sha256)


class _Counted:
    """The bytes of a file on their way; raises before the end when they are too few."""

    def __init__(self, pieces: Iterable[bytes], file: FileIn) -> None:
        self._pieces = pieces
        self._file = file
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for piece in self._pieces:
            self._hash.update(piece)
            size += len(piece)
            yield piece
        if size != self._file.size:
            raise BackupError(
                f"{self._file.name} ended after {size} of {self._file.size} bytes: the broker went away. "
                "This backup is not complete and is not listed; earlier ones are untouched"
            )
