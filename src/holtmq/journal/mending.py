"""Locates damage in a plain segment as exactly as its bytes allow, and makes the segment readable again.

Owns: the search for the next readable record, and writing a LOST record over an unreadable stretch, of the
same size, so that no position changes. Must not touch: other files; ``repair`` asks the operator first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .checksum import crc32
from .disk import File
from .interface import FIRST_FREE_KIND
from .records import (
    BATCH,
    FILLER,
    FRAME,
    FRAME_SIZE,
    KIND_BYTES,
    LOST,
    PREFIX,
    PREFIX_SIZE,
    SYNC,
    decode_sync,
    find_syncs,
)
from .segment import HEADER_SIZE, SegmentHeader

_WHOLE: Final = (BATCH, FILLER, LOST)


@dataclass(frozen=True, slots=True)
class Damage:
    """An unreadable stretch of the log."""

    position: int
    size: int
    reason: str
    batch: int | None = None  # start of the batch that contains it, if the rest of the batch can be read


@dataclass(slots=True)
class Mended:
    """What a walk over one segment found."""

    damages: list[Damage]
    records: int
    end: int  # the last readable record ends here


def examine(file: File, header: SegmentHeader, start: int, stop: int) -> Mended:
    """Find every unreadable stretch of [start, stop). The records between them are whole."""
    data = file.pread(stop - start, start - header.base + HEADER_SIZE)
    found = _Examination(data, header.marker, start, stop)
    found.walk()
    return Mended(found.damages, found.records, start + found.end)


def mend(file: File, header: SegmentHeader, damages: list[Damage]) -> None:
    """Write LOST records over these stretches; the caller syncs."""
    for damage in damages:
        length = damage.size - PREFIX_SIZE
        offset = damage.position - header.base + HEADER_SIZE
        missing = offset + damage.size - file.size()
        if missing > 0:
            file.pwrite([bytes(missing)], file.size())
        body = KIND_BYTES[LOST] + file.pread(length - 1, offset + FRAME_SIZE)
        file.pwrite([PREFIX.pack(length, crc32(body, length)), KIND_BYTES[LOST]], offset)
    for batch in dict.fromkeys(damage.batch for damage in damages if damage.batch is not None):
        offset = batch - header.base + HEADER_SIZE
        length = PREFIX.unpack(file.pread(PREFIX_SIZE, offset))[0]
        checksum = crc32(file.pread(length, offset + PREFIX_SIZE), length)
        file.pwrite([PREFIX.pack(length, checksum)], offset)


class _Examination:
    def __init__(self, data: bytes, marker: bytes, start: int, stop: int) -> None:
        self.data = data
        self.marker = marker
        self.start = start
        self.size = stop - start
        self.damages: list[Damage] = []
        self.records = 0
        self.end = 0
        self._syncs = [mark.position - start for mark in find_syncs(data, marker, start)]

    def walk(self) -> None:
        at = 0
        while at < self.size:
            end = self._whole(at, self.size)
            if end:
                self._count(at, end)
                at = self.end = end
                continue
            at = self._damaged(at)

    def _count(self, at: int, end: int) -> None:
        kind = self.data[at + PREFIX_SIZE]
        if kind >= FIRST_FREE_KIND:
            self.records += 1
        elif kind == BATCH:
            inner = at + FRAME_SIZE
            while inner < end:
                self.records += self.data[inner + PREFIX_SIZE] >= FIRST_FREE_KIND
                inner += PREFIX_SIZE + PREFIX.unpack_from(self.data, inner)[0]

    def _whole(self, at: int, stop: int, *, inside: bool = False) -> int:
        """The end of the record at ``at``; 0 when there is no whole record."""
        data = self.data
        if at + FRAME_SIZE > min(stop, len(data)):
            return 0
        length, checksum, kind = FRAME.unpack_from(data, at)
        body = at + PREFIX_SIZE
        end: int = body + length
        if not length or end > stop or end > len(data):
            return 0
        if kind < FIRST_FREE_KIND and kind not in ((LOST,) if inside else (*_WHOLE, SYNC)):
            return 0
        if crc32(data[body:end], length) != checksum:
            return 0
        if kind == SYNC and decode_sync(data[body + 1 : end], self.marker, self.start + at) is None:
            return 0
        return end

    def _damaged(self, at: int) -> int:
        """Note the unreadable stretch that starts here; return where the log continues."""
        data = self.data
        claimed = self._claimed_end(at, self.size)
        if claimed and data[at + PREFIX_SIZE] == BATCH:
            before = len(self.damages)
            self._inside(at, claimed)
            if len(self.damages) > before:
                self.end = claimed
                return claimed
            # Every inner record is whole, only the frame of the batch is damaged: no record is lost.
            self._note(at, at + FRAME_SIZE, "the checksum of a batch does not match")
            return at + FRAME_SIZE
        stop = claimed or self._next(at, self.size, self._search_stop(at))
        self._note(
            at, stop, "zeros where a record was" if not any(data[at:stop]) else _reason(data, at, stop)
        )
        return stop

    def _search_stop(self, at: int) -> int:
        """The start of the next commit: there, at the latest, a record begins."""
        return next((sync for sync in self._syncs if sync >= at + FRAME_SIZE), self.size)

    def _claimed_end(self, at: int, stop: int, *, inside: bool = False) -> int:
        """The end of the record by its own length, if another record begins there; else 0."""
        if at + FRAME_SIZE > len(self.data):
            return 0
        end = at + PREFIX_SIZE + PREFIX.unpack_from(self.data, at)[0]
        if end < at + FRAME_SIZE or end > stop:
            return 0
        return end if end == stop or self._whole(end, stop, inside=inside) else 0

    def _next(self, at: int, stop: int, limit: int, *, inside: bool = False) -> int:
        """The first offset after ``at`` where a whole record begins, at most ``limit``."""
        data = self.data
        for place in range(at + FRAME_SIZE, min(limit, len(data) - FRAME_SIZE + 1)):
            if data[place] | data[place + 1] | data[place + 2] and self._whole(place, stop, inside=inside):
                return place
        return limit

    def _inside(self, batch: int, end: int) -> None:
        """Note the damaged records of a batch whose end is known."""
        at = batch + FRAME_SIZE
        while at < end:
            stop = self._whole(at, end, inside=True)
            if stop:
                self.records += self.data[at + PREFIX_SIZE] >= FIRST_FREE_KIND
                at = stop
                continue
            stop = self._claimed_end(at, end, inside=True) or self._next(at, end, end, inside=True)
            self._note(at, stop, _reason(self.data, at, stop), batch)
            at = stop

    def _note(self, at: int, stop: int, reason: str, batch: int | None = None) -> None:
        self.damages.append(
            Damage(self.start + at, stop - at, reason, None if batch is None else self.start + batch)
        )


def _reason(data: bytes, at: int, stop: int) -> str:
    if at + FRAME_SIZE > len(data):
        return "the log is cut short"
    length = PREFIX.unpack_from(data, at)[0]
    if at + PREFIX_SIZE + length != stop:
        return f"a length of {length} is impossible here"
    return "the checksum does not match"
