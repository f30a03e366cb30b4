"""Trace events that workers attach to messages.

Owns: the newest events of the node, by message and by name, bounded. Must not touch: the meaning of
``data`` (the client's JSON, unchanged), clocks.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

EVENTS_MAX: Final = 100_000
BYTES_MAX: Final = 256 << 20
_EVENT_COST: Final = 1_000  # bytes of memory per event beside its texts
_NAME_COST: Final = 1_000  # bytes of memory per name that only one event has


@dataclass(frozen=True, slots=True)
class Traced:
    """One trace event; it is also the journalled form."""

    number: int
    queue: int
    partition: int
    transaction_id: str
    group: str
    event_type: str
    names: tuple[str, ...]
    data: bytes
    created_us: int


@dataclass(frozen=True, slots=True)
class TraceName:
    """A name with its statistics."""

    name: str
    events: int
    messages: int
    last_us: int


class TraceStore:
    """The newest events, at most ``limit`` and about ``most_bytes``; the oldest are dropped first."""

    __slots__ = ("_by_message", "_by_name", "_bytes", "_events", "_limit", "_most_bytes", "next_number")

    def __init__(self, limit: int = EVENTS_MAX, most_bytes: int = BYTES_MAX) -> None:
        self.next_number = 1
        self._limit = limit
        self._most_bytes = most_bytes
        self._bytes = 0
        self._events: deque[Traced] = deque()
        self._by_message: dict[tuple[int, int, str], deque[Traced]] = {}
        self._by_name: dict[str, deque[Traced]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Traced]:
        return iter(self._events)

    def apply(self, event: Traced) -> None:
        self.next_number = event.number + 1
        self._events.append(event)
        self._by_message.setdefault(_key(event), deque()).append(event)
        for name in set(event.names):
            events = self._by_name.pop(name, None) or deque()
            events.append(event)
            self._by_name[name] = events  # the name that was used last comes last
        self._bytes += _size(event)
        while len(self._events) > self._limit or (self._bytes > self._most_bytes and len(self._events) > 1):
            self._drop(self._events.popleft())

    def of_message(
        self, queue: int, partition: int, transaction_id: str, limit: int, skip: int
    ) -> tuple[list[Traced], int]:
        """A page, oldest first, and the total number."""
        events = self._by_message.get((queue, partition, transaction_id), ())
        return list(islice(events, skip, skip + limit)), len(events)

    def named(self, name: str, limit: int, skip: int) -> tuple[list[Traced], int]:
        """A page, newest first, and the total number."""
        events = list(self._by_name.get(name, ()))
        return events[::-1][skip : skip + limit], len(events)

    def names(self, limit: int, skip: int) -> tuple[list[str], int]:
        """A page of names, most recently used first, and the total number."""
        names = list(islice(reversed(self._by_name), skip, skip + limit))
        return names, len(self._by_name)

    def statistics(self, name: str) -> TraceName | None:
        """The statistics of a name; None if its last event was dropped."""
        events = self._by_name.get(name)
        if events is None:
            return None
        return TraceName(name, len(events), len({_key(event) for event in events}), events[-1].created_us)

    def forget_queue(self, queue: int) -> None:
        """Drop the events of a deleted queue."""
        kept = [event for event in self._events if event.queue != queue]
        number = self.next_number
        self._events.clear()
        self._by_message.clear()
        self._by_name.clear()
        self._bytes = 0
        for event in kept:
            self.apply(event)
        self.next_number = number

    def _drop(self, event: Traced) -> None:
        # Events are dropped in order of arrival, so each is the first of every deque it is in.
        self._bytes -= _size(event)
        for name in set(event.names):
            self._by_name[name].popleft()
            if not self._by_name[name]:
                del self._by_name[name]
        mine = self._by_message[_key(event)]
        mine.popleft()
        if not mine:
            del self._by_message[_key(event)]


def _size(event: Traced) -> int:
    return _EVENT_COST + len(event.data) + sum([_NAME_COST + len(name) for name in event.names])


def _key(event: Traced) -> tuple[int, int, str]:
    return event.queue, event.partition, event.transaction_id
