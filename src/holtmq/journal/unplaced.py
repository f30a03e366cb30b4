"""Files named like segments for which the log has no place.

Owns: telling them from segments of the log whose header is damaged. Must not touch: contents. What stands
around a name decides: nothing in such a file can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .disk import Disk
from .records import SYNC_SIZE, find_syncs
from .segment import HEADER_SIZE, SegmentHeader, segment_name

_READ: Final = 1 << 20
REASON: Final = "the log has no place for it, and its header cannot be read"


def find_unplaced(disk: Disk, headers: Mapping[int, SegmentHeader | None], durable: int) -> list[int]:
    """The bases of such files; None is a header that cannot be read.

    Either the log goes on beyond that base in an earlier segment, or it was never durable up to there: then a
    repair that took the file for a part of the log would give up what the earlier segment holds, or fill the
    disk up to that base. ``durable``: up to where the log was durable, as far as other files say so.
    """
    headless = [base for base, header in headers.items() if header is None]
    if not headless:
        return []
    reached: dict[int, int] = {}
    for base, header in headers.items():
        if header is not None and header.compacted:
            reached[base] = header.end
        elif header is not None:
            reached[base], synced = _shown_by(disk, header)
            durable = max(durable, synced)
    return [
        base
        for base in headless
        if base > durable or any(first < base < end for first, end in reached.items())
    ]


def _shown_by(disk: Disk, header: SegmentHeader) -> tuple[int, int]:
    """The position of a plain segment's last SYNC record, and up to where such records say it was durable."""
    last = durable = header.base
    file = disk.open(segment_name(header.base))
    try:
        at, size = HEADER_SIZE, file.size()
        while at < size:
            data = file.pread(_READ, at)
            for mark in find_syncs(data, header.marker, header.base + at - HEADER_SIZE):
                last, durable = max(last, mark.position), max(durable, mark.synced_upto)
            at += max(len(data) - SYNC_SIZE + 1, 1)
    finally:
        file.close()
    return last, durable
