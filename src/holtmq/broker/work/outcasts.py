"""Messages that have left a work queue without an ack, until they are dead-lettered or dropped.

Owns: their order, and when there are so many that others stay in the queue for now. Must not touch: why a
message leaves (``work_queue``), what happens to it then (``dead_lettering``).
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import Final

from holtmq.broker.message import Message

# Beyond these, messages that may stay in the queue do, where they can be paged out.
MOST: Final = 5_000
MOST_BYTES: Final = 16 << 20


class Reason(Enum):
    """Why a message left without an ack."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


Outcast = tuple[Reason, Message]


class Outcasts:
    """The outcasts of one queue, oldest first.

    A list of which the beginning is used up: a deque would take 700 bytes for each of perhaps 100,000 queues.
    """

    __slots__ = ("_bytes", "_found", "_gone", "count")

    def __init__(self) -> None:
        self._found: list[Outcast] = []
        self._gone = 0  # of ``_found``, removed
        self._bytes = 0  # of the bodies of the others
        self.count = 0  # of the others

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Outcast]:
        return islice(self._found, self._gone, None)

    @property
    def is_full(self) -> bool:
        """Whether a message that can stay in its queue should."""
        return self.count >= MOST or self._bytes >= MOST_BYTES

    def add(self, reason: Reason, message: Message) -> None:
        self._found.append((reason, message))
        self._bytes += len(message.body)
        self.count += 1

    def add_all(self, reason: Reason, messages: Iterable[Message]) -> None:
        for message in messages:
            self.add(reason, message)

    def first(self, count: int, most_bytes: int) -> list[Outcast]:
        """The oldest ``count``, at most about ``most_bytes``; they stay here until ``remove``."""
        found: list[Outcast] = []
        size = 0
        for at in range(self._gone, self._gone + min(count, self.count)):
            outcast = self._found[at]
            size += len(outcast[1].body)
            if found and size > most_bytes:
                break
            found.append(outcast)
        return found

    def remove(self, count: int) -> None:
        """Remove the oldest ``count``."""
        for at in range(self._gone, self._gone + count):
            self._bytes -= len(self._found[at][1].body)
        self._gone += count
        self.count -= count
        if self._gone > self.count:  # so that each is moved once at most, on average
            del self._found[: self._gone]
            self._gone = 0

    def take_all(self) -> list[Outcast]:
        """Remove and return all."""
        taken = self._found[self._gone :]
        self._found = []
        self._gone = self._bytes = self.count = 0
        return taken

    def append(self, newer: "Outcasts") -> None:
        """Add those of another list, behind the ones here."""
        self._found += newer
        self._bytes += newer._bytes
        self.count += newer.count
