"""The record of a queue's delivery log in a checkpoint.

Owns: its layout, and the first version of it. Must not touch: what is logged (``delivery_log``).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.log.delivery_log import CapturedDeliveries, DeliveryRun, LogState
from holtmq.broker.partitioned.queue import PartitionedQueue
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
    """The record in the first version."""

    queue: int
    log: _Runs


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(QueueDeliveries)
_first_decoder: Final = msgspec.msgpack.Decoder(_QueueRuns)


def record_of(queue: int, log: CapturedDeliveries) -> StateRecord:
    """The record of the queue with this number."""
    return int(Kind.DELIVERY_STATE), _encode(QueueDeliveries(queue, VERSION, log.state()))


def restore_deliveries(payload: bytes, queues: Mapping[int, PartitionedQueue]) -> None:
    """Restore the log of the queue that the record names, if it is one of these."""
    if payload[0] == _FIRST_VERSION:
        first = _first_decoder.decode(payload)
        queue = queues.get(first.queue)
        if queue is not None:
            runs = first.log
            queue.deliveries.load_runs(runs.next_number, runs.runs, runs.failing, runs.first_failed)
        return
    state = _decoder.decode(payload)
    if state.version != VERSION:
        raise ValueError(f"deliveries of version {state.version}; this broker reads 1 and {VERSION}")
    queue = queues.get(state.queue)
    if queue is not None:
        queue.deliveries.load(state.log)
