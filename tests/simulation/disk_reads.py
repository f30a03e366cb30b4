"""Reads records back from the simulated disk, each of them once between two changes to the files.

Owns: what was read since the files last changed. Must not touch: what a record should hold (the
clients know).

The bytes of a record change when segments are compacted, cut or deleted, and when the machine dies. After
each of these everything is read again; between them, only what is new. Otherwise reading costs more than the
broker.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holtmq.broker.partitioned.service import PartitionedService
from holtmq.journal.fake_disk import FakeDisk

T = TypeVar("T")
Decode = Callable[[bytes, int], T]  # (payload, position)


class DiskReads:
    """The records read so far. Those that are not durable are read each time."""

    def __init__(self, disk: FakeDisk) -> None:
        self.count = 0  # records read and decoded
        self._disk = disk
        self._seen = -1
        self._held: dict[Decode[Any], dict[int, Any]] = {}
        self._names: dict[int, str] = {}

    def read(self, service: PartitionedService, decode: Decode[T], positions: Sequence[int]) -> list[T]:
        """What ``decode`` makes of the record at each position."""
        held = self._still_held(decode)
        new = [at for at in positions if at not in held]
        if not new:
            return [held[at] for at in positions]
        self.count += len(new)
        for at, (_, payload) in zip(new, service.journal.read_many(new), strict=True):
            held[at] = decode(payload, at)
        found = [held[at] for at in positions]
        durable = service.journal.durable
        for at in new:
            if at >= durable:
                held.pop(at, None)
        return found

    def unread(self, decode: Decode[T], positions: Sequence[int]) -> list[int]:
        """Those that ``read`` would have to read, by their place in ``positions``."""
        held = self._still_held(decode)
        return [place for place, at in enumerate(positions) if at not in held]

    def name(self, service: PartitionedService, position: int) -> str:
        """The transaction id that the broker reads at a position; "?" when it cannot."""
        if self._seen != self._disk.rearranged:
            self._forget()
        name = self._names.get(position)
        if name is None:
            name = service.store.read_transaction_id(0, position) or "?"
            if position < service.journal.durable:
                self._names[position] = name
        return name

    def _still_held(self, decode: Decode[T]) -> dict[int, T]:
        if self._seen != self._disk.rearranged:
            self._forget()
        return self._held.setdefault(decode, {})

    def _forget(self) -> None:
        self._seen = self._disk.rearranged
        self._held.clear()
        self._names.clear()
