"""Locates damage in a plain segment as exactly as its bytes allow, and makes the segment readable again.

Owns: the search for the next readable record, and writing a LOST record over an unreadable stretch, of the
same size, so that no position changes. Must not touch: other files; ``repair`` asks the operator first.
"""

from __future__ import annotations

import re
from bisect import bisect_left
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
    SYNC_SIZE,
    BadRecord,
    decode_sync,
    find_syncs,
    record_at,
)
from .segment import HEADER_SIZE, SegmentHeader

_WHOLE: Final = (BATCH, FILLER, LOST)
# Bytes to checksum in the search for records in one segment. Among random bytes every 64th offset looks like
# the start of a record of many megabytes: without a limit, 64 MiB of garbage would take hours.
_SEARCH_BYTES: Final = 8 << 30
_USED: Final = re.compile(rb"[^\0]")
_SYNC_LENGTH: Final = SYNC_SIZE - PREFIX_SIZE
_SYNC_FRAME: Final = re.compile(
    re.escape(_SYNC_LENGTH.to_bytes(4, "little")) + rb"(?s:....)" + KIND_BYTES[SYNC]
)
_SMALL: Final = 64 << 10  # records up to this size are found however much was searched


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


def examine(file: File, header: SegmentHeader, start: int, stop: int, *, exact: bool) -> Mended:
    """Find every unreadable stretch of [start, stop). The records between them are whole.

    ``exact``: a record ended at ``stop``. Else the file was cut there, perhaps within one.
    """
    offset = start - header.base + HEADER_SIZE
    # ``stop`` comes from the name of the next segment, which may be that of a file far beyond the log.
    data = file.pread(max(min(stop - start, file.size() - offset), 0), offset)
    found = _Examination(data, header.marker, start, stop, exact=exact)
    found.walk()
    return Mended(found.damages, found.records, start + found.end)


def foreign_stretches(file: File, header: SegmentHeader) -> list[tuple[int, int]]:
    """Where the contents of another file are, shown by a SYNC record of it. Much faster than ``examine``."""
    base = header.base
    data = file.pread(file.size() - HEADER_SIZE, HEADER_SIZE)
    found = _Examination(data, header.marker, base, base + len(data))
    stretches: list[tuple[int, int]] = []
    stop = 0
    for match in _SYNC_FRAME.finditer(data):
        at = match.start()
        if at < stop or not found.is_foreign_sync(at) or found.is_whole(at):
            continue
        first, stop = found.around(at)
        if first <= at:  # else it is in a message's body
            stretches.append((base + first, base + stop))
    return stretches


def mend(file: File, header: SegmentHeader, damages: list[Damage]) -> None:
    """Write LOST records over these stretches; the caller syncs."""
    for damage in damages:
        length = damage.size - PREFIX_SIZE
        offset = damage.position - header.base + HEADER_SIZE
        missing = offset + damage.size - file.size()
        if missing > 0:
            file.pwrite([bytes(missing)], file.size())
        # The whole stretch is written, not only its frame: a disk replaces a bad sector when it is written,
        # and old contents may hold whole records at positions of messages.
        body = KIND_BYTES[LOST] + bytes(length - 1)
        file.pwrite([PREFIX.pack(length, crc32(body, length)), body], offset)
    for batch in dict.fromkeys(damage.batch for damage in damages if damage.batch is not None):
        offset = batch - header.base + HEADER_SIZE
        length = PREFIX.unpack(file.pread(PREFIX_SIZE, offset))[0]
        body = KIND_BYTES[BATCH] + file.pread(length - 1, offset + FRAME_SIZE)
        file.pwrite([PREFIX.pack(length, crc32(body, length)), KIND_BYTES[BATCH]], offset)


@dataclass(frozen=True, slots=True)
class _Doubt:
    """The first damage of a commit: what follows it may be another file's, up to the next genuine SYNC."""

    at: int
    damages: int  # noted before it
    records: int  # counted before it


