"""The files to back up: of a running broker over HTTP, or of a stopped one's folder.

Owns: reading them. Must not touch: where they are stored.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import click
import msgspec

from holtmq.cli.backup.stores import BackupError
from holtmq.cli.broker_api import BrokerApi
from holtmq.journal import JournalLocked
from holtmq.journal.disk import OsDisk
from holtmq.journal.file_set import FileSet, keep_files_of_stopped

_PIECE: Final = 1 << 20


class FileIn(msgspec.Struct, frozen=True):
    name: str
    size: int
    identity: str


class Files(msgspec.Struct, frozen=True):
    """What a backup consists of."""

    position: int
    last_base: int
    checkpoint: int
    epoch: int
    files: list[FileIn]
    id: str = ""


class Source(Protocol):
    """Files that stay as they are while the source is open."""

    files: Files

    def read(self, name: str) -> Iterator[bytes]:
        """The bytes of a file, piece by piece."""
        ...


class _Broker:
    def __init__(self, api: BrokerApi, files: Files) -> None:
        self.files = files
        self._api = api

    def read(self, name: str) -> Iterator[bytes]:
        return self._api.pieces("v1", "operator", "backups", self.files.id, "files", name)


class _Folder:
    def __init__(self, kept: FileSet) -> None:
        files = [FileIn(file.name, file.size, file.identity) for file in kept.files]
        self.files = Files(kept.end, kept.last_base, kept.checkpoint, kept.epoch, files)
        self._kept = kept

    def read(self, name: str) -> Iterator[bytes]:
        offset = 0
        while piece := self._kept.read(name, _PIECE, offset):
            yield piece
            offset += len(piece)


@contextmanager
def running_broker(api: BrokerApi) -> Iterator[Source]:
    """The files of a running broker at this moment."""
    files = api.decoded(Files, api.send("POST", "v1", "operator", "backups"))
    try:
        yield _Broker(api, files)
    except BaseException:
        api.close()  # an answer may be half read; the next request connects again
        raise
    finally:
        with suppress(click.ClickException):  # the broker ends it by itself after a minute
            api.send("DELETE", "v1", "operator", "backups", files.id)


@contextmanager
def stopped_folder(folder: Path) -> Iterator[Source]:
    """The files of a folder that no broker uses; it is locked meanwhile."""
    disk = OsDisk(folder)
    try:
        disk.lock()
    except JournalLocked as locked:
        raise BackupError(f"{locked}; reach that broker with --url") from None
    try:
        kept = keep_files_of_stopped(disk)
        try:
            if not kept.files:
                raise BackupError(f"{folder} is not a broker's data folder: it has no journal")
            yield _Folder(kept)
        finally:
            kept.close()
    finally:
        disk.unlock()
