"""Fetches a part of the log from PostgreSQL into a file.

Owns: the temporary file, and the check that no row is missing. Must not touch: what is in the file.
"""

from __future__ import annotations

from collections.abc import Iterator

from holtmq.journal.disk import Disk
from holtmq.journal.segment import HEADER_SIZE, TEMPORARY

from .errors import StartAgain
from .store import Kind, LogStore, Part


def download(disk: Disk, store: LogStore, name: str, part: Part) -> None:
    """Fetch a whole part to a temporary file, then rename it. The caller syncs the folder."""
    fetch(disk, store, name, part)
    disk.rename(name + TEMPORARY, name)


def fetch(disk: Disk, store: LogStore, name: str, part: Part) -> None:
    """Fetch a whole part to a temporary file."""
    plain = part.kind is Kind.PLAIN
    file = disk.open(name + TEMPORARY, create=True)
    try:
        if plain:
            file.pwrite([part.header], 0)
        at = part.base if plain else 0
        shift = HEADER_SIZE - part.base if plain else 0
        for position, data in rows_of(store, part, at):
            if position != at:
                raise StartAgain(f"PostgreSQL has no row at {at} of {name}, but one at {position}")
            file.pwrite([data], position + shift)
            at += len(data)
        if not plain and at != part.size:
            raise StartAgain(f"PostgreSQL has {at} of {part.size} bytes of {name}")
        file.sync()
    finally:
        file.close()


def rows_of(store: LogStore, part: Part, start: int) -> Iterator[tuple[int, bytes]]:
    """All rows of a part from a position (or offset) on."""
    while rows := store.rows(part.id, start):
        yield from rows
        start = rows[-1][0] + len(rows[-1][1])
