"""A partitioned queue in a checkpoint: its records, to compare, and the queue that they give again."""

from typing import Any

import msgspec

from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.log import snapshot as layout
from holtmq.broker.partitioned.log.snapshot import CapturedQueue, Rows
from holtmq.broker.partitioned.queue import PartitionedQueue, TransactionIdReader


def snapshot(queue: PartitionedQueue) -> list[StateRecord]:
    return list(CapturedQueue(queue).records())


def restore(records: list[StateRecord], reader: TransactionIdReader, **options: Any) -> PartitionedQueue:
    *before, (_, last) = records
    rows = [msgspec.msgpack.decode(payload, type=Rows) for _, payload in before]
    columns: layout.ChunkRows = {(found.queue, found.chunk): found.columns for found in rows}
    return layout.restore(last, reader, columns, **options)
