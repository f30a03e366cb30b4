"""A fast path for acks of just popped messages, all completed: decided per lease, not per message.

Owns: recognising this case. All other acks are left to ``acking``, which would give the same answers here.
Must not touch: state (the queue applies the events), clocks, wire names.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from holtmq.broker.partitioned.events import Acked
from holtmq.broker.partitioned.groups.acknowledgment import (
    AckOutcome,
    AckVerdict,
    Answers,
)
from holtmq.broker.partitioned.groups.group import micros
from holtmq.broker.partitioned.queue import PartitionedQueue

_RELEASED: Final = AckOutcome(AckVerdict.ACKNOWLEDGED, lease_released=True)
_HELD_ON: Final = AckOutcome(AckVerdict.ACKNOWLEDGED)


class CleanRun(NamedTuple):
    """Messages of one partition, popped under one lease, all completed."""

    partition: int
    lease_id: str
    transaction_ids: Sequence[str]


def decide_clean(
    queue: PartitionedQueue, group: str, runs: Sequence[CleanRun], now: float
) -> tuple[list[AckOutcome], list[Acked]] | None:
    """One outcome and one event for each run; None when any of them is not such a case."""
    reader = queue.groups.get(group)
    if reader is None or (len(runs) > 1 and len({run[0] for run in runs}) < len(runs)):
        return None
    outcomes: list[AckOutcome] = []
    events: list[Acked] = []
    at_us, leases = micros(now), reader.leases
    for partition, lease_id, transaction_ids in runs:
        lease = leases.lease(partition, now)
        if lease is None or lease.id != lease_id or lease.ids_unread:
            return None
        if lease.ids == transaction_ids:
            first, end = lease.positions[0], lease.positions[-1] + 1
        else:
            if lease.repeated:
                return None
            try:
                positions = [*map(lease.transactions.__getitem__, transaction_ids)]
            except KeyError:
                return None
            first, end = min(positions), max(positions) + 1
        cursor = reader.cursor(partition)
        if cursor is None or first < cursor or end > lease.end:
            return None
        # All are completed: the highest position settles everything below, by the head rule.
        released = end == lease.end
        outcome = _RELEASED if released else _HELD_ON
        retries = 0 if released else leases.retries.get(partition, 0)
        answers = Answers(first, end, outcome, {})
        outcomes.append(outcome)
        events.append(Acked(reader.number, partition, end, retries, at_us, 0, released, (), answers))
    return outcomes, events
