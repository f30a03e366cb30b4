"""Paging of messages: those in the journal are read back from there, the others go through a spill.

Owns: the encoding of a spilled run of messages. Must not touch: queues, files; a ``Spill`` keeps bytes.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from holtmq.broker.message import Message, decode_message
from holtmq.broker.records.changes import Kind
from holtmq.journal.interface import Journal, RecordUnreadable

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Message]).decode


class SpilledBytes(Protocol):
    """Bytes out of memory. Their space is freed when this object is no longer referenced."""

    def read(self) -> bytes:
        """Return the bytes as written. Raises OSError if that is not possible."""
        ...


class Spill(Protocol):
    """Keeps bytes that need not survive a restart."""

    def write(self, data: bytes) -> SpilledBytes:
        """Store the bytes. Raises OSError if that is not possible."""
        ...


class Pager(Protocol):
    """Stores messages that leave memory, and reads them back."""

    def read(self, positions: Sequence[int]) -> list[Message]:
        """The messages at these journal positions, in order."""
        ...

    def unreadable(self) -> list[RecordUnreadable]:
        """Why ``read`` returned fewer messages than asked for. Clears the list."""
        ...

    def spill(self, messages: list[Message]) -> SpilledBytes:
        """Write messages that are read back together. Raises OSError if that is not possible."""
        ...

    def read_back(self, spilled: SpilledBytes) -> list[Message]:
        """Return the messages of one ``spill`` call. Raises OSError if they cannot be read."""
        ...


class MemorySpill:
    """A ``Spill`` for brokers without files: keeps the encoded bytes in memory."""

    __slots__ = ()

    def write(self, data: bytes) -> SpilledBytes:
        """Store the bytes."""
        return _HeldBytes(data)


class _HeldBytes:
    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> bytes:
        return self._data


class MessagePager:
    """A ``Pager`` that uses the journal and a spill."""

    __slots__ = ("_journal", "_spill", "_unreadable")

    def __init__(self, journal: Journal, spill: Spill) -> None:
        self._journal = journal
        self._spill = spill
        self._unreadable: list[RecordUnreadable] = []

    def read(self, positions: Sequence[int]) -> list[Message]:
        """The messages at these positions, in order; ``unreadable`` then reports those left out."""
        try:
            records = self._journal.read_many(positions, Kind.MESSAGE)
        except RecordUnreadable:
            return self._read_singly(positions)
        return [
            decode_message(payload, position)[0]
            for position, (_, payload) in zip(positions, records, strict=True)
        ]

    def _read_singly(self, positions: Sequence[int]) -> list[Message]:
        found: list[Message] = []
        for position in positions:
            try:
                found.append(decode_message(self._journal.read(position, Kind.MESSAGE)[1], position)[0])
            except RecordUnreadable as error:
                self._unreadable.append(error)
        return found

    def unreadable(self) -> list[RecordUnreadable]:
        """What the last read left out. Clears the list."""
        found, self._unreadable = self._unreadable, []
        return found

    def spill(self, messages: list[Message]) -> SpilledBytes:
        """Write messages that are read back together. Raises OSError if that is not possible."""
        return self._spill.write(_encode(messages))

    def read_back(self, spilled: SpilledBytes) -> list[Message]:
        """Return the messages of one ``spill`` call. Raises OSError if they cannot be read."""
        return _decode(spilled.read())
