"""Brokers that break a promise on purpose, for the check to catch. Run like ``holtmq.verify.subject``.

Usage: ``python broken_subject.py FAULT ARGUMENTS...``
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from array import array
from collections.abc import Sequence

from holtmq.broker.partitioned import events as partitioned_events
from holtmq.broker.partitioned import store as partitioned_store
from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.events import Acked, Event
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.store import Change, PartitionedStore
from holtmq.broker.records.changes import Kind
from holtmq.broker.records.recovered_queue import RecoveredQueue
from holtmq.http.engine.request import HttpRequest
from holtmq.journal import live
from holtmq.journal.file_journal import FileJournal
from holtmq.journal.interface import Journal, JournalFailed
from holtmq.node import Node
from holtmq.verify import subject


def confirm_before_sync() -> None:
    """Reports durability as soon as the records are handed over."""
    close_group = FileJournal._close_group

    def hasty(journal: FileJournal) -> None:
        callbacks, journal._callbacks = journal._callbacks, []
        close_group(journal)
        nothing: JournalFailed | None = None
        for callback in callbacks:
            callback(nothing)

    FileJournal._close_group = hasty  # type: ignore[method-assign, assignment]


def never_sync() -> None:
    """The call that makes everything durable does nothing, and its caller does not know."""
    os.fdatasync = lambda fd: None


def search_as_handed_over() -> None:
    """Compaction searches live positions by halves in the order in which they came."""
    live.rising = lambda positions: positions


def forget_acks() -> None:
    """Recovery does not read that a message was settled."""

    def settle(holding: RecoveredQueue, settled: array[int], size: int) -> None:
        return

    RecoveredQueue.settle = settle  # type: ignore[method-assign, assignment]


def tear_transactions() -> None:
    """An AMQP transaction is written record by record, and some deaths come after the first of them."""
    append_batch = FileJournal.append_batch
    left = 4  # transactions until such a death

    def one_by_one(journal: FileJournal, records: Sequence[tuple[int, bytes]]) -> list[int]:
        nonlocal left
        if any(kind >= Kind.PARTITIONED for kind, _ in records):
            return append_batch(journal, records)
        # The due delayed messages are placed by such batches too, when the broker starts.
        left -= len(records) > 1 and all(kind in (Kind.MESSAGE, Kind.SETTLED) for kind, _ in records)
        positions = []
        for kind, payload in records:
            positions.append(journal.append(kind, payload))
            journal._close_group()
            if not left:
                die_when_written()
        return positions

    FileJournal.append_batch = one_by_one  # type: ignore[method-assign, assignment]


def die_when_written() -> None:
    """Let the journal's thread write what was handed to it, then die."""
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def answer_before_durable() -> None:
    """HTTP says "stored" and "acknowledged" when it is decided; AMQP keeps its word."""

    def hasty(request: HttpRequest, journal: Journal, status: int, body: bytes) -> None:
        request.answer(status, body)

    HttpRequest.answer_when_durable = hasty  # type: ignore[method-assign, assignment]


def forget_cursors() -> None:
    """Recovery does not read how far a group has come."""
    decode_all = partitioned_events.decode_all

    def without_acks(payload: bytes) -> list[tuple[int, Event]]:
        return [(number, event) for number, event in decode_all(payload) if not isinstance(event, Acked)]

    partitioned_store.decode_all = without_acks  # type: ignore[attr-defined, assignment]


def tear_http_transactions() -> None:
    """What a transaction acks is written before what it pushes, and some deaths come between the two."""
    commit = PartitionedStore.commit
    left = 8  # transactions until such a death

    def in_two(
        store: PartitionedStore,
        changes: Sequence[Change],
        records: Sequence[bytes] = (),
        bodies: Sequence[Body] = (),
        state_records: Sequence[StateRecord] = (),
        work_records: Sequence[StateRecord] = (),
    ) -> list[int]:
        nonlocal left
        acks = [change for change in changes if isinstance(change[1], Acked)]
        others = [change for change in changes if not isinstance(change[1], Acked)]
        if acks and others:
            commit(store, acks)
            assert isinstance(store.journal, FileJournal)
            store.journal._close_group()
            changes = others
            left -= 1
            if not left:
                die_when_written()
        return commit(store, changes, records, bodies, state_records, work_records)

    PartitionedStore.commit = in_two  # type: ignore[method-assign, assignment]


def fall_silent() -> None:
    """HTTP takes every request and answers none that has to wait for the disk."""

    def mute(request: HttpRequest, journal: Journal, status: int, body: bytes) -> None:
        return

    HttpRequest.answer_when_durable = mute  # type: ignore[method-assign, assignment]


def never_stop() -> None:
    """Told to stop, it goes on."""

    async def stop(node: Node, grace: float = 0.0) -> None:
        await asyncio.Event().wait()

    Node.stop = stop  # type: ignore[method-assign, assignment]


FAULTS = {
    "never-stops": never_stop,
    "silent": fall_silent,
    "never-syncs": never_sync,
    "unordered": search_as_handed_over,
    "early": confirm_before_sync,
    "acks": forget_acks,
    "torn": tear_transactions,
    "http-early": answer_before_durable,
    "http-acks": forget_cursors,
    "http-torn": tear_http_transactions,
}

if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
    sys.exit(subject.main(sys.argv[2:]))
