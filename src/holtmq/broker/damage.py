"""Messages that the journal cannot read: listed and counted, while their queues continue without them.

Owns: the list, in memory and as a record, so that it survives a restart. Must not touch: queues, files,
logs. The caller says where the message belonged (a queue, the spool, a delay).
An entry is removed when its message is readable again, or when a repair has dropped the message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

import msgspec

from holtmq.broker.records.changes import Kind
from holtmq.journal.interface import Journal, RecordUnreadable

_AT_ONCE: Final = 10_000  # entries kept; further ones are only counted


class Damaged(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One message that could not be read."""

    where: str  # "queue", "partitioned queue", "dead letters", "spool" or "delayed"
    vhost: str
    name: str
    position: int  # in the journal
    size: int  # of the record; 0 if unknown
    reason: str
    offset: int | None = None  # in a partitioned queue


_encode: Final = msgspec.msgpack.Encoder().encode
_rows: Final = msgspec.msgpack.Decoder(list[Damaged], strict=True)


class DamageList:
    """The unreadable messages. ``on_found`` is called once for each."""

    __slots__ = ("_journal", "_rows", "dropped", "found", "on_found")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._rows: dict[int, Damaged] = {}
        self.found = 0  # since the start
        self.dropped = 0  # since the start: messages that a repair has dropped
        self.on_found: Callable[[Damaged], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> list[Damaged]:
        return list(self._rows.values())

    def note(
        self, where: str, vhost: str, name: str, error: RecordUnreadable, offset: int | None = None
    ) -> None:
        """Add a message that could not be read."""
        if error.dropped:
            self.dropped += 1
            return
        if error.position in self._rows:
            return
        self.found += 1
        row = Damaged(where, vhost, name, error.position, error.size, error.reason, offset)
        self.on_found(row)
        if len(self._rows) < _AT_ONCE:
            self._rows[row.position] = row
            if self._journal.failed is None:
                self._journal.append(Kind.DAMAGED, _encode([row]))

    def forget(self, where: str, vhost: str, name: str) -> None:
        """Remove the entries of a queue that was deleted or purged."""
        gone = where, vhost, name
        kept = {at: row for at, row in self._rows.items() if (row.where, row.vhost, row.name) != gone}
        self._rows = kept

    def look_again(self) -> None:
        """After a start: remove entries that a repair has dropped or that can be read again."""
        for position in list(self._rows):
            try:
                self._journal.read(position)
                del self._rows[position]
            except RecordUnreadable as error:
                if error.dropped:
                    del self._rows[position]

    def fold(self, payload: bytes) -> None:
        self._rows.update((row.position, row) for row in _rows.decode(payload))

    def dump(self) -> tuple[bytes, array[int]]:
        """A record of all entries, and their positions, whose bytes the journal must keep for inspection."""
        return _encode(self.rows), array("Q", sorted(self._rows))
