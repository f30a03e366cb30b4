"""What is written as one record, and happens when it is: all of it or nothing.

Owns: the records so far, and what waits for their positions. Must not touch: the journal, queues; whoever
opened the batch writes it and then places its messages.
"""

from collections.abc import Sequence
from typing import Protocol

from holtmq.broker.message import Message
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.work_queue import Reason, WorkQueue

DeadLetterOn = tuple[VHost, WorkQueue, str, Reason, Message]


class Batch:
    """Between ``begin`` and ``commit``."""

    __slots__ = ("_bytes", "_on_the_way", "delays", "passed_on", "placements", "records")

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        # A message, its queues, and which record it is (-1: none).
        self.placements: list[tuple[Message, Sequence[WorkQueue], int]] = []
        self.delays: list[tuple[int, bool, int]] = []  # which record, persistent, due
        self.passed_on: list[DeadLetterOn] = []  # dead letters refused again
        self._bytes = 0  # of the records
        self._on_the_way: dict[int, tuple[int, int]] = {}  # queue id -> messages and bytes

    def add(self, kind: int, payload: bytes) -> int:
        """One more record; which one it is."""
        records = self.records
        records.append((kind, payload))
        self._bytes += len(payload)
        return len(records) - 1

    def on_the_way(self, queue: WorkQueue) -> tuple[int, int]:
        """How many messages, and bytes of them, are sure to come to a queue that may refuse more."""
        return self._on_the_way.get(queue.id, (0, 0))

    def send(self, queue: WorkQueue, size: int) -> None:
        """One more is sure to come."""
        count, total = self.on_the_way(queue)
        self._on_the_way[queue.id] = count + 1, total + size

    @property
    def for_streams(self) -> list[tuple[WorkQueue, Message]]:
        """What partitioned queues write down themselves, together with the records."""
        return [
            (queue, message) for message, queues, _ in self.placements for queue in queues if queue.is_stream
        ]

    @property
    def size(self) -> int:
        """About how many bytes it has to write."""
        streams = sum([len(message.body) + len(message.header) for _, message in self.for_streams])
        return streams + self._bytes


class CrossKindJournal(Protocol):
    """Whoever writes one record for work queues and partitioned queues together."""

    @property
    def pending(self) -> bool:
        """Whether the batch that ends has something for partitioned queues beside what was published."""
        ...

    def write(
        self, batch: Sequence[tuple[int, bytes]], placed: Sequence[tuple[WorkQueue, Message]]
    ) -> list[int]:
        """Write these records and place these messages on streams; where the records are."""
        ...
