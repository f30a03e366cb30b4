"""Files that do not belong into their folder: those of another broker, and copies under a wrong name.

Owns: recognising them by their headers. Must not touch: contents. A start refuses them, since their records
are whole and would be taken for the folder's own; a repair puts them aside.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from . import epoch, manifest
from .checkpoint import checkpoint_name, position_of, written_by
from .disk import Disk, File
from .interface import JournalCorrupt
from .segment import base_of, created_by, segment_name


class Stray(NamedTuple):
    """A file, and why it is none of this folder's."""

    name: str
    is_foreign: bool  # or else a copy

    @property
    def reason(self) -> str:
        if self.is_foreign:
            return "another broker wrote it, in another folder"
        return "it is a copy under a wrong name, and the file itself is there"


@dataclass(frozen=True, slots=True)
class WithoutFiles:
    """A disk on which some files are not there."""

    disk: Disk
    hidden: frozenset[str]

    @property
    def folder(self) -> str:
        return self.disk.folder

    def open(self, name: str, *, create: bool = False, write: bool = False) -> File:
        if name in self.hidden:
            raise FileNotFoundError(name)
        return self.disk.open(name, create=create, write=write)

    def rename(self, old: str, new: str) -> None:
        self.disk.rename(old, new)

    def remove(self, name: str) -> None:
        self.disk.remove(name)

    def list(self) -> list[str]:
        return [name for name in self.disk.list() if name not in self.hidden]

    def sync_dir(self) -> None:
        self.disk.sync_dir()

    def lock(self) -> None:
        self.disk.lock()

    def unlock(self) -> None:
        self.disk.unlock()

    def lost(self) -> str:
        return self.disk.lost()

    def random_bytes(self, size: int) -> bytes:
        return self.disk.random_bytes(size)


def find_strays(disk: Disk) -> list[Stray]:
    """Every file whose header shows that it does not belong here. OSError when one cannot be opened."""
    families: dict[str, int] = {}
    own_names: dict[str, str] = {}
    for name in disk.list():
        made = _made(disk, name)
        if made is not None:
            own_names[name], number = made
            if family := epoch.family_of(number):
                families[name] = family
    foreign = _foreign(families)
    copies = [
        name
        for name, own in own_names.items()
        if own != name and own_names.get(own) == own and not foreign.intersection((name, own))
    ]
    return sorted([*(Stray(name, True) for name in foreign), *(Stray(name, False) for name in copies)])


def refuse_foreign(disk: Disk) -> None:
    """JournalCorrupt when there is a file of another folder. A copy is refused where its header is read."""
    for stray in find_strays(disk):
        if stray.is_foreign:
            raise JournalCorrupt(
                f"{disk.folder}/{stray.name} does not belong here: {stray.reason}; `holt journal check "
                f"{disk.folder}` shows more, `holt journal repair {disk.folder}` puts it aside"
            )


def _foreign(families: dict[str, int]) -> set[str]:
    """The files that are of another family than most; with as many of each, the ``epoch`` file decides."""
    counts = Counter(families.values())
    if len(counts) < 2:
        return set()
    most = max(counts, key=lambda family: (counts[family], family == families.get(epoch.NAME)))
    return {name for name, family in families.items() if family != most}


def _made(disk: Disk, name: str) -> tuple[str, int] | None:
    """The name and the epoch that a file was made with; None when its header is damaged or it has none."""
    if name == epoch.NAME:
        return name, epoch.stored_epoch(disk)
    if name == manifest.NAME:
        known, _ = manifest.read_manifest(disk)
        return (name, known.epoch) if known is not None else None
    is_segment = base_of(name) is not None
    if not is_segment and position_of(name) is None:
        return None
    try:
        file = disk.open(name)
    except FileNotFoundError:  # a running broker has deleted it
        return None
    try:
        return _segment_made(file) if is_segment else _checkpoint_made(file)
    finally:
        file.close()


def _segment_made(file: File) -> tuple[str, int] | None:
    made = created_by(file)
    return None if made is None else (segment_name(made[0]), made[1])


def _checkpoint_made(file: File) -> tuple[str, int] | None:
    made = written_by(file)
    return None if made is None else (checkpoint_name(made[0]), made[1])