class _Examination:
    def __init__(self, data: bytes, marker: bytes, start: int, stop: int, *, exact: bool = False) -> None:
        self.data = data
        self.marker = marker
        self.start = start
        self.size = stop - start
        self.is_exact = exact
        self.damages: list[Damage] = []
        self.records = 0
        self.end = 0
        self._syncs = [mark.position - start for mark in find_syncs(data, marker, start)]
        self._searched = 0

    def walk(self) -> None:
        at = 0
        doubt: _Doubt | None = None
        while at < self.size:
            end = self._whole(at, self.size)
            if end:
                if self.data[at + PREFIX_SIZE] == SYNC:
                    doubt = None
                self._count(at, end)
                at = self.end = end
                continue
            doubt = doubt or _Doubt(at, len(self.damages), self.records)
            if self.is_foreign_sync(at):
                at = self._not_ours(doubt, at)
                doubt = None
            else:
                at = self._damaged(at)

    def is_whole(self, at: int) -> bool:
        return self._whole(at, self.size) > 0

    def around(self, at: int) -> tuple[int, int]:
        """The first damage after the commit before ``at`` begins, and where the next commit begins."""
        index = bisect_left(self._syncs, at)
        first = self._syncs[index - 1] if index else 0
        while end := self._whole(first, self.size):
            first = end
        return first, self._search_stop(at)

    def is_foreign_sync(self, at: int) -> bool:
        """Whether a whole SYNC record is here that was written for another segment or another place.

        The caller knows that it is not a whole record of this segment.
        """
        try:
            kind, _ = record_at(self.data[at : at + SYNC_SIZE], 0)
        except BadRecord:
            return False
        return kind == SYNC

    def _not_ours(self, doubt: _Doubt, at: int) -> int:
        """Old contents of other files, from the first damage of this commit to the next commit."""
        del self.damages[doubt.damages :]
        self.records = doubt.records
        stop = self._search_stop(at)
        self._note(doubt.at, stop, "another file's contents are here")
        return stop

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
        if 0 < stop - end < FRAME_SIZE and (self.is_exact or stop < self.size):
            return 0  # old contents: between a record here and ``stop`` nothing would fit
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
        if claimed and (
            data[at + PREFIX_SIZE] == BATCH or self._whole(at + FRAME_SIZE, claimed, inside=True)
        ):
            before = len(self.damages)
            self._inside(at, claimed)
            if len(self.damages) > before:
                self.end = claimed
                return claimed
            # Every inner record is whole, only the frame of the batch is damaged: no record is lost.
            self._note(at, at + FRAME_SIZE, "the checksum of a batch does not match")
            return at + FRAME_SIZE
        stop = claimed or self._next(at, self._search_stop(at))
        self._note(
            at, stop, "zeros where a record was" if not any(data[at:stop]) else _reason(data, at, stop)
        )
        return stop

    def _search_stop(self, at: int) -> int:
        """The start of the next commit: there, at the latest, a record begins."""
        index = bisect_left(self._syncs, at + FRAME_SIZE)
        return self._syncs[index] if index < len(self._syncs) else self.size

    def _claimed_end(self, at: int, stop: int, *, inside: bool = False) -> int:
        """The end of the record by its own length, if another record begins there; else 0."""
        if at + FRAME_SIZE > len(self.data):
            return 0
        end = at + PREFIX_SIZE + PREFIX.unpack_from(self.data, at)[0]
        if end < at + FRAME_SIZE or end > stop:
            return 0
        return end if end == stop or self._whole(end, stop, inside=inside) else 0

    def _next(self, at: int, stop: int, *, inside: bool = False) -> int:
        """The first offset after ``at`` where a whole record begins that ends by ``stop``; else ``stop``."""
        data = self.data
        unpack = PREFIX.unpack_from
        place, last = at + FRAME_SIZE, min(stop, len(data)) - FRAME_SIZE
        while place <= last:
            length = unpack(data, place)[0]
            if not length:
                used = _USED.search(data, place + 4)
                if used is None:
                    break
                place = used.start() - 3  # the highest byte of the length, at the earliest
                continue
            is_searched = length <= _SMALL or self._searched < _SEARCH_BYTES
            if place + PREFIX_SIZE + length <= stop and is_searched:
                self._searched += length
                if self._whole(place, stop, inside=inside) or (
                    length == _SYNC_LENGTH and not inside and self.is_foreign_sync(place)
                ):
                    return place
            place += 1
        return stop

    def _inside(self, batch: int, end: int) -> None:
        """Note the damaged records of a batch whose end is known."""
        at = batch + FRAME_SIZE
        while at < end:
            stop = self._whole(at, end, inside=True)
            if stop:
                if self.data[at + PREFIX_SIZE] == LOST:
                    # An earlier repair wrote it. If a crash came before the checksum of the batch, that has
                    # to be written still.
                    self._note(at, stop, "an earlier repair gave it up", batch)
                else:
                    self.records += 1
                at = stop
                continue
            stop = self._claimed_end(at, end, inside=True) or self._next(at, end, inside=True)
            self._note(at, stop, _reason(self.data, at, stop), batch)
            at = stop

    def _note(self, at: int, stop: int, reason: str, batch: int | None = None) -> None:
        # A file that was cut short may end within a frame. What was there was at least a frame.
        size = max(stop - at, FRAME_SIZE)
        self.damages.append(
            Damage(self.start + at, size, reason, None if batch is None else self.start + batch)
        )


def _reason(data: bytes, at: int, stop: int) -> str:
    if at + FRAME_SIZE > len(data):
        return "the log is cut short"
    length = PREFIX.unpack_from(data, at)[0]
    if at + PREFIX_SIZE + length != stop:
        return f"a length of {length} is impossible here"
    return "the checksum does not match"
