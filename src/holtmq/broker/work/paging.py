"""Messages leave memory through the journal and come back from it.

Owns: the meeting of fifos and journal. Must not touch: queues.
"""

from collections.abc import Sequence

from holtmq.broker.message import TRANSIENT, Message, decode_message, encode_message
from holtmq.broker.records.changes import Kind
from holtmq.journal.interface import Journal, RecordUnreadable


class JournalPager:
    """A ``Pager`` over the journal."""

    __slots__ = ("_journal", "_unreadable")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._unreadable: list[RecordUnreadable] = []

    def read(self, positions: Sequence[int]) -> list[Message]:
        """The messages at these positions, in this order, but for those that ``unreadable`` then tells."""
        plain = [position & ~TRANSIENT for position in positions]
        try:
            records = self._journal.read_many(plain)
        except RecordUnreadable:
            return self._read_singly(plain)
        return [
            decode_message(payload, position)[0]
            for position, (_, payload) in zip(plain, records, strict=True)
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

    def store(self, message: Message) -> int:
        """A position for a message, tagged when it is transient; writes one the journal does not hold."""
        position = message.position
        if not position:
            position = message.position = self._journal.append(Kind.PAGED, encode_message(message, b""))
        return position if message.persistent and position else position | TRANSIENT
