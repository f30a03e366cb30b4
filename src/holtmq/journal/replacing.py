"""Replacing a small file: after a crash there is the old content or the new one.

Owns: the order of write, sync and rename. Must not touch: what the files say.
"""

from __future__ import annotations

from .disk import Disk
from .segment import TEMPORARY


def replace_file(disk: Disk, name: str, content: bytes) -> None:
    """Create or replace the file; it is durable when this returns."""
    file = disk.open(name + TEMPORARY, create=True)
    try:
        file.pwrite([content], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(name + TEMPORARY, name)
    disk.sync_dir()
