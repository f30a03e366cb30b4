"""Acks of what was just popped, all completed: decided by lease, without a look at each message's fate.

Owns: recognising the case. Whatever is not wholly clean is left to ``acking``, whose answers these equal.
Must not touch: state (the queue applies the events), clocks, wire names.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from holtmq.broker.partitioned.acknowledgment import (
    AckOutcome,
    AckStatus,
    AckVerdict,
    Answers,
    Budget,
    Named,
    settle,
)
from holtmq.broker.partitioned.events import Acked
from holtmq.broker.partitioned.groups import micros
from holtmq.broker.partitioned.queue import PartitionedQueue

_DONE: Final = Named(AckStatus.COMPLETED, None)


class CleanRun(NamedTuple):
    """Messages of one partition, popped under one lease, all completed."""

    partition: int
    lease_id: str
    transaction_ids: Sequence[str]


def decide_clean(
    queue: PartitionedQueue, group: str, runs: Sequence[CleanRun], now: float
) -> tuple[list[AckOutcome], list[Acked]] | None:
    """One outcome and one event for each run; None when any of them needs a closer look."""
    reader = queue.groups.get(group)
    if reader is None or (len(runs) > 1 and len({run[0] for run in runs}) < len(runs)):
        return None
    outcomes: list[AckOutcome] = []
    events: list[Acked] = []
    at_us = micros(now)
    for partition, lease_id, transaction_ids in runs:
        lease = reader.leases.lease(partition, now)
        if lease is None or lease.id != lease_id or lease.transactions is None or lease.repeated:
            return None
        try:
            positions = [*map(lease.transactions.__getitem__, transaction_ids)]
        except KeyError:
            return None
        cursor = reader.cursor(partition)
        first, last = min(positions), max(positions)
        if cursor is None or first < cursor or last >= lease.end:
            return None
        # All of them completed: the highest alone says the same as all, by the head rule.
        budget = Budget(reader.leases.retries.get(partition, 0), queue.config.retry_limit)
        settlement = settle({last: _DONE}, cursor, lease.end, budget)
        outcome = AckOutcome(AckVerdict.ACKNOWLEDGED, settlement.released)
        outcomes.append(outcome)
        events.append(
            Acked(
                reader.number,
                partition,
                settlement.cursor,
                settlement.retry_count,
                at_us,
                0,
                settlement.released,
                (),
                lease.id,
                Answers(first, last + 1, outcome, {}),
            )
        )
    return outcomes, events
