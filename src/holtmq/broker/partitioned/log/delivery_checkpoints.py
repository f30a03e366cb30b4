"""The delivery logs of all queues in checkpoints.

Owns: their record, and reading its first version. Must not touch: what is logged (``delivery_log``).
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from holtmq.broker.partitioned.captured import Captured, StatePart, StateRecord
from holtmq.broker.partitioned.log.delivery_log import CapturedDeliveries, DeliveryRun, LogState
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.records.changes import Kind

VERSION: Final = 2
_FIRST_VERSION: Final = 0x92  # first byte of its record: an array of two


class QueueDeliveries(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The record of one queue."""

    queue: int
    version: int
    log: LogState


class _Runs(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The log in the first version: a row for each run."""

    next_number: int
    runs: list[DeliveryRun]
    failing: list[tuple[int, int, int]]
    first_failed: dict[int, int]


class _QueueRuns(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    queue: int
    log: _Runs


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(QueueDeliveries)
_first_decoder: Final = msgspec.msgpack.Decoder(_QueueRuns)


class DeliveryCheckpoints(StatePart):
    """Saves and restores every queue's delivery log."""

    kinds = (int(Kind.DELIVERY_STATE),)

    def __init__(self, store: PartitionedStore) -> None:
        self._store = store
        store.add_state_part(self)

    def fold(self, position: int, kind: int, payload: bytes) -> None:
        if payload[0] == _FIRST_VERSION:
            old = _first_decoder.decode(payload)
            queue = self._store.by_number.get(old.queue)
            if queue is not None:
                runs = old.log
                queue.deliveries.load_runs(runs.next_number, runs.runs, runs.failing, runs.first_failed)
            return
        state = _decoder.decode(payload)
        if state.version != VERSION:
            raise ValueError(f"deliveries of version {state.version}; this broker reads 1 and {VERSION}")
        queue = self._store.by_number.get(state.queue)
        if queue is not None:
            queue.deliveries.load(state.log)

    def capture(self) -> Captured:
        logs = [
            (queue.number, queue.deliveries.capture(queue.dead_letters.numbers()))
            for queue in self._store.by_number.values()
            if queue.deliveries.next_number
        ]
        return Captured(_records(logs))


def _records(logs: list[tuple[int, CapturedDeliveries]]) -> Iterator[StateRecord]:
    for number, log in logs:
        yield int(Kind.DELIVERY_STATE), _encode(QueueDeliveries(number, VERSION, log.state()))
