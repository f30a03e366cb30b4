"""Maintenance: two switches, and the durable spool that receives pushes while the first one is on.

Owns: the switches, the spooled messages and their order; each reaches its queue once. Must not touch: the
rules of queues (a drain is an ordinary push), clocks.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holtmq.broker.partitioned.captured import Captured, StatePart, StateRecord, array_of, packed, positions
from holtmq.broker.partitioned.log.bodies import encode_body
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.records.changes import Kind
from holtmq.journal.interface import RecordUnreadable

STEP: Final = 1_000


class Switches(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The state of both switches."""

    pushes_spooled: bool = False
    pops_paused: bool = False


class _SpoolState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    switches: Switches
    waiting: list[tuple[str, str, int]]


_encode: Final = msgspec.msgpack.Encoder().encode
_switches: Final = msgspec.msgpack.Decoder(Switches)
_places: Final = msgspec.msgpack.Decoder(list[tuple[str, str]])
_state: Final = msgspec.msgpack.Decoder(_SpoolState)


class Spool(StatePart):
    """Maintenance mode and the spooled messages of a node."""

    kinds = (int(Kind.SWITCHED), int(Kind.SPOOLED), int(Kind.UNSPOOLED), int(Kind.SPOOL_STATE))

    def __init__(self, store: PartitionedStore) -> None:
        self._store = store
        self._switches = Switches()
        self._waiting: deque[tuple[str, str, int]] = deque()  # queue, partition, journal position
        store.add_state_part(self)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def pushes_spooled(self) -> bool:
        return self._switches.pushes_spooled

    @property
    def pops_paused(self) -> bool:
        return self._switches.pops_paused

    @property
    def holds(self) -> bool:
        """Whether a push must go to the spool: the switch is on, or older messages are still in it."""
        return self._switches.pushes_spooled or bool(self._waiting)

    def switch(self, *, pushes_spooled: bool | None = None, pops_paused: bool | None = None) -> None:
        now = self._switches
        wanted = Switches(
            now.pushes_spooled if pushes_spooled is None else pushes_spooled,
            now.pops_paused if pops_paused is None else pops_paused,
        )
        self._store.commit_state([(Kind.SWITCHED, _encode(wanted))])

    def put(self, items: Sequence[PushItem]) -> None:
        """Append messages to the spool."""
        self._store.commit_state(self.records(items))

    def records(self, items: Sequence[PushItem]) -> list[StateRecord]:
        """The records that spool these messages, for a larger commit."""
        if not items:
            return []
        queues, cipher = self._store.queues, self._store.cipher
        records: list[StateRecord] = []
        for item in items:
            queue = queues.get(item.queue)
            sealed = cipher if queue is not None and queue.config.encryption_enabled else None
            records.append((Kind.PARTITIONED_BODY, encode_body(item.body, sealed)))
        places = [(item.queue, item.partition) for item in items]
        return [*records, (Kind.SPOOLED, _encode(places))]

    def head(self) -> tuple[list[PushItem], int]:
        """The oldest messages, and their number including those that cannot be read."""
        rows = [self._waiting[at] for at in range(min(STEP, len(self._waiting)))]
        items: list[PushItem] = []
        for queue, partition, position in rows:
            try:
                items.append(PushItem(queue, partition, self._store.body(position)))
            except RecordUnreadable as error:
                self._store.damage.note("spool", "", queue, error)
        return items, len(rows)

    def waiting(self) -> Sequence[tuple[str, str, int]]:
        """Queue, partition and journal position of every message, oldest first."""
        return tuple(self._waiting)

    def gone(self, count: int) -> StateRecord:
        """The record that removes the oldest ``count`` messages; it is committed with their push."""
        return Kind.UNSPOOLED, _encode(count)

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        if kind == Kind.SWITCHED:
            self._switches = _switches.decode(payload)
        elif kind == Kind.SPOOLED:
            places = _places.decode(payload)
            bodies = self._store.loose_bodies.take(len(places))
            self._waiting.extend(
                (queue, partition, at) for (queue, partition), at in zip(places, bodies, strict=True)
            )
        elif kind == Kind.UNSPOOLED:
            for _ in range(msgspec.msgpack.decode(payload, type=int)):
                self._waiting.popleft()
        else:
            state = _state.decode(payload)
            self._switches, self._waiting = state.switches, deque(state.waiting)

    def capture(self) -> Captured:
        switches, waiting = self._switches, list(self._waiting)
        return Captured(_record(switches, waiting), positions(position for _, _, position in waiting))


def _record(switches: Switches, waiting: list[tuple[str, str, int]]) -> Iterator[StateRecord]:
    """One ``_SpoolState``, which may be long."""
    yield int(Kind.SPOOL_STATE), array_of(2) + _encode(switches) + packed(waiting)
