"""Messages leave memory through the journal and come back from it.

Owns: the meeting of fifos and journal. Must not touch: queues.
"""

from collections.abc import Sequence

from holtmq.broker.message import TRANSIENT, Message, decode_message, encode_message
from holtmq.broker.records.changes import Kind
from holtmq.journal.interface import Journal


class JournalPager:
    """A ``Pager`` over the journal."""

    __slots__ = ("_journal",)

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def read(self, positions: Sequence[int]) -> list[Message]:
        """The messages at these positions, in this order."""
        plain = [position & ~TRANSIENT for position in positions]
        records = self._journal.read_many(plain)
        return [
            decode_message(payload, position)[0]
            for position, (_, payload) in zip(plain, records, strict=True)
        ]

    def store(self, message: Message) -> int:
        """A position for a message, tagged when it is transient; writes one the journal does not hold."""
        position = message.position
        if not position:
            position = message.position = self._journal.append(Kind.PAGED, encode_message(message, b""))
        return position if message.persistent and position else position | TRANSIENT
