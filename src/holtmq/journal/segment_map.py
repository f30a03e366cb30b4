"""The segments of the log and their sizes.

Owns: base and size of each, in order; the last one is being written. Must not touch: files, and records
inside a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .compaction import Reclaimed, SealedSegment
from .segment import HEADER_SIZE


@dataclass(slots=True)
class _Segment:
    base: int
    size: int


class SegmentMap:
    """The segments in order. ``capacity`` is the size of the last one without its header."""

    __slots__ = ("_segments", "capacity")

    def __init__(self, segments: Sequence[tuple[int, int]], capacity: int) -> None:
        self._segments = [_Segment(base, size) for base, size in segments]
        self.capacity = capacity

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def bases(self) -> list[int]:
        return [segment.base for segment in self._segments]

    @property
    def sizes(self) -> list[int]:
        """The size of each on disk, in order."""
        return [segment.size for segment in self._segments]

    @property
    def bytes_on_disk(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def last_base(self) -> int:
        """The base of the segment that is being written."""
        return self._segments[-1].base

    @property
    def limit(self) -> int:
        """The position where the last segment must end."""
        return self.last_base + self.capacity

    def go_on(self, base: int, capacity: int) -> bool:
        """Start a new segment at ``base``. If the last one is still empty, enlarge it and return False."""
        current = self._segments[-1]
        is_new = base != current.base
        if is_new:
            current.size = base - current.base + HEADER_SIZE
            current = _Segment(base, 0)
            self._segments.append(current)
        current.size = HEADER_SIZE + capacity
        self.capacity = capacity
        return is_new

    def holder(self, position: int) -> int:
        """The base of the segment that holds a position."""
        return max(segment.base for segment in self._segments if segment.base <= position)

    def sealed(self, upto: int) -> list[SealedSegment]:
        """The segments whose successor begins at or before this position."""
        return [
            SealedSegment(segment.base, follower.base, segment.size)
            for segment, follower in zip(self._segments, self._segments[1:], strict=False)
            if follower.base <= upto
        ]

    def reclaimed(self, reclaimed: Reclaimed) -> list[int]:
        """Remove deleted segments and resize compacted ones; return the bases of the latter."""
        deleted = set(reclaimed.deleted)
        self._segments = [segment for segment in self._segments if segment.base not in deleted]
        compacted = [segment for segment in self._segments if segment.base in reclaimed.compacted]
        for segment in compacted:
            segment.size = reclaimed.compacted[segment.base]
        return [segment.base for segment in compacted]
