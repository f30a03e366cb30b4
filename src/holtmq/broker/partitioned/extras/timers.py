"""Timed messages: scheduled, moved or cancelled by key, and pushed when due.

Owns: the waiting timers by (queue, key). Must not touch: clocks (``due`` gets the time), queues (firing is
an ordinary push).
"""

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

import msgspec

from holtmq.broker.partitioned.captured import Captured, StatePart, StateRecord, portions
from holtmq.broker.partitioned.extras.sorted_keys import SortedKeys
from holtmq.broker.partitioned.log.bodies import UnreadableBody
from holtmq.broker.partitioned.store import PartitionedStore
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


_encode: Final = msgspec.msgpack.Encoder().encode
_changes: Final = msgspec.msgpack.Decoder(TimedChange)


class TimedMessages(StatePart):
    """All waiting timers of the node."""

    kinds = (int(Kind.TIMED),)

    def __init__(self, store: PartitionedStore) -> None:
        self._store = store
        self._timers: dict[str, dict[str, Timed]] = {}
        self._sorted: dict[str, SortedKeys[str]] = {}  # the keys of each queue
        self._line: SortedKeys[tuple[int, str, str]] = (
            SortedKeys()
        )  # those that are not being pushed, by time
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
        keys = self._sorted.get(queue)
        if keys is None:
            return [], False
        timers = self._timers[queue]
        found = list(islice(keys.behind(after) if after else keys.starting(""), limit + 1))
        return [timers[key] for key in found[:limit]], len(found) > limit

    def record(self, change: TimedChange) -> list[StateRecord]:
        """The journal record of a change, for the caller's commit."""
        return [(int(Kind.TIMED), _encode(change))] if change.put or change.ended else []

    def next_due_us(self) -> int | None:
        first = self._line.first
        return None if first is None else first[0]

    def due(self, now_us: int, most: int = 1000) -> list[Timed]:
        """Timers that are due, earliest first; the caller pushes them and records their end."""
        found: list[Timed] = []
        while len(found) < most and (first := self._line.first) is not None and first[0] <= now_us:
            self._line.discard(first)
            found.append(self._timers[first[1]][first[2]])
        return found

    def put_back(self, timers: Iterable[Timed]) -> None:
        """Return timers that could not be pushed; they stay due. Those that ended meanwhile do not."""
        for timer in timers:
            if self.get(timer.queue, timer.key) is timer:
                self._line.add((timer.due_us, timer.queue, timer.key))

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        change = _changes.decode(payload)
        for timer in change.put:
            timers = self._timers.get(timer.queue)
            if timers is None:
                timers, self._sorted[timer.queue] = self._timers.setdefault(timer.queue, {}), SortedKeys()
            before = timers.get(timer.key)
            if before is None:
                self._sorted[timer.queue].add(timer.key)
            else:
                self._line.discard((before.due_us, timer.queue, timer.key))
            timers[timer.key] = timer
            self._line.add((timer.due_us, timer.queue, timer.key))
        for queue, key in change.ended:
            ended = self._timers.get(queue, {}).pop(key, None)
            if ended is not None:
                self._line.discard((ended.due_us, queue, key))
                self._sorted[queue].discard(key)
                if not self._timers[queue]:
                    del self._timers[queue], self._sorted[queue]

    def capture(self) -> Captured:
        waiting = list(chain.from_iterable(timers.values() for timers in self._timers.values()))
        return Captured((int(Kind.TIMED), _encode(TimedChange(some))) for some in portions(waiting))
