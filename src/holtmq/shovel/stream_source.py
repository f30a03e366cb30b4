"""A stream as the source of a shovel: reading removes nothing, so the shovel keeps the offset it has reached.

Owns: where the next run begins, and the header with the offset. Must not touch: when the offset is stored
(``progress.py``).
"""

from typing import Final

from holtmq.shovel.link import Content, LinkLost
from holtmq.shovel.progress import Progress
from holtmq.wire.properties import raw_headers, with_headers
from holtmq.wire.tables import FieldTable

OFFSET: Final = "x-stream-offset"  # argument of a consumer, and header of what it receives


def is_stream(consumer_arguments: dict[str, object]) -> bool:
    """Whether a shovel with these arguments reads a stream."""
    return OFFSET in consumer_arguments


class StreamSource:
    """One run's place in the stream."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._taken = -1 if progress.last_offset is None else progress.last_offset

    def consumer_arguments(self, given: FieldTable) -> FieldTable:
        """The arguments of a consumer that goes on behind the last message that the destination has."""
        last = self._progress.last_offset
        return dict(given) if last is None else {**given, OFFSET: last + 1}

    def take(self, message: Content) -> tuple[int, Content]:
        """The offset of a delivery, and the message without it: the destination has offsets of its own."""
        headers = raw_headers(message.properties)
        offset = offset_of(headers)
        if offset is None:
            raise LinkLost(f"the source is not a stream, but the shovel's src-consumer-args name {OFFSET}")
        if self._progress.first_offset is None:
            self._progress.first_offset = offset
        del headers[OFFSET]
        properties = with_headers(message.properties, headers or None, drop_expiration=False)
        return offset, message._replace(properties=properties)

    def is_new(self, offset: int) -> bool:
        """Whether it comes behind all that was taken; a source may begin earlier than it was asked to."""
        is_new = offset > self._taken
        self._taken = max(self._taken, offset)
        return is_new

    def accepted(self, last: int, first_pending: int | None) -> None:
        """The destination has a message, and all before it but for those that are pending."""
        reached = last if first_pending is None else min(last, first_pending - 1)
        stored = self._progress.last_offset  # a destination in this broker has stored it already
        if stored is None or reached > stored:
            self._progress.last_offset = reached


def offset_of(headers: FieldTable) -> int | None:
    """The offset that a stream has given to a message."""
    offset = headers.get(OFFSET)
    return int(offset) if isinstance(offset, int) and not isinstance(offset, bool) else None
