"""Atomic commits: a client's transaction, and the cycle of a stream processor.

Owns: collecting all decisions into one commit, all or nothing. Must not touch: the decisions themselves,
wire names, clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from holtmq.broker.errors import NotFound
from holtmq.broker.partitioned.commands.acking import decide_acks
from holtmq.broker.partitioned.commands.transaction import (
    AckOperation,
    PushOperation,
    TransactionDecision,
    decide_transaction,
    refusal_of,
)
from holtmq.broker.partitioned.extras.stream_state import StateOp, StreamStates
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckOutcome, AckRefused, AckStatus, AckVerdict
from holtmq.broker.partitioned.log.bodies import Body, encode_body
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import AckAnswer, AckRequest, PushItem, PushResult
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.partitioned.store import Change, StateRecord


@dataclass(slots=True)
class Part:
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


def transact(service: PartitionedService, part: Part) -> Part:
    """Commit pushes and acks together; raises the first refusal, and then nothing has happened.

    While pushes are spooled, these go to the spool, in the same record as the acks.
    """
    changes, decision, operations = _decide(service, part.items, part.acks, part.now, refuses=True)
    _write(service, part, changes, decision, operations, (), ())
    return part


def check(service: PartitionedService, part: Part) -> None:
    """Raise what ``transact`` would raise; changes nothing."""
    _decide(service, part.items, part.acks, part.now, refuses=True)


def write_together(
    service: PartitionedService,
    part: Part,
    placed: Sequence[PushItem],
    settled: Sequence[AckRequest],
    work_records: Sequence[StateRecord],
) -> list[int]:
    """Write one record: a checked part, messages routed by exchanges (``placed``), acks of AMQP consumers
    (``settled``) and records of work queues. Returns the positions of the latter."""
    items, acks = [*part.items, *placed], [*part.acks, *settled]
    changes, decision, operations = _decide(service, items, acks, part.now, refuses=False)
    work_positions_at = _write(service, part, changes, decision, operations, placed, work_records)
    for operation, outcome in list(zip(operations, decision.acked, strict=True))[len(part.acks) :]:
        service.counters.of(operation.queue.name).acked(int(outcome.success), int(not outcome.success))
    if not service.spool.holds:
        for item in placed:
            counters = service.counters.of(item.queue)
            counters.push_requests += 1
            counters.push_messages += 1
    return work_positions_at


def _decide(
    service: PartitionedService,
    items: Sequence[PushItem],
    acks: Sequence[AckRequest],
    now: float,
    *,
    refuses: bool,
) -> tuple[list[Change], TransactionDecision, list[AckOperation]]:
    store = service.store
    if service.spool.holds:
        items = ()
    changes: list[Change] = []
    drafts: dict[str, PartitionedQueue] = {}
    for item in items:
        if item.queue not in store.queues and item.queue not in drafts:
            if refuses:
                store.check_new(item.queue, len(drafts))
            queue, configured = store.draft(item.queue, now, len(drafts))
            drafts[item.queue] = queue
            changes.append((queue.number, configured))
    homes = {**store.queues, **drafts} if drafts else store.queues
    pushes = [
        PushOperation(homes[item.queue], ((item.partition, item.body.transaction_id),)) for item in items
    ]
    operations = [
        AckOperation(
            _home(service, request.queue, request.partition),
            request.group,
            Ack(request.partition, request.transaction_id, request.status, request.lease_id, request.error),
        )
        for request in acks
        if refuses or store.find(request.queue, request.partition) is not None
    ]
    decision = decide_transaction(pushes, operations, now, refuses=refuses)
    changes += [(queue.number, event) for queue, event in decision.events]
    return changes, decision, operations


def _write(
    service: PartitionedService,
    part: Part,
    changes: Sequence[Change],
    decision: TransactionDecision,
    operations: Sequence[AckOperation],
    placed: Sequence[PushItem],
    work_records: Sequence[StateRecord],
) -> list[int]:
    store, items = service.store, part.items
    state_records = part.state_records
    spooled = service.spool.holds
    if spooled:
        state_records = [*service.spool.records([*items, *placed]), *state_records]
    bodies, records = _bodies_of(service, decision, [*items, *placed])
    work_positions: list[int] = []
    if changes or state_records or work_records:
        work_positions = store.commit(changes, records, bodies, state_records, work_records)
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
            counters = service.counters.of(queue.name)
            counters.push_requests += 1
            counters.push_messages += sum([not decision.pushed[place].duplicate for place in mine])
            if decided.event is not None:
                counters.partitions_created += len(decided.event.new_partitions)


@dataclass(frozen=True, slots=True)
class CycleAck:
    transaction_id: str
    lease_id: str
    status: AckStatus | None


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
    ack: CycleAck | None
    release: bool


def run_cycle(
    service: PartitionedService, streams: StreamStates, cycle: Cycle, now: float
) -> tuple[list[PushResult] | None, AckOutcome | None, PartitionedQueue]:
    """Commit state, pushes and ack together; raises the first refusal. None: the pushes were spooled."""
    if not streams.knows(cycle.query_id):
        raise NotFound(f"Unknown query: {cycle.query_id}")
    queue = _home(service, cycle.queue, cycle.partition)
    changes: list[Change] = []
    outcome: AckOutcome | None = None
    if cycle.ack is not None:
        status = cycle.ack.status
        if status is AckStatus.FAILED:
            status = AckStatus.DEAD_LETTER  # a cycle has no retries of its own
        ack = Ack(cycle.partition, cycle.ack.transaction_id, status, cycle.ack.lease_id)
        decision = decide_acks(queue, cycle.group, [ack], now, release=cycle.release)
        outcome = decision.outcomes[0]
        refusal = refusal_of(ack, outcome)
        if refusal is not None:
            raise refusal
        changes += [(queue.number, event) for event in decision.events]
    records: list[bytes] = []
    bodies: list[Body] = []
    state_records = streams.change(cycle.query_id, cycle.partition_id, cycle.state_ops, now)
    spooled = service.spool.holds and bool(cycle.items)
    if spooled:
        decided = []
        state_records = [*service.spool.records(cycle.items), *state_records]
    else:
        decided = service.decide_pushes(cycle.items, now, changes, records, bodies)
    if changes or state_records:
        service.store.commit(changes, records, bodies, state_records)
    return None if spooled else service.results(cycle.items, decided), outcome, queue


def _home(service: PartitionedService, number: int, index: int) -> PartitionedQueue:
    queue = service.store.find(number, index)
    if queue is None:
        raise AckRefused(AckVerdict.NOT_FOUND)
    return queue


def _result(queue: PartitionedQueue, item: PushItem, offset: int, duplicate: bool) -> PushResult:
    created_us = queue.log.created_us(offset)
    return PushResult(queue.number, queue.indexes[item.partition], offset, created_us, duplicate)


def _bodies_of(
    service: PartitionedService, decision: TransactionDecision, items: Sequence[PushItem]
) -> tuple[list[Body], list[bytes]]:
    bodies: list[Body] = []
    records: list[bytes] = []
    for queue, pushed, mine in decision.pushes:
        cipher = service.store.cipher if queue.config.encryption_enabled else None
        for at, place in enumerate(mine):
            if at not in pushed.duplicates:
                bodies.append(items[place].body)
                records.append(encode_body(items[place].body, cipher))
    return bodies, records
