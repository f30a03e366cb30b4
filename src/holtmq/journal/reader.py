"""Reads records by position.

Owns: the open read handles (bounded) and the choice of how much to read at once.
Must not touch: the open end of the log; ``unwritten`` has the records that are not in files yet.
"""

from __future__ import annotations

import errno
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from struct import error
from typing import Final

from .checksum import crc32
from .disk import Disk, File
from .dropped import Dropped
from .interface import FIRST_FREE_KIND, JournalCorrupt, JournalError, PositionNotHeld, RecordUnreadable
from .mending import foreign_stretches
from .records import FRAME_SIZE, KIND_BYTES, PREFIX, PREFIX_SIZE, BadRecord, record_at
from .segment import HEADER_SIZE, PositionTable, SegmentHeader, read_header, read_index, segment_name

_PAGE: Final = 4096
_RUN: Final = 1 << 20
_GAP: Final = 64 << 10  # positions closer than this share one read
_AHEAD: Final = 2 << 20
# The file itself is whole: no handles or memory at this moment, or the disk is gone with all files.
_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENODEV)


class OpenSegment:
    """A read handle. After a compaction it still reads the old file, until it is closed."""

    __slots__ = ("_table", "base", "file", "header")

    def __init__(self, file: File, header: SegmentHeader, table: PositionTable | None) -> None:
        self.file = file
        self.header = header
        self.base = header.base
        self._table = table

    def offset_of(self, position: int) -> int | None:
        if self._table is None:
            return position - self.base + HEADER_SIZE
        return self._table.offset_of(position)


