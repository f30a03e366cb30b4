"""Messages leave memory and come back: from the journal what it holds, the others through a spill.

Owns: the form in which a run of messages is spilled. Must not touch: queues, files; a ``Spill`` keeps bytes.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from holtmq.broker.message import Message, decode_message
from holtmq.journal.interface import Journal, RecordUnreadable

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Message]).decode


class SpilledBytes(Protocol):
    """Bytes out of memory. Their place is free again when nothing refers to this object any more."""

    def read(self) -> bytes:
        """The bytes, as they were written."""
        ...


class Spill(Protocol):
    """Keeps bytes that a restart may forget."""

    def write(self, data: bytes) -> SpilledBytes:
        """Keep these. OSError where that is not possible."""
        ...


class MemorySpill:
    """A ``Spill`` for brokers without files: what leaves as messages stays as bytes."""

    __slots__ = ()

    def write(self, data: bytes) -> SpilledBytes:
        """Keep these."""
        return _HeldBytes(data)


class _HeldBytes:
    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self) -> bytes:
        return self._data


class MessagePager:
    """A ``Pager`` over the journal and a spill."""

    __slots__ = ("_journal", "_spill", "_unreadable")

    def __init__(self, journal: Journal, spill: Spill) -> None:
        self._journal = journal
        self._spill = spill
        self._unreadable: list[RecordUnreadable] = []

    def read(self, positions: Sequence[int]) -> list[Message]:
        """The messages at these positions, in this order, but for those that ``unreadable`` then tells."""
        try:
            records = self._journal.read_many(positions)
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
                found.append(decode_message(self._journal.read(position)[1], position)[0])
            except RecordUnreadable as error:
                self._unreadable.append(error)
        return found

    def unreadable(self) -> list[RecordUnreadable]:
        """What the last reading had to leave out; told once."""
        found, self._unreadable = self._unreadable, []
        return found

    def spill(self, messages: list[Message]) -> SpilledBytes:
        """Write messages that are to come back together. OSError where that is not possible."""
        return self._spill.write(_encode(messages))

    def read_back(self, spilled: SpilledBytes) -> list[Message]:
        """What was spilled together."""
        return _decode(spilled.read())
