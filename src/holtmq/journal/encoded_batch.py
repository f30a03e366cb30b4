"""A BATCH record that is built in steps, for callers with more records than one turn should encode.

Owns: its bytes and the offset of each record in it. Must not touch: files, positions: the journal knows its
position only when it is appended.
"""

from __future__ import annotations

from typing import Final

from .checksum import combine, crc32
from .interface import FIRST_FREE_KIND
from .records import AS_THEY_ARE, BATCH, FRAME, FRAME_SIZE, KIND_BYTES, PREFIX_SIZE

_JOIN: Final = 2_000  # records of one piece; they are joined if they are small


class EncodedBatch:
    """Add records, then append it to a journal. After a crash its records are all there, or none."""

    __slots__ = ("_checksum", "_loose", "_loose_bytes", "_parts", "size")

    def __init__(self) -> None:
        self.size = FRAME_SIZE
        self._parts: list[bytes] = []
        self._checksum = 0  # of these parts
        self._loose: list[bytes] = []  # frames and payloads after them
        self._loose_bytes = 0

    def add(self, kind: int, payload: bytes) -> int:
        """Add a record; return its offset in the batch."""
        if kind < FIRST_FREE_KIND:
            raise ValueError(f"kind {kind} is reserved for the journal")
        length = len(payload) + 1
        loose, offset, size = self._loose, self.size, PREFIX_SIZE + length
        loose.append(FRAME.pack(length, crc32(payload, crc32(KIND_BYTES[kind], length)), kind))
        loose.append(payload)
        self.size = offset + size
        self._loose_bytes += size
        if len(loose) >= 2 * _JOIN:
            self._take_in()
        return offset

    def absorb(self, other: EncodedBatch) -> int:
        """Append all records of another batch, which is not used any more; what is added to their offsets."""
        self._take_in()
        other._take_in()
        shift, size = self.size - FRAME_SIZE, other.size - FRAME_SIZE
        self._checksum = combine(self._checksum, other._checksum, size)
        self._parts += other._parts
        self.size += size
        return shift

    def _take_in(self) -> None:
        loose, self._loose = self._loose, []
        if self._loose_bytes < AS_THEY_ARE * len(loose):
            loose = [b"".join(loose)]
        for part in loose:
            self._checksum = crc32(part, self._checksum)
        self._parts += loose
        self._loose_bytes = 0

    def finish(self) -> list[bytes]:
        """The whole record in pieces: whole records, or a frame or a payload alone."""
        self._take_in()
        # The checksum of a record begins with its length, which is known only now.
        length = self.size - PREFIX_SIZE
        first = crc32(KIND_BYTES[BATCH], length)
        checksum = combine(first, self._checksum, self.size - FRAME_SIZE)
        return [FRAME.pack(length, checksum, BATCH), *self._parts]
