"""Timed messages: scheduled, moved or cancelled by key, and pushed when due.

Owns: the waiting timers by (queue, key). Must not touch: clocks (``due`` gets the time), queues (firing is
an ordinary push).
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

import msgspec

from holtmq.broker.partitioned.log.bodies import UnreadableBody
from holtmq.broker.partitioned.store import PartitionedStore, StatePart, StateRecord
from holtmq.broker.records.changes import Kind


class Timed(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One waiting message."""

    queue: str
    key: str
    partition: str
    transaction_id: str
    payload: bytes
    due_us: int
    message_id: str
    producer: str | None = None
    sealed: bool = False  # the payload is encrypted, like messages of its queue
    trace_id: str | None = None


class TimedChange(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Timers set, then (queue, key) of timers that ended; applied in this order."""

    put: list[Timed] = []
    ended: list[tuple[str, str]] = []


_LINE_MIN: Final = 1024

_encode: Final = msgspec.msgpack.Encoder().encode
_changes: Final = msgspec.msgpack.Decoder(TimedChange)


class TimedMessages(StatePart):
    """All waiting timers of the node."""

    kinds = (int(Kind.TIMED),)

    def __init__(self, store: PartitionedStore) -> None:
        self._store = store
        self._timers: dict[str, dict[str, Timed]] = {}
        self._line: list[tuple[int, str, str]] = []
        self._line_max = _LINE_MIN  # above it, entries of moved or cancelled timers are removed
        store.add_state_part(self)

    def __len__(self) -> int:
        return sum(map(len, self._timers.values()))

    def seal(self, timer: Timed) -> Timed:
        """The timer as stored: encrypted if its queue encrypts messages."""
        queue, cipher = self._store.queues.get(timer.queue), self._store.cipher
        if cipher is None or queue is None or not queue.config.encryption_enabled:
            return timer
        payload = cipher.seal(timer.payload, timer.transaction_id.encode())
        return msgspec.structs.replace(timer, payload=payload, sealed=True)

    def payload(self, timer: Timed) -> bytes:
        """The plain payload; raises UnreadableBody without the right key."""
        if not timer.sealed:
            return timer.payload
        if self._store.cipher is None:
            raise UnreadableBody("the timer is sealed and this node has no queue.encryption_key")
        return self._store.cipher.open(timer.payload, timer.transaction_id.encode())

    def get(self, queue: str, key: str) -> Timed | None:
        return self._timers.get(queue, {}).get(key)

    def page(self, queue: str, after: str, limit: int) -> tuple[list[Timed], bool]:
        """A page in key order after ``after``, and whether there are more."""
        timers = self._timers.get(queue, {})
        keys = sorted(timers)
        at = bisect_right(keys, after) if after else 0
        return [timers[key] for key in keys[at : at + limit]], len(keys) > at + limit

    def record(self, change: TimedChange) -> list[StateRecord]:
        """The journal record of a change, for the caller's commit."""
        return [(int(Kind.TIMED), _encode(change))] if change.put or change.ended else []

    def next_due_us(self) -> int | None:
        while self._line:
            due_us, queue, key = self._line[0]
            timer = self.get(queue, key)
            if timer is not None and timer.due_us == due_us:
                return due_us
            heappop(self._line)  # moved or cancelled
        return None

    def due(self, now_us: int, most: int = 1000) -> list[Timed]:
        """Timers that are due, earliest first; the caller pushes them and records their end."""
        found: dict[tuple[str, str], Timed] = {}  # a timer moved away and back is in the line twice
        while len(found) < most and self._line and self._line[0][0] <= now_us:
            due_us, queue, key = heappop(self._line)
            timer = self.get(queue, key)
            if timer is not None and timer.due_us == due_us:
                found[queue, key] = timer
        return list(found.values())

    def put_back(self, timers: Iterable[Timed]) -> None:
        """Return timers that could not be pushed; they stay due."""
        for timer in timers:
            self._stand_in_line(timer)

    def _stand_in_line(self, timer: Timed) -> None:
        line = self._line
        heappush(line, (timer.due_us, timer.queue, timer.key))
        if len(line) > self._line_max:
            # Each move of a timer leaves an entry until it is due: remove the outdated ones.
            kept = {entry for entry in line if self._is_due_at(entry)}
            line[:] = sorted(kept)
            self._line_max = max(_LINE_MIN, 2 * len(line))

    def _is_due_at(self, entry: tuple[int, str, str]) -> bool:
        timer = self.get(entry[1], entry[2])
        return timer is not None and timer.due_us == entry[0]

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        change = _changes.decode(payload)
        for timer in change.put:
            self._timers.setdefault(timer.queue, {})[timer.key] = timer
            self._stand_in_line(timer)
        for queue, key in change.ended:
            self._timers.get(queue, {}).pop(key, None)

    def dump(self) -> tuple[list[StateRecord], list["array[int]"]]:
        waiting = [timer for timers in self._timers.values() for timer in timers.values()]
        return self.record(TimedChange(waiting)), []
