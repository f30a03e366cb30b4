"""Atomic commits: a client's transaction, and the cycle of a stream processor.

Owns: collecting all decisions into one commit, all or nothing. Must not touch: the decisions themselves,
wire names, clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.commands.acking import decide_acks
from holtmq.broker.partitioned.commands.settled_runs import SettledRuns
from holtmq.broker.partitioned.commands.transaction import (
    AckOperation,
    PushOperation,
    TransactionDecision,
    decide_transaction,
    refusal_of,
)
from holtmq.broker.partitioned.extras.stream_state import StateOp, StreamStates
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckOutcome, AckRefused, AckStatus, AckVerdict
from holtmq.broker.partitioned.pending_commit import PendingCommit
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import AckAnswer, AckRequest, PushItem, PushResult
from holtmq.broker.partitioned.service import PartitionedService


@dataclass(slots=True)
class PartitionedPart:
    """The part of a transaction, or of a push to both kinds of queue, that concerns partitioned queues.

    ``results`` and ``answers`` are set once it is written.
    """

    items: Sequence[PushItem]
    acks: Sequence[AckRequest]
    now: float
    state_records: Sequence[StateRecord] = ()
    is_push: bool = False  # counted as a push, not as a transaction
    results: list[PushResult] | None = None  # None: the pushes are in the spool
    answers: list[AckAnswer] = field(default_factory=list)


def transact(service: PartitionedService, part: PartitionedPart) -> PartitionedPart:
    """Commit pushes and acks together; raises the first refusal, and then nothing has happened.

    While pushes are spooled, these go to the spool, in the same record as the acks.
    """
    pending, decision, operations = _decide(service, part.items, part.acks, part.now, refuses=True)
    _write(service, part, pending, decision, operations, ())
    return part


def check(service: PartitionedService, part: PartitionedPart) -> None:
    """Raise what ``transact`` would raise; changes nothing."""
    _decide(service, part.items, part.acks, part.now, refuses=True)


def write_together(
    service: PartitionedService,
    part: PartitionedPart,
    placed: Sequence[PushItem],
    settled: SettledRuns,
    work_records: Sequence[StateRecord],
) -> list[int]:
    """Write one record: a checked part, messages routed by exchanges (``placed``), settlements of AMQP
    consumers and records of work queues. Returns the positions of the latter."""
    items = [*part.items, *placed]
    pending, decision, operations = _decide(service, items, part.acks, part.now, refuses=False)
    pending.changes += settled.changes
    pending.work_records = work_records
    work_positions = _write(service, part, pending, decision, operations, placed)
    settled.applied()
    if not service.spool.holds:
        for item in placed:
            service.counters.of(item.queue).pushed(1, 1, 0)
    return work_positions


def _decide(
    service: PartitionedService,
    items: Sequence[PushItem],
    acks: Sequence[AckRequest],
    now: float,
    *,
    refuses: bool,
) -> tuple[PendingCommit, TransactionDecision, list[AckOperation]]:
    store = service.store
    if service.spool.holds:
        items = ()
    pending = PendingCommit(store)
    homes = {name: pending.home(name, now, refuses=refuses) for name in dict.fromkeys(i.queue for i in items)}
    pushes = [
        PushOperation(homes[item.queue], ((item.partition, item.body.transaction_id),)) for item in items
    ]
    operations = [
        AckOperation(
            _home(service, request.queue, request.partition),
            request.group,
            request.ack,
        )
        for request in acks
        if refuses or store.find(request.queue, request.partition) is not None
    ]
    return pending, decide_transaction(pushes, operations, now, refuses=refuses), operations


def _write(
    service: PartitionedService,
    part: PartitionedPart,
    pending: PendingCommit,
    decision: TransactionDecision,
    operations: Sequence[AckOperation],
    placed: Sequence[PushItem],
) -> list[int]:
    store, items = service.store, part.items
    pending.state_records = part.state_records
    spooled = service.spool.holds
    if spooled:
        pending.state_records = [*service.spool.records([*items, *placed]), *part.state_records]
    for queue, event in decision.settled:
        pending.add(queue, [event])
    everything = [*items, *placed]
    for queue, pushed, mine in decision.pushes:
        if pushed.event is not None:
            fresh = [everything[place].body for at, place in enumerate(mine) if at not in pushed.duplicates]
            pending.push(queue, pushed.event, fresh)
    work_positions = pending.write()
    own = operations[: len(part.acks)]
    if part.is_push:
        _count_push(service, decision, len(items))
    else:
        for name in {item.queue for item in items} | {operation.queue.name for operation in own}:
            service.counters.of(name).transactions += 1
    if not spooled:
        part.results = [
            _result(store.queues[item.queue], item, pushed.offset, pushed.duplicate)
            for pushed, item in zip(decision.pushed, items, strict=False)  # ``placed`` follows
        ]
    part.answers = [
        AckAnswer(outcome, operation.queue) for outcome, operation in zip(decision.acked, own, strict=False)
    ]
    return work_positions


def _count_push(service: PartitionedService, decision: TransactionDecision, own: int) -> None:
    """Count the first ``own`` items as one request; spooled items are counted when they leave the spool."""
    for queue, decided, places in decision.pushes:
        mine = [place for place in places if place < own]
        if mine:
            messages = sum([not decision.pushed[place].duplicate for place in mine])
            partitions = 0 if decided.event is None else len(decided.event.new_partitions)
            service.counters.of(queue.name).pushed(1, messages, partitions)


@dataclass(frozen=True, slots=True)
class Cycle:
    """One step of a stream processor on one partition."""

    query_id: str
    queue: int
    partition: int
    partition_id: str
    group: str
    state_ops: Sequence[StateOp]
    items: Sequence[PushItem]
    ack: Ack | None
    release: bool


def run_cycle(
    service: PartitionedService, streams: StreamStates, cycle: Cycle, now: float
) -> tuple[list[PushResult] | None, AckOutcome | None, PartitionedQueue]:
    """Commit state, pushes and ack together; raises the first refusal. None: the pushes were spooled."""
    if not streams.knows(cycle.query_id):
        raise NotFound(f"Unknown query: {cycle.query_id}")
    queue = _home(service, cycle.queue, cycle.partition)
    pending = PendingCommit(service.store)
    outcome: AckOutcome | None = None
    ack = cycle.ack
    if ack is not None:
        if ack.status is AckStatus.FAILED:
            ack = ack._replace(status=AckStatus.DEAD_LETTER)  # a cycle has no retries of its own
        decision = decide_acks(queue, cycle.group, [ack], now, release=cycle.release)
        outcome = decision.outcomes[0]
        refusal = refusal_of(ack, outcome)
        if refusal is not None:
            raise refusal
        pending.add(queue, decision.events)
    state_records = streams.change(cycle.query_id, cycle.partition_id, cycle.state_ops, now)
    spooled = service.spool.holds and bool(cycle.items)
    if spooled:
        decided = []
        state_records = [*service.spool.records(cycle.items), *state_records]
    else:
        decided = service.decide_pushes(cycle.items, now, pending)
    pending.state_records = state_records
    pending.write()
    return None if spooled else service.results(cycle.items, decided), outcome, queue


def _home(service: PartitionedService, number: int, index: int) -> PartitionedQueue:
    queue = service.store.find(number, index)
    if queue is None:
        raise AckRefused(AckVerdict.NOT_FOUND)
    return queue


def _result(queue: PartitionedQueue, item: PushItem, offset: int, duplicate: bool) -> PushResult:
    created_us = queue.log.created_us(offset)
    return PushResult(queue.number, queue.indexes[item.partition], offset, created_us, duplicate)
