"""Files with wrong names, for example swapped by a faulty restore.

Owns: comparing a file's name with its header, and renaming. Must not touch: contents.
"""

from __future__ import annotations

from typing import Final

from .checkpoint import checkpoint_name, position_of, written_by
from .disk import Disk
from .interface import JournalError
from .segment import TEMPORARY, base_of, created_by, segment_name
from .strays import find_strays

REMOVED: Final = ".removed"
_MOVED: Final = ".moved"


def wrong_names(disk: Disk) -> list[tuple[str, str]]:
    """(name, right name) of each file whose header names another file, unless that file is in place.

    Also files that an interrupted ``put_names_right`` left under a name of its own.
    """
    right: set[str] = set()
    found: list[tuple[str, str]] = []
    try:
        strays = {stray.name for stray in find_strays(disk)}
    except OSError:  # a file that cannot be opened: the check says so
        return []
    for name in disk.list():
        if name in strays:
            continue
        own = _own_name(disk, name)
        if own == name:
            right.add(name)
        elif own is not None:
            found.append((name, own))
    wanted = [own for _, own in found]
    return [(name, own) for name, own in found if own not in right and wanted.count(own) == 1]


def put_names_right(disk: Disk, renames: list[tuple[str, str]]) -> None:
    """Rename in two steps, because two files may be swapped. A file in the way gets the suffix .removed."""
    moving = {wrong for wrong, _ in renames}
    moved: list[tuple[str, str]] = []
    for wrong, right in renames:
        if right in disk.list() and right not in moving:
            disk.rename(right, free_name(disk, right + REMOVED))
        between = wrong if wrong.endswith(_MOVED) else free_name(disk, wrong + _MOVED)
        if between != wrong:
            disk.rename(wrong, between)
        moved.append((between, right))
    disk.sync_dir()  # a later step without an earlier one would replace a file
    for between, right in moved:
        disk.rename(between, right)
    disk.sync_dir()


def free_name(disk: Disk, wanted: str) -> str:
    """A name that is not in use: an older side file may hold the only copy of something."""
    names = set(disk.list())
    if wanted not in names:
        return wanted
    stem, suffix = wanted.rsplit(".", 1)
    return next(name for number in range(2, 10_000) if (name := f"{stem}.{number}.{suffix}") not in names)


def _own_name(disk: Disk, name: str) -> str | None:
    if name.endswith(TEMPORARY):
        return None
    file = None
    plain = ".".join(name.split(".")[:2]) if name.endswith(_MOVED) else name
    try:
        if base_of(plain) is not None:
            file = disk.open(name)
            made = created_by(file)
            return None if made is None else segment_name(made[0])
        if position_of(plain) is not None:
            file = disk.open(name)
            made = written_by(file)
            return None if made is None else checkpoint_name(made[0])
    except (OSError, JournalError):
        return None
    finally:
        if file is not None:
            file.close()
    return None