class LogReader:
    def __init__(
        self, disk: Disk, bases: Sequence[int], handles: int, dropped: Dropped | None = None
    ) -> None:
        self._disk = disk
        self.dropped = dropped or Dropped()
        self._bases = sorted(bases)
        self._handles = max(handles, 1)
        self._open: OrderedDict[int, OpenSegment] = OrderedDict()
        self._examined: set[int] = set()  # segments with damage
        self.foreign: dict[int, list[tuple[int, int]]] = {}  # stretches of other files' contents, by segment

    def add(self, base: int) -> None:
        insort(self._bases, base)

    def forget(self, base: int, *, gone: bool) -> None:
        """Close the handle after a compaction; with ``gone``, also forget the deleted segment."""
        if gone and base in self._bases:
            self._bases.remove(base)
        self._examined.discard(base)
        self.foreign.pop(base, None)
        segment = self._open.pop(base, None)
        if segment is not None:
            segment.file.close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].file.close()

    def read(self, position: int, kind: int | None = None) -> tuple[int, bytes]:
        segment = self.segment_for(position)
        offset = self.locate(segment, position)
        data = self._load(segment, offset, _PAGE)
        found = self.parse(segment, data, 0, offset, position)
        if self.foreign:
            self.refuse_foreign((position,))
        if kind is not None and found[0] != kind:
            raise self.of_another_kind(position)
        return found

    def read_many(self, positions: Sequence[int], kind: int | None = None) -> list[tuple[int, bytes]]:
        found = self._read_many(positions)
        if self.foreign:
            self.refuse_foreign(positions)
        if kind is not None:
            for position, (own, _) in zip(positions, found, strict=True):
                if own != kind:
                    raise self.of_another_kind(position)
        return found

    def refuse_foreign(self, positions: Sequence[int]) -> None:
        """Raise for the first of these that lies among the contents of another file."""
        for position in positions:
            segment = self.segment_for(position)
            for first, stop in self.foreign.get(segment.base, ()):
                if first <= position < stop:
                    offset = self.locate(segment, position)
                    raise self._damage(segment, offset, position, "another file's contents are here")

    def of_another_kind(self, position: int) -> RecordUnreadable:
        segment = self.segment_for(position)
        return self._damage(segment, self.locate(segment, position), position, "another record is here")

    def _read_many(self, positions: Sequence[int]) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        segment: OpenSegment | None = None
        data = b""
        first = stop = lowest = highest = 0  # file offsets of ``data``; positions of its segment
        unpack = PREFIX.unpack_from
        for index, position in enumerate(positions):
            if segment is None or not lowest <= position < highest:
                segment = self.segment_for(position)
                lowest, highest = segment.base, self.upper(segment.base)
                first = stop = 0
            offset = self.locate(segment, position)
            at = offset - first
            whole = first <= offset and offset + PREFIX_SIZE <= stop
            if whole:
                # The common case inline: 0.6 µs a record instead of 1.3. All other cases go through parse.
                length, checksum = unpack(data, at)
                end = at + PREFIX_SIZE + length
                if length and first + end <= stop:
                    kind, payload = data[at + PREFIX_SIZE], data[at + FRAME_SIZE : end]
                    if (
                        kind >= FIRST_FREE_KIND
                        and crc32(payload, crc32(KIND_BYTES[kind], length)) == checksum
                    ):
                        found.append((kind, payload))
                        continue
            if not whole or offset + PREFIX_SIZE + PREFIX.unpack_from(data, at)[0] > stop:
                size = self._run_size(positions, index, highest)
                data = self._load(segment, offset, size)
                first, at = offset, 0
                stop = first + len(data)
                if size > _PAGE:
                    segment.file.will_need(stop, _AHEAD)
            found.append(self.parse(segment, data, at, offset, position))
        return found

    def record_size(self, position: int) -> int:
        """The size of the record with its frame, from its length field alone."""
        segment = self.segment_for(position)
        offset = self.locate(segment, position)
        raw = segment.file.pread(FRAME_SIZE, offset)
        if len(raw) < FRAME_SIZE:
            raise self._damage(segment, offset, position, "the record is cut short")
        length: int = PREFIX.unpack_from(raw)[0]
        return PREFIX_SIZE + length

    @staticmethod
    def _run_size(positions: Sequence[int], index: int, highest: int) -> int:
        start = last = positions[index]
        limit = min(start + _RUN, highest)
        for position in positions[index + 1 : index + 20_000]:
            if not last <= position < limit or position - last > _GAP:
                break
            last = position
        return min(last - start + _PAGE, _RUN)

    def upper(self, base: int) -> int:
        at = bisect_right(self._bases, base)
        return self._bases[at] if at < len(self._bases) else 1 << 64

    def segment_for(self, position: int) -> OpenSegment:
        at = bisect_right(self._bases, position) - 1
        if at < 0:
            text = f"position {position} lies before every segment in {self._disk.folder}"
            raise self._not_held(text, position)
        base = self._bases[at]
        segment = self._open.get(base)
        if segment is None:
            try:
                segment = self._open_segment(base)
            except JournalError as exc:
                dropped = position in self.dropped
                raise RecordUnreadable(str(exc), position, str(exc), dropped=dropped) from None
        else:
            self._open.move_to_end(base)
        return segment

    def _open_segment(self, base: int) -> OpenSegment:
        folder = self._disk.folder
        try:
            file = self._disk.open(segment_name(base))
        except FileNotFoundError:
            raise JournalCorrupt(f"segment {folder}/{segment_name(base)} is missing") from None
        except OSError as exc:
            if exc.errno in _PASSING:
                raise
            reason = f"cannot be opened: {exc.strerror}"
            raise JournalCorrupt(f"segment {folder}/{segment_name(base)} {reason}") from None
        try:
            header = read_header(file, base, folder)
            table = read_index(file, header, folder) if header.compacted else None
        except BaseException:
            file.close()
            raise
        segment = self._open[base] = OpenSegment(file, header, table)
        while len(self._open) > self._handles:
            self._open.popitem(last=False)[1].file.close()
        return segment

    def locate(self, segment: OpenSegment, position: int) -> int:
        offset = segment.offset_of(position)
        if offset is None:
            text = (
                f"segment {self._disk.folder}/{segment_name(segment.base)} does not hold position {position}"
            )
            raise self._not_held(text, position)
        return offset

    def _not_held(self, text: str, position: int) -> RecordUnreadable:
        reason = "its segment does not hold it"
        if position in self.dropped:
            return RecordUnreadable(text, position, reason, dropped=True)
        return PositionNotHeld(text, position, reason)

    def _load(self, segment: OpenSegment, offset: int, size: int) -> bytes:
        """Read ``size`` bytes, or more if the record at ``offset`` is longer."""
        data = segment.file.pread(size, offset)
        try:
            need = PREFIX_SIZE + PREFIX.unpack_from(data)[0]
        except error:
            return data
        if len(data) < need <= segment.file.size() - offset:
            data += segment.file.pread(need - len(data), offset + len(data))
        return data

    def parse(
        self, segment: OpenSegment, data: bytes, at: int, offset: int, position: int
    ) -> tuple[int, bytes]:
        try:
            record = record_at(data, at)
        except BadRecord as exc:
            raise self._damage(segment, offset, position, exc.reason) from None
        if record[0] < FIRST_FREE_KIND:
            raise self._damage(segment, offset, position, "no record that was appended starts here")
        return record

    def _examine(self, segment: OpenSegment) -> None:
        """At the first damage of a segment: its bytes may be another file's, with whole records in them."""
        if segment.base in self._examined or segment.header.compacted or segment.base == self._bases[-1]:
            return
        self._examined.add(segment.base)
        stretches = foreign_stretches(segment.file, segment.header)
        if stretches:
            self.foreign[segment.base] = stretches

    def _damage(self, segment: OpenSegment, offset: int, position: int, reason: str) -> RecordUnreadable:
        self._examine(segment)
        folder = self._disk.folder
        text = (
            f"segment {folder}/{segment_name(segment.base)} is damaged at offset {offset} "
            f"(position {position}): {reason}; `holt journal check {folder}` tells how much is affected"
        )
        raw = segment.file.pread(PREFIX_SIZE, offset)
        length = PREFIX.unpack(raw)[0] if len(raw) == PREFIX_SIZE else 0
        size = length if offset + length <= segment.file.size() else 0
        return RecordUnreadable(text, position, reason, size, dropped=position in self.dropped)
