"""Transactions: several pushes and acks that happen together or not at all.

Owns: deciding them together, over any number of queues, and refusing all when one is refused. Must not
touch: state; the caller writes all events as one journal record, then applies them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holtmq.broker.partitioned.commands.acking import decide_acks
from holtmq.broker.partitioned.commands.pushing import PushDecision, decide_push
from holtmq.broker.partitioned.events import QueueEvent
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckOutcome, AckRefused, AckVerdict
from holtmq.broker.partitioned.queue import PartitionedQueue


@dataclass(frozen=True, slots=True)
class PushOperation:
    queue: PartitionedQueue
    items: Sequence[tuple[str, str]]  # (partition name, transaction id)


@dataclass(frozen=True, slots=True)
class AckOperation:
    queue: PartitionedQueue
    group: str
    ack: Ack


@dataclass(frozen=True, slots=True)
class PushedItem:
    """The result of one item: its offset, or that of the original for a duplicate."""

    queue: PartitionedQueue
    offset: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class TransactionDecision:
    """Answers in the order of the operations' items, and every event with its queue."""

    pushed: list[PushedItem]
    acked: list[AckOutcome]
    settled: list[tuple[PartitionedQueue, QueueEvent]]  # the events of the acks
    pushes: list[tuple[PartitionedQueue, PushDecision, list[int]]]  # the last: indexes into ``pushed``

    @property
    def events(self) -> list[tuple[PartitionedQueue, QueueEvent]]:
        """All events, in the order in which they are written."""
        return [
            *self.settled,
            *((queue, push.event) for queue, push, _ in self.pushes if push.event is not None),
        ]


def decide_transaction(
    pushes: Sequence[PushOperation], acks: Sequence[AckOperation], now: float, *, refuses: bool = True
) -> TransactionDecision:
    """Decide all operations; raises the first refusal, and then nothing has happened.

    Without ``refuses``, invalid acks are ignored and size limits are not checked.
    """
    settled: list[tuple[PartitionedQueue, QueueEvent]] = []
    acked = _decide_acks(acks, now, settled, refuses)
    flat = [(operation.queue, item) for operation in pushes for item in operation.items]
    places: dict[int, list[int]] = {}
    for place, (queue, _) in enumerate(flat):
        places.setdefault(queue.number, []).append(place)
    pushed: dict[int, PushedItem] = {}
    decisions: list[tuple[PartitionedQueue, PushDecision, list[int]]] = []
    for mine in places.values():
        queue = flat[mine[0]][0]
        decision = decide_push(queue, [flat[place][1] for place in mine], now, refuses)
        decisions.append((queue, decision, mine))
        for at, place in enumerate(mine):
            pushed[place] = PushedItem(queue, decision.offsets[at], at in decision.duplicates)
    return TransactionDecision([pushed[place] for place in range(len(flat))], acked, settled, decisions)


def _decide_acks(
    acks: Sequence[AckOperation],
    now: float,
    events: list[tuple[PartitionedQueue, QueueEvent]],
    refuses: bool,
) -> list[AckOutcome]:
    # Acks of one (queue, group) are decided in one call: only together they may release a lease.
    places: dict[tuple[int, str], list[int]] = {}
    for place, operation in enumerate(acks):
        places.setdefault((operation.queue.number, operation.group), []).append(place)
    outcomes: dict[int, AckOutcome] = {}
    started: dict[int, int] = {}  # queue -> the number its next new group gets
    for (number, group), mine in places.items():
        queue = acks[mine[0]].queue
        new_number = started.get(number, queue.next_group)
        if group not in queue.groups:
            started[number] = new_number + 1
        decision = decide_acks(queue, group, [acks[p].ack for p in mine], now, new_number=new_number)
        for place, outcome in zip(mine, decision.outcomes, strict=True):
            refusal = refusal_of(acks[place].ack, outcome)
            if refusal is not None and refuses:
                raise refusal
            outcomes[place] = outcome
        events += [(queue, event) for event in decision.events]
    return [outcomes[place] for place in range(len(acks))]


def refusal_of(ack: Ack, outcome: AckOutcome) -> AckRefused | None:
    """Why an acknowledgment cannot be part of an atomic commit; None if it can."""
    if not outcome.success:
        return AckRefused(outcome.verdict)
    if ack.lease_id and (outcome.noop or outcome.repeated):
        # The transaction was committed before: its other operations must not happen twice.
        return AckRefused(AckVerdict.STALE)
    return None
