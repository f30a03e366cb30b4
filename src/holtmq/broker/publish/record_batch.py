"""What is written as one record, all or nothing.

Owns: the records so far, and what needs their positions. Must not touch: the journal, queues; the caller
that opened the batch writes it and then enqueues its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holtmq.broker.message import Message
from holtmq.broker.streams.stream_queue import StreamQueue
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.outcasts import Reason
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.broker.partitioned.commands.settled_runs import SettledRuns
    from holtmq.broker.partitioned.store import Change
    from holtmq.broker.publish.placings import Placing
    from holtmq.broker.publish.prepared import PreparedPublishes
    from holtmq.broker.streams.claims import Verdicts
    from holtmq.broker.streams.prepared_pushes import PreparedPushes

DeadLetterOn = tuple[VHost, WorkQueue, str, Reason, Message]
Where = tuple[str, str]  # vhost and exchange


@dataclass(slots=True)
class Accepted:
    """A message for very many queues, which it enters after the batch is written."""

    index: int  # of its record, or its offset
    is_kept: bool  # its record outlives a restart
    number: int  # in place of a due time
    where: Where
    placing: Placing | None = None  # None: nobody waits for the end of its steps


class Batch:
    """The changes between ``begin`` and ``commit``."""

    __slots__ = (
        "_bytes",
        "_on_the_way",
        "accepted",
        "awaits_placing",
        "delays",
        "for_streams",
        "lined_up",
        "passed_on",
        "placements",
        "prepared",
        "records",
    )

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        # A message, its work queues, and the index of its record (-1: none).
        self.placements: list[tuple[Message, Sequence[WorkQueue], int]] = []
        # Messages that partitioned queues write themselves, together with the records.
        self.for_streams: list[tuple[StreamQueue, Message]] = []
        self.delays: list[tuple[int, bool, int]] = []  # index of the record, persistent, due time
        self.accepted: list[Accepted] = []
        self.lined_up: set[Where] = set()  # exchanges of these; later messages must not overtake them
        self.awaits_placing = False  # the caller runs the steps of what it publishes
        self.passed_on: list[DeadLetterOn] = []  # refused by a full queue, to be dead-lettered from there
        self.prepared: PreparedPublishes | None = None  # messages that are written with the records
        self._bytes = 0  # size of the records
        self._on_the_way: dict[int, tuple[int, int]] = {}  # queue id -> messages and bytes

    def add(self, kind: int, payload: bytes) -> int:
        """Add a record; return its index."""
        records = self.records
        records.append((kind, payload))
        self._bytes += len(payload)
        return len(records) - 1

    def accept(self, accepted: Accepted) -> None:
        """Add a message that is placed in steps."""
        self.accepted.append(accepted)
        self.lined_up.add(accepted.where)

    def on_the_way(self, queue: Queue) -> tuple[int, int]:
        """Messages and bytes in this batch for a queue that refuses publishers when full."""
        return self._on_the_way.get(queue.id, (0, 0))

    def send(self, queue: Queue, size: int) -> None:
        """Count one more message for a queue."""
        count, total = self.on_the_way(queue)
        self._on_the_way[queue.id] = count + 1, total + size

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        streams = sum([len(message.body) + len(message.header) for _, message in self.for_streams])
        return streams + self._bytes


class CrossKindJournal(Protocol):
    """Writes one record for work queues and partitioned queues together."""

    @property
    def pending(self) -> bool:
        """Whether the open batch has more for partitioned queues than what was published."""
        ...

    def prepare(self) -> PreparedPushes:
        """For messages that are put on streams with the record of a large transaction."""
        ...

    def settled(self, verdicts: Verdicts) -> SettledRuns:
        """Decide verdicts that are written with the record of a large transaction, now."""
        ...

    @property
    def together(self) -> AbstractContextManager[None]:
        """While this is entered, settlements of streams are gathered: one record for all at its exit."""
        ...

    def events_record(self, changes: Sequence[Change]) -> tuple[int, bytes]:
        """The record of changes of partitioned queues."""
        ...

    def write(
        self, batch: Sequence[tuple[int, bytes]], placed: Sequence[tuple[StreamQueue, Message]]
    ) -> list[int]:
        """Write these records and put these messages on streams; return the records' positions."""
        ...
