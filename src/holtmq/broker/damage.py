"""Messages that the journal cannot read: listed and counted, while their queues continue without them.

Owns: the list, in memory and as a record, so that it survives a restart. Must not touch: queues, files,
logs, clocks. The caller says where the message belonged (a queue, the spool, a delay).
An entry is removed when its message is readable again, or when a repair has dropped the message.
Transient messages that were spilled and cannot be read back are counted per queue, until the queue is purged
or deleted, or the node restarts: transient messages do not outlive that anyway.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from holtmq.broker.records.changes import Kind
from holtmq.journal.interface import Journal, RecordUnreadable

_AT_ONCE: Final = 10_000  # entries kept; further ones are only counted
_KINDS: Final = {  # of record, by where the message belongs
    "queue": Kind.MESSAGE,
    "partitioned queue": Kind.PARTITIONED_BODY,
    "dead letters": Kind.PARTITIONED_BODY,
    "spool": Kind.PARTITIONED_BODY,
    "staged": Kind.STAGED,
}


class Damaged(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One message that could not be read."""

    where: str  # "queue", "partitioned queue", "dead letters", "spool", "staged" or "delayed"
    vhost: str
    name: str
    position: int  # in the journal
    size: int  # of the record; 0 if unknown
    reason: str
    offset: int | None = None  # in a partitioned queue
    found_ms: int | None = None  # when it was first found; None: not known


class LostSpill(msgspec.Struct, frozen=True):
    """Transient messages of one queue that were spilled and could not be read back."""

    vhost: str
    name: str
    messages: int
    size: int  # of their bodies
    reason: str  # why the last of them could not be read
    found_ms: int | None = None  # when the first of them was found; None: not known


_encode: Final = msgspec.msgpack.Encoder().encode
_rows: Final = msgspec.msgpack.Decoder(list[Damaged], strict=True)


class DamageList:
    """The unreadable messages. ``on_found`` is called once for each, ``on_lost`` for each run of a spill."""

    __slots__ = ("_journal", "_lost", "_rows", "dropped", "found", "now_ms", "on_found", "on_lost")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # One record may be in several queues: each of them misses it.
        self._rows: dict[tuple[int, str, str, str], Damaged] = {}
        self._lost: dict[tuple[str, str], LostSpill] = {}
        self.found = 0  # since the start
        self.dropped = 0  # since the start: messages that a repair has dropped
        self.now_ms: Callable[[], int | None] = lambda: None  # a tool that only looks has no clock
        self.on_found: Callable[[Damaged], None] = lambda _: None
        self.on_lost: Callable[[LostSpill], None] = lambda _: None

    def __len__(self) -> int:
        """How many messages are missing."""
        return len(self._rows) + sum(lost.messages for lost in self._lost.values())

    @property
    def rows(self) -> list[Damaged]:
        return list(self._rows.values())

    @property
    def lost(self) -> list[LostSpill]:
        """What could not be read back from a spill, by queue."""
        return list(self._lost.values())

    @property
    def since_ms(self) -> int | None:
        """When the first of the missing messages was found; None: none is missing, or it is not known."""
        times = [row.found_ms for row in self._rows.values()] + [run.found_ms for run in self._lost.values()]
        known = [time for time in times if time is not None]
        return min(known) if known and len(known) == len(times) else None

    def note(
        self, where: str, vhost: str, name: str, error: RecordUnreadable, offset: int | None = None
    ) -> None:
        """Add a message that could not be read."""
        if error.dropped:
            self.dropped += 1
            return
        if (error.position, where, vhost, name) in self._rows:
            return
        self.found += 1
        row = Damaged(where, vhost, name, error.position, error.size, error.reason, offset, self.now_ms())
        self.on_found(row)
        if len(self._rows) < _AT_ONCE:
            self._rows[_key(row)] = row
            if self._journal.failed is None:
                self._journal.append(Kind.DAMAGED, _encode([row]))

    def note_lost(self, vhost: str, name: str, messages: int, size: int, reason: str) -> None:
        """Add transient messages that could not be read back from a spill."""
        self.found += messages
        run = LostSpill(vhost, name, messages, size, reason, self.now_ms())
        self.on_lost(run)
        before = self._lost.get((vhost, name))
        if before is not None:
            total, all_bytes = before.messages + messages, before.size + size
            run = LostSpill(vhost, name, total, all_bytes, reason, before.found_ms)
        self._lost[vhost, name] = run

    def forget(self, where: str, vhost: str, name: str) -> None:
        """Remove the entries of a queue that was deleted or purged."""
        gone = where, vhost, name
        if where == "queue":
            self._lost.pop((vhost, name), None)
        if self._rows:
            self._rows = {key: row for key, row in self._rows.items() if key[1:] != gone}

    def forget_some(self, where: str, vhost: str, name: str, positions: Iterable[int]) -> None:
        """Remove the entries of these messages of a queue."""
        for position in positions:
            self._rows.pop((position, where, vhost, name), None)

    def look_again(self) -> None:
        """After a start: remove entries that a repair has dropped or that can be read again."""
        for key in list(self._rows):
            try:
                self._journal.read(key[0], _KINDS.get(key[1]))
                del self._rows[key]
            except RecordUnreadable as error:
                if error.dropped:
                    del self._rows[key]

    def fold(self, payload: bytes) -> None:
        self._rows.update((_key(row), row) for row in _rows.decode(payload))

    def dump(self) -> tuple[bytes, array[int]]:
        """A record of all entries, and their positions, whose bytes the journal must keep for inspection."""
        return _encode(self.rows), array("Q", sorted({key[0] for key in self._rows}))


def _key(row: Damaged) -> tuple[int, str, str, str]:
    return row.position, row.where, row.vhost, row.name
