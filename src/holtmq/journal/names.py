"""Files with wrong names, for example swapped by a faulty restore.

Owns: comparing a file's name with its header, and renaming. Must not touch: contents.
"""

from __future__ import annotations

from .checkpoint import checkpoint_name, position_of, written_as
from .disk import Disk
from .interface import JournalError
from .segment import TEMPORARY, base_of, own_base, segment_name


def wrong_names(disk: Disk) -> list[tuple[str, str]]:
    """(name, right name) of each file whose header names another file, unless that file is in place."""
    right: set[str] = set()
    found: list[tuple[str, str]] = []
    for name in disk.list():
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
    for wrong, right in renames:
        if right in disk.list() and right not in moving:
            disk.rename(right, right + ".removed")
        disk.rename(wrong, wrong + ".moved")
    for wrong, right in renames:
        disk.rename(wrong + ".moved", right)
    disk.sync_dir()


def _own_name(disk: Disk, name: str) -> str | None:
    if name.endswith(TEMPORARY):
        return None
    file = None
    try:
        if base_of(name) is not None:
            file = disk.open(name)
            base = own_base(file)
            return None if base is None else segment_name(base)
        if position_of(name) is not None:
            file = disk.open(name)
            position = written_as(file)
            return None if position is None else checkpoint_name(position)
    except (OSError, JournalError):
        return None
    finally:
        if file is not None:
            file.close()
    return None
