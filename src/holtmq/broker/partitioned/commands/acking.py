"""Deciding acknowledgments: check the lease, find the message, then apply the rules of ``acknowledgment``.

Owns: the lease check, resolving transaction ids to positions, and the answers to late, stale and repeated
acks. Must not touch: state (the queue applies the events), clocks, wire names.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from holtmq.broker.partitioned.events import Acked, Filed, GroupStarted
from holtmq.broker.partitioned.groups.acknowledgment import (
    ERROR_MAX,
    Ack,
    AckOutcome,
    AckStatus,
    AckVerdict,
    Answers,
    Budget,
    Named,
    Settlement,
    settle,
    verdict_at,
)
from holtmq.broker.partitioned.groups.group import Group, micros
from holtmq.broker.partitioned.groups.partition_leases import PartitionLease
from holtmq.broker.partitioned.log.message_log import Partition
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import HeldPartition

NOT_FOUND: Final = AckOutcome(AckVerdict.NOT_FOUND)
INVALID_LEASE: Final = AckOutcome(AckVerdict.INVALID_LEASE)
STALE: Final = AckOutcome(AckVerdict.STALE)
UNKNOWN_STATUS: Final = AckOutcome(AckVerdict.UNKNOWN_STATUS)
NOOP: Final = AckOutcome(AckVerdict.ACKNOWLEDGED, noop=True)
_NAMED: Final = {status: Named(status, None) for status in AckStatus}


@dataclass(frozen=True, slots=True)
class AckDecision:
    """One outcome per item, in input order, and the events to commit (none when all were refused)."""

    outcomes: list[AckOutcome]
    events: tuple[GroupStarted | Acked, ...]


def decide_acks(
    queue: PartitionedQueue,
    group: str,
    acks: Sequence[Ack],
    now: float,
    release: bool | None = None,
    new_number: int | None = None,
) -> AckDecision:
    """Decide one call's acks for one group. Items of one partition take effect together.

    ``release`` True ends the lease at a clean ack even when part of the batch is left. ``new_number`` is the
    number for a group that the queue does not know, if one transaction creates several groups.
    """
    events: list[GroupStarted | Acked] = []
    reader = queue.groups.get(group)
    if reader is None:
        # Acks need no lease, so a group may ack before its first pop; it starts at the oldest message.
        number = queue.next_group if new_number is None else new_number
        reader = Group(group, number, queue.partitions, queue.log)
        reader.start(0, None)
        events.append(GroupStarted(group, reader.number, 0))
    outcomes = [NOT_FOUND] * len(acks)
    places: dict[int, list[int]] = {}
    for place, ack in enumerate(acks):
        places.setdefault(ack[0], []).append(place)
    for partition, mine in places.items():
        if 0 <= partition < len(queue.partitions):
            items = [(place, acks[place]) for place in mine]
            event = _decide_partition(queue, reader, partition, items, now, release, outcomes)
            if event is not None:
                events.append(event)
    acted = any(isinstance(event, Acked) for event in events)
    return AckDecision(outcomes, tuple(events) if acted else ())


def decide_held(
    queue: PartitionedQueue, held: HeldPartition, verdicts: Mapping[int, AckStatus], now: float
) -> Acked | None:
    """Decide verdicts by position, of the holder of a lease. None: the lease has ended, or their messages
    have been deleted."""
    partition = held.partition
    reader = queue.groups.get(held.group)
    lease = None if reader is None else reader.leases.lease(partition, now)
    if reader is None or lease is None or lease.id != held.lease_id:
        return None
    where = queue.partitions[partition]
    cursor = reader.cursor(partition)
    if cursor is None:
        cursor = where.first
    if where.holes or min(verdicts) < cursor or max(verdicts) >= lease.end:
        end = lease.end
        holes = set(where.holes_in(cursor, end))
        verdicts = {at: said for at, said in verdicts.items() if cursor <= at < end and at not in holes}
        if not verdicts:
            return None
    spent = reader.leases.retries.get(partition, 0)
    if list(verdicts.values()).count(AckStatus.COMPLETED) == len(verdicts):  # hot case, as ``settle`` has it
        cursor = max(verdicts) + 1
        released = cursor >= lease.end
        return Acked(reader.number, partition, cursor, 0 if released else spent, micros(now), 0, released, ())
    named = {at: _NAMED[said] for at, said in verdicts.items()}
    budget = Budget(spent, queue.config.retry_limit)
    settlement = settle(named, cursor, lease.end, budget, holes=_holes_among(where, named))
    if max(verdicts) < settlement.cursor < lease.end:  # none returned: the holder goes on with the others
        settlement = replace(settlement, released=False)
    return _event(queue, reader, partition, settlement, budget, None, micros(now), None)


def _decide_partition(
    queue: PartitionedQueue,
    group: Group,
    partition: int,
    items: Sequence[tuple[int, Ack]],
    now: float,
    release: bool | None,
    outcomes: list[AckOutcome],
) -> Acked | None:
    lease = group.leases.lease(partition, now)
    if lease is not None and lease.ids_unread:
        deque(queue.read_ids(partition, lease), maxlen=0)
    cursor = group.cursor(partition)
    if cursor is None:
        cursor = queue.partitions[partition].first
    known: Mapping[str, int] = lease.transactions if lease is not None else {}
    mentions: Counter[str] = Counter()  # acks per id so far, for ids that the lease holds more than once
    live_id = lease.id if lease is not None else ""
    named: dict[int, Named] = {}
    accepted: list[tuple[int, int]] = []  # (place, position)
    completed = AckStatus.COMPLETED
    emptied = False
    for place, (_, transaction_id, status, lease_id, error) in items:
        position = known.get(transaction_id)
        if lease is not None and lease.repeated:
            position = lease.mentioned(transaction_id, cursor, mentions[transaction_id])
            mentions[transaction_id] += 1
        if position is None:
            position = queue.find(partition, transaction_id, cursor)
            if position is None:
                continue
        if status is None:
            outcomes[place] = UNKNOWN_STATUS
        elif lease_id and lease_id != live_id:
            outcomes[place] = _late(group, lease_id, partition, position, status is completed)
        elif lease_id and lease is not None and position >= lease.end:
            outcomes[place] = INVALID_LEASE  # not delivered under this lease
        elif position < cursor:
            outcomes[place] = NOOP if status is completed else STALE
            if lease is not None and lease.end <= cursor and transaction_id in known:
                emptied = True  # its messages were removed: without this ack it would hold up the next ones
                outcomes[place] = replace(outcomes[place], lease_released=True)
        else:
            before = named.get(position)
            if before is None or status.value > before.status.value:
                named[position] = Named(status, error)
            accepted.append((place, position))
    if not named:
        return Acked(group.number, partition, cursor, 0, micros(now), 0, True, ()) if emptied else None
    budget = Budget(group.leases.retries.get(partition, 0), queue.config.retry_limit)
    lease_end = lease.end if lease is not None else None
    holes = _holes_among(queue.partitions[partition], named)
    settlement = settle(named, cursor, lease_end, budget, release, holes)
    answers = _answer(settlement, accepted, lease, queue.config.files_dead_letters, outcomes)
    error = _head_error(named) if settlement.failed else None
    return _event(queue, group, partition, settlement, budget, answers, micros(now), error)


def _holes_among(where: Partition, named: Mapping[int, Named]) -> Collection[int]:
    """The positions of deleted messages between these."""
    return set(where.holes_in(min(named), max(named))) if where.holes is not None else ()


def _head_error(named: Mapping[int, Named]) -> str | None:
    head = min(position for position, item in named.items() if item.status is AckStatus.FAILED)
    text = named[head].error
    return text[:ERROR_MAX] if text else None


def _late(group: Group, lease_id: str, partition: int, position: int, completed: bool) -> AckOutcome:
    """Answer an ack under an ended lease: a repeat of the call that ended it gets the same answer.

    A different status is no repeat: "completed" for a message that is redelivered must not succeed.
    """
    answers = group.released_answers(lease_id, partition)
    answer = None if answers is None else answers.at(position)
    if answer is None or answer.verdict is (AckVerdict.REDELIVERED if completed else AckVerdict.ACKNOWLEDGED):
        return INVALID_LEASE
    return replace(answer, repeated=True)


def _answer(
    settlement: Settlement,
    accepted: Sequence[tuple[int, int]],
    lease: PartitionLease | None,
    files: bool,
    outcomes: list[AckOutcome],
) -> Answers:
    released = settlement.released and lease is not None
    positions = [position for _, position in accepted]
    first, end = min(positions), max(positions) + 1
    if settlement.cursor >= end and not settlement.filed:
        same = AckOutcome(AckVerdict.ACKNOWLEDGED, released)  # hot case: all completed, one object for all
        for place, _ in accepted:
            outcomes[place] = same
        return Answers(first, end, same, {})
    outcome = cache(lambda verdict: AckOutcome(verdict, released))
    each = {position: outcome(verdict_at(position, settlement, files)) for position in positions}
    for place, position in accepted:
        outcomes[place] = each[position]
    return Answers(first, end, None, each)


def _event(
    queue: PartitionedQueue,
    group: Group,
    partition: int,
    settlement: Settlement,
    budget: Budget,
    answers: Answers | None,
    at_us: int,
    error: str | None,
) -> Acked:
    filed: tuple[Filed, ...] = ()
    if settlement.filed and queue.config.files_dead_letters:
        filed = tuple(Filed(position, budget.spent, text[:ERROR_MAX]) for position, text in settlement.filed)
    hold_us = at_us + queue.config.retry_delay_us if settlement.failed and queue.config.retry_delay_us else 0
    return Acked(
        group.number,
        partition,
        settlement.cursor,
        settlement.retry_count,
        at_us,
        hold_us,
        settlement.released,
        filed,
        answers,
        error,
    )
