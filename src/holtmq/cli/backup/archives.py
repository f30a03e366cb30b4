"""A backup in one tar archive, as the dashboard downloads it.

Owns: reading its objects. Must not touch: what they contain. An archive is never written to: a backup there
could not be added whole or not at all.
"""

import tarfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from holtmq.cli.backup.stores import BackupError
from holtmq.journal.backup_format import BACKUPS

_PIECE: Final = 1 << 20
_SUFFIX: Final = ".tar"


def is_archive(place: str) -> bool:
    """Whether a place is meant to be an archive."""
    return "://" not in place and place.endswith(_SUFFIX) and not Path(place).is_dir()


class ArchiveStore:
    """The objects of one archive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with tarfile.open(path, "r:") as archive:
                self._members = {member.name: member for member in archive if member.isfile()}
        except OSError as error:
            raise BackupError(f"{path} cannot be read: {error.strerror}") from None
        except tarfile.TarError as error:
            raise BackupError(f"{path} is not a tar archive, or is cut off: {error}") from None
        if not any(name.startswith(f"{BACKUPS}/") for name in self._members):
            raise BackupError(
                f"{path} has no manifest: its download was cut off, or it is not a backup of HoltMQ"
            )

    def get(self, name: str) -> Iterator[bytes]:
        """The bytes of an object."""
        member = self._members.get(name)
        if member is None:
            raise BackupError(f"{self._path} does not contain {name}")
        try:
            with tarfile.open(self._path, "r:") as archive:
                file = archive.extractfile(member)
                assert file is not None  # only plain files are listed
                while piece := file.read(_PIECE):
                    yield piece
        except (OSError, tarfile.TarError) as error:
            raise BackupError(f"{name} in {self._path} cannot be read: {error}") from None

    def size(self, name: str) -> int | None:
        """The size of an object."""
        member = self._members.get(name)
        return None if member is None else member.size

    def list(self, under: str) -> list[str]:
        """The objects under a name."""
        return sorted(name for name in self._members if name.startswith(f"{under}/"))

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        """Refuse."""
        raise BackupError(f"{self._path} is an archive: name a folder or a bucket to back up to")

    def delete(self, name: str) -> None:
        """Refuse."""
        raise BackupError(f"{self._path} is an archive: nothing is deleted from it")

    def alone(self) -> AbstractContextManager[None]:
        """Nothing: an archive is only read."""
        return nullcontext()
