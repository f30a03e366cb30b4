"""Partitions of ephemeral queues: their messages, and what each group still has to settle of them.

Owns: numbers, readers, leases of messages. Must not touch: clocks, bounds, who waits. Each change costs the
same whatever a partition holds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(slots=True, eq=False)
class Fleeting:
    """One message. ``number`` rises within its partition, ``order`` within its queue."""

    number: int
    order: int
    payload: bytes
    created_at: float


@dataclass(slots=True, eq=False)
class Lease:
    """What one pop delivered of one partition."""

    entry: tuple[int, str, str]  # in the queue's line of moments
    partition: str
    group: str
    numbers: dict[int, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Held:
    """A message that a group has read and not settled. Without a lease it waits for redelivery."""

    message: Fleeting
    attempts: int
    lease: Lease | None


@dataclass(slots=True, eq=False)
class Reader:
    """One group in one partition."""

    group: str
    next_number: int
    floor: int  # the oldest number that it has not settled
    held: dict[int, Held] = field(default_factory=dict)
    again: list[int] = field(default_factory=list)  # a heap of held numbers
    is_ready: bool = False  # it may have something to deliver
    window: tuple[int, str, str] | None = None  # when its window ends, in the queue's line of moments


class Partition:
    """Messages with successive numbers, the oldest of which are removed first."""

    __slots__ = ("_behind", "_floors", "first", "held", "messages", "name", "next_number", "place", "readers")

    def __init__(self, name: str, number: int, place: tuple[int, str, str]) -> None:
        self.name = name
        self.place = place  # among the partitions of the queue
        self.messages: dict[int, Fleeting] = {}
        self.first = self.next_number = number
        self.readers: dict[str, Reader] = {}
        self.held = 0  # messages that readers hold
        self._floors: dict[int, int] = {}  # from ``first`` on: how many readers have this floor
        self._behind = 0  # readers whose floor is a message that was dropped

    @property
    def oldest(self) -> Fleeting:
        return self.messages[self.first]

    @property
    def is_idle(self) -> bool:
        return not (self.messages or self.held)

    @property
    def is_settled(self) -> bool:
        """Whether the readers that there are have settled the oldest message."""
        return bool(self.messages and self.readers) and not (self._behind or self.first in self._floors)

    def add(self, payload: bytes, order: int, now: float) -> None:
        """Append a message."""
        self.messages[self.next_number] = Fleeting(self.next_number, order, payload, now)
        self.next_number += 1

    def remove_oldest(self) -> Fleeting:
        """Remove the oldest message. Readers keep it if they hold it."""
        message = self.messages.pop(self.first)
        self._behind += self._floors.pop(self.first, 0)
        self.first += 1
        return message

    def add_reader(self, group: str) -> Reader:
        """A reader that begins with the oldest message."""
        reader = self.readers[group] = Reader(group, self.first, self.first)
        self._floors[self.first] = self._floors.get(self.first, 0) + 1
        return reader

    def unread(self, reader: Reader) -> int:
        """How many messages it has not read."""
        return self.next_number - max(reader.next_number, self.first)

    def oldest_unread(self, reader: Reader) -> Fleeting:
        return self.messages[max(reader.next_number, self.first)]

    def redeliver(self, reader: Reader, limit: int) -> Iterator[tuple[Fleeting, int]]:
        """Messages that were given back, with the number of this attempt; the reader does not hold them."""
        while limit > 0 and reader.again:
            number = heappop(reader.again)
            if number in reader.held:  # a reset may just be releasing them
                held = self.release(reader, number)
                yield held.message, held.attempts + 1
                limit -= 1

    def read(self, reader: Reader, limit: int) -> list[Fleeting]:
        """The next messages that it has not read."""
        start = max(reader.next_number, self.first)
        stop = min(start + limit, self.next_number)
        if stop > start:
            reader.next_number = stop
        messages = self.messages
        return [messages[number] for number in range(start, stop)]

    def hold(self, reader: Reader, message: Fleeting, attempts: int, lease: Lease) -> None:
        """Let the reader hold a message under a lease."""
        reader.held[message.number] = Held(message, attempts, lease)
        lease.numbers[message.number] = None
        self.held += 1

    def release(self, reader: Reader, number: int) -> Held:
        """The reader holds the message no more. Call ``settle`` when it has been decided about all."""
        self.held -= 1
        return reader.held.pop(number)

    def give_back(self, reader: Reader, number: int) -> None:
        """A held message waits for redelivery."""
        reader.held[number].lease = None
        heappush(reader.again, number)

    def settle(self, reader: Reader) -> None:
        """Raise the reader's floor to the oldest message that it has not settled."""
        held, floor, end = reader.held, reader.floor, reader.next_number
        if floor in held or floor == end:
            return
        if not held:
            floor = end
        else:
            for _ in held:
                floor += 1
                if floor in held:
                    break
            else:  # messages between were dropped: they may be very many
                floor = min(held)
        self._count(reader.floor, -1)
        reader.floor = floor
        self._count(floor, 1)

    def _count(self, floor: int, change: int) -> None:
        if floor < self.first:
            self._behind += change
        elif count := self._floors.get(floor, 0) + change:
            self._floors[floor] = count
        else:
            del self._floors[floor]
