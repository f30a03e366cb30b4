"""Every readable record of a journal, one after the other.

Owns: the records that ``holt journal dump`` prints. Must not touch: the files; it reads. What is readable is
said by a report (``inspection``).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from .checkpoint import checkpoint_name, read_checkpoint
from .disk import Disk, File
from .inspection import CheckReport, SegmentReport, read_one
from .mending import Damage
from .recovery import walk_segment
from .segment import PositionTable, SegmentHeader


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of a dump."""

    source: str  # file name
    position: int | None  # None inside a checkpoint
    kind: int
    payload: bytes


def dump(disk: Disk, report: CheckReport) -> Iterator[Listed]:
    """Every readable record: those of the newest whole checkpoint, then those of the segments by position."""
    if report.checkpoint is not None:
        for kind, payload in read_checkpoint(disk, report.checkpoint):
            yield Listed(checkpoint_name(report.checkpoint), None, kind, payload)
    for segment in report.segments:
        if segment.header is None:
            continue
        file = disk.open(segment.name)
        try:
            yield from _listed(file, segment, segment.header)
        finally:
            file.close()


def _listed(file: File, segment: SegmentReport, header: SegmentHeader) -> Iterator[Listed]:
    if header.compacted:
        damaged = {damage.position for damage in segment.damages}
        table = segment.held or PositionTable(array("Q"), array("Q"))
        for position, offset in zip(table.positions, table.offsets, strict=True):
            if position not in damaged:
                yield Listed(segment.name, position, *read_one(file, offset))
        return
    at = segment.base
    for damage in [*segment.damages, Damage(segment.end, 0, "")]:
        for position, kind, payload in walk_segment(file, header, at, damage.position):
            yield Listed(segment.name, position, kind, payload)
        at = damage.position + damage.size
