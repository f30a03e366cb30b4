"""Puts a data folder together from a backup, and verifies it before a broker can be started on it.

Owns: the order of steps: write beside, verify every checksum, rename. Must not touch: formats; the journal's
own check says whether a broker would start.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from holtmq.broker.records.rehearsal import live_positions
from holtmq.cli.backup.catalogue import Catalogue
from holtmq.cli.backup.stores import BackupError, sync_folder
from holtmq.journal.backup_format import BackupManifest, SavedFile
from holtmq.journal.disk import OsDisk, give_to_owner_of
from holtmq.journal.file_set import complete_copy
from holtmq.journal.inspection import check
from holtmq.journal.manifest import NAME as MANIFEST
from holtmq.journal.segment import base_of
from holtmq.journal.viewing import ViewingJournal

_SUFFIX: Final = ".restoring"


def restore_into(catalogue: Catalogue, manifest: BackupManifest, folder: Path) -> str:
    """Restore a backup into a folder that is empty or does not exist; return what was restored, as text."""
    folder = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise BackupError(f"{folder} is a file: name a folder that does not exist yet, or an empty one")
    if folder.is_dir() and any(found.name != _SUFFIX for found in folder.iterdir()):
        raise BackupError(f"{folder} is not empty: a restore overwrites nothing. Name another folder")
    stays = folder.is_dir() and (folder.is_mount() or folder.samefile(Path.cwd()))  # it cannot be replaced
    beside = folder / _SUFFIX if stays else folder.with_name(folder.name + _SUFFIX)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)  # left by a restore that was killed
        beside.mkdir(mode=0o700)
        if folder.is_dir():  # made by an administrator for the broker's user, who then gets the files
            _give(beside, folder)
        try:
            for file in manifest.files:
                _write(catalogue, file, beside)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)  # of no use, and it may have filled the disk
            raise
        disk = OsDisk(beside)
        complete_copy(disk, manifest.last_base, manifest.position, manifest.checkpoint, manifest.epoch)
        disk.sync_dir()
        report = check(disk, lambda recovery: live_positions(ViewingJournal(disk), recovery))
        if report.refusal or report.problems:
            why = report.refusal or report.problems[0].text
            raise BackupError(f"the backup cannot be used: {why}. What was restored is in {beside}")
        if stays:
            _move_up(beside)
        else:
            os.replace(beside, folder)
            sync_folder(folder.parent)
    except OSError as error:
        raise BackupError(f"{error.filename or folder} cannot be written: {error.strerror}") from None
    size = sum(file.size for file in manifest.files)
    return f"{len(manifest.files)} files, {size:,} bytes, {report.records:,} records"


def _give(beside: Path, folder: Path) -> None:
    fd = os.open(beside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        give_to_owner_of(folder, fd)
    finally:
        os.close(fd)


def _move_up(beside: Path) -> None:
    """Move the files into the folder above. Until the last one is there, a broker refuses to start on it.

    The manifest names the last segment, and the checkpoints name those that they need; so these come first.
    """
    names = sorted(os.listdir(beside), key=lambda name: (base_of(name) is not None, name != MANIFEST, name))
    for name in names:
        os.rename(beside / name, beside.parent / name)
        sync_folder(beside.parent)
    beside.rmdir()


def _write(catalogue: Catalogue, file: SavedFile, folder: Path) -> None:
    if "/" in file.name or file.name in ("", ".", ".."):
        raise BackupError(f"the manifest names a file outside of the folder: {file.name!r}")
    found = hashlib.sha256()
    with open(os.open(folder / file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        give_to_owner_of(folder, out.fileno())
        for piece in catalogue.get_object(file.identity):
            found.update(piece)
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())
    if found.hexdigest() != file.sha256:
        raise BackupError(f"{file.name} in the backup is damaged: its checksum does not match")
