"""The commands of partitioned queues: push, pop, ack; each is decided, written and applied in one step.

Owns: the order of commands on a queue (``WaitingLine`` decides which pops are woken). Must not touch: wire
names, clocks (``now`` is a parameter), the durability of answers: after a command the edge waits for
``journal.on_durable`` before it answers.

Over 400 lines: one method for each command, most of them a few lines.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Final

from holtmq.broker.errors import LimitReached
from holtmq.broker.partitioned.captured import StateRecord
from holtmq.broker.partitioned.commands.acking import NOT_FOUND, decide_acks
from holtmq.broker.partitioned.commands.clean_acks import CleanRun, decide_clean
from holtmq.broker.partitioned.commands.idle_partitions import IdleSweep
from holtmq.broker.partitioned.commands.popping import Popping
from holtmq.broker.partitioned.commands.pushing import PushDecision, decide_push
from holtmq.broker.partitioned.commands.retention_pass import RetentionPass
from holtmq.broker.partitioned.commands.spool import Spool
from holtmq.broker.partitioned.commands.staging import Staging
from holtmq.broker.partitioned.commands.stream_limits import StreamLimits
from holtmq.broker.partitioned.counters import QueueCounters
from holtmq.broker.partitioned.events import Acked, LeaseReleased
from holtmq.broker.partitioned.extras.ephemeral import EphemeralQueue
from holtmq.broker.partitioned.extras.keyed import KeyedRows
from holtmq.broker.partitioned.extras.locks import LockPermits
from holtmq.broker.partitioned.extras.stream_state import StreamStates
from holtmq.broker.partitioned.extras.timer_firing import Firing
from holtmq.broker.partitioned.extras.timers import TimedMessages
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckOutcome
from holtmq.broker.partitioned.pending_commit import PendingCommit
from holtmq.broker.partitioned.queue import Extension, PartitionedQueue
from holtmq.broker.partitioned.queue_config import US
from holtmq.broker.partitioned.requests import (
    AckAnswer,
    AckRequest,
    HeldPartition,
    Popped,
    PopRequest,
    PushItem,
    PushResult,
    Waiter,
)
from holtmq.broker.partitioned.store import PartitionedStore
from holtmq.broker.partitioned.waiting.waiting_pops import WaitingLine
from holtmq.broker.partitioned.waiting.wide_pops import WideLines
from holtmq.journal.interface import Journal

Decided = tuple[str, Sequence[PushItem], PushDecision]
_FREED: Final = 5_000  # entries of a dict at once: about 2 ms
_push_result = partial(tuple.__new__, PushResult)  # a third of the time of the named tuple's own __new__


@dataclass(frozen=True, slots=True)
class Settings:
    """The node's configuration of partitioned queues."""

    lookback: float = 4.0
    default_mode: str = ""


class PartitionedService:
    """All commands on partitioned queues. One per node, on the event loop's thread."""

    def __init__(self, journal: Journal, settings: Settings | None = None) -> None:
        self.journal = journal
        self.settings = settings or Settings()
        self.store = PartitionedStore(journal)
        self.spool = Spool(self.store)
        self.streams = StreamStates(self.store)
        self.keyed = KeyedRows(self.store)
        self.locks = LockPermits(self.keyed)
        self.timed = TimedMessages(self.store)
        self.ephemeral: dict[str, EphemeralQueue] = {}
        self.staging = Staging(self.store, self.spool)
        self.counters = QueueCounters()
        self.stream_limits = StreamLimits(self.store.weigh)
        wide = WideLines(self.store.by_number)
        self.line = WaitingLine(self.store.queues, wide, self.pop)
        self.store.listeners.append(self.line.hear)
        self._popping = Popping(self.store, self.counters, self.line, wide, self.settings.lookback)
        self.firing = Firing(self.store, self.timed, self.spool, self.line, self.decide_pushes, self.results)
        self._sweep: IdleSweep | None = None
        self._retention = RetentionPass(self.store, self.counters, self.stream_limits)
        self.in_steps: Callable[[Iterator[None]], object] = deque[None](maxlen=0).extend  # the broker sets it

    def push(self, items: Sequence[PushItem], now: float, one_each: bool = False) -> list[PushResult] | None:
        """Store messages, in any number of queues, as one step; None: they went to the spool instead.

        ``one_each``: each item came in its own request.
        """
        if not items:
            return []
        if self.spool.holds:
            self.spool.put(items)
            return None
        return self._store_all(items, now, one_each=one_each)

    def drain_spool(self, now: float) -> bool:
        """Push the spool's oldest messages if pushes are enabled; return whether to continue at once."""
        if self.spool.pushes_spooled or not len(self.spool):
            return False
        items, count = self.spool.head()
        try:
            self._store_all(items, now, [self.spool.gone(count)])
        except LimitReached:
            return False  # a full queue: everything behind it waits, to keep the order
        return len(self.spool) > 0

    def push_with(
        self, items: Sequence[PushItem], now: float, work_records: Sequence[StateRecord]
    ) -> list[int]:
        """Store messages whose size limit was already checked, and work queues' records, as one step.

        Returns the journal positions of the work records.
        """
        if self.spool.holds:
            return self.store.commit((), state_records=self.spool.records(items), work_records=work_records)
        pending = PendingCommit(self.store, work_records=work_records)
        decided = self.decide_pushes(items, now, pending, limited=False)
        work_positions = pending.write()
        for name, mine, decision in decided:
            self._count(name, decision, len(mine), requests=len(mine))  # each was its own publish
        return work_positions

    def _store_all(
        self,
        items: Sequence[PushItem],
        now: float,
        state_records: Sequence[StateRecord] = (),
        one_each: bool = False,
    ) -> list[PushResult]:
        pending = PendingCommit(self.store, state_records)
        decided = self.decide_pushes(items, now, pending)
        pending.write()
        return self.results(items, decided, one_each)

    def decide_pushes(
        self,
        items: Sequence[PushItem],
        now: float,
        pending: PendingCommit,
        limited: bool = True,
        apart: bool = False,
    ) -> list[Decided]:
        """Decide pushes queue by queue; add what must be committed to ``pending``."""
        return [
            (name, mine, self._decide_push(name, mine, now, pending, limited, apart))
            for name, mine in _by_queue(items)
        ]

    def results(
        self, items: Sequence[PushItem], decided: Sequence[Decided], one_each: bool = False
    ) -> list[PushResult]:
        """The answers to pushes that have been committed, in the order of the items."""
        if len(decided) == 1:
            return self._results(*decided[0], one_each)
        answers = {
            name: iter(self._results(name, mine, decision, one_each)) for name, mine, decision in decided
        }
        return [next(answers[item.queue]) for item in items]

    def _decide_push(
        self,
        name: str,
        items: Sequence[PushItem],
        now: float,
        pending: PendingCommit,
        limited: bool,
        apart: bool,
    ) -> PushDecision:
        queue = pending.home(name, now, refuses=limited)
        pairs = [(item[1], item[2].transaction_id) for item in items]
        decision = decide_push(queue, pairs, now, limited, apart=apart)
        if decision.event is not None:
            duplicates = decision.duplicates
            if duplicates:
                fresh = [item.body for place, item in enumerate(items) if place not in duplicates]
            else:
                fresh = [item[2] for item in items]
            pending.push(queue, decision.event, fresh)
        return decision

    def _results(
        self, name: str, items: Sequence[PushItem], decision: PushDecision, one_each: bool
    ) -> list[PushResult]:
        queue = self.store.queues[name]
        number, indexes, created = queue.number, queue.indexes, queue.log.created_us
        duplicates, event = decision.duplicates, decision.event
        self._count(name, decision, len(items), requests=len(items) if one_each else 1)
        if event is not None and not duplicates:  # the hot case: offsets and times are consecutive
            created_from = event.created_us
            times = range(created_from, created_from + len(items))
            rows = zip(repeat(number), event.partitions, decision.offsets, times, repeat(False))
            return [*map(_push_result, rows)]
        return [
            PushResult(number, indexes[item.partition], offset, created(offset), place in duplicates)
            for place, (item, offset) in enumerate(zip(items, decision.offsets, strict=True))
        ]

    def _count(self, name: str, decision: PushDecision, items: int, requests: int) -> None:
        partitions = 0 if decision.event is None else len(decision.event.new_partitions)
        self.counters.of(name).pushed(requests, items - len(decision.duplicates), partitions)

    def pop(self, request: PopRequest, now: float, wrote: bool = False) -> Popped | None:
        """Deliver available messages, under a lease or auto-acked; None when there are none.

        A group's first pop records where it starts, even if it finds nothing. A result without runs says that
        there are more places to look at: call it again, with what it ``wrote``.
        """
        return None if self.spool.pops_paused else self._popping.pop(request, now, wrote)

    def record_deliveries(self) -> None:
        """Record the delivery counts of unsettled messages; called before a clean shutdown."""
        self._popping.marks.write()

    def matching(self, namespace: str, task: str) -> list[PartitionedQueue]:
        """Every queue of a namespace and/or task; blank matches all."""
        return self._popping.matching(namespace, task)

    def free(self, columns: Iterable[dict[Any, Any]]) -> None:
        """Free what a group has kept by partition: all at once takes long."""
        self.in_steps(emptied(columns))

    def forget_joined(self) -> None:
        """Drop what pops have cached, after groups, queues or subscription records were deleted."""
        self._popping.forget_joined()

    def wait(self, waiter: Waiter, now: float) -> None:
        """Serve the pop as soon as there is a message for it."""
        self.line.add(waiter, now)

    def withdraw(self, waiter: Waiter) -> None:
        """Remove a waiting pop: the client disconnected or its timeout passed."""
        self.line.remove(waiter)

    def give_back(self, queue: PartitionedQueue, group: str, partition: int, lease_id: str) -> None:
        """Release a lease without settling anything; other consumers may claim the partition at once."""
        reader = queue.groups.get(group)
        if reader is None or not reader.leases.has(partition, lease_id):
            return
        recorded = reader.leases.recorded.get(partition)
        if (
            recorded is not None
            and recorded.id == lease_id
            and self.store.by_number.get(queue.number) is queue
        ):
            self.store.commit([(queue.number, LeaseReleased(reader.number, partition))])
        queue.release(group, partition, lease_id)
        self.line.given_back(queue)

    def end_held(self, held: Iterable[HeldPartition]) -> None:
        """End leases of AMQP consumers, which hold nothing of them any more. What they did not settle will be
        delivered again, and has been delivered before."""
        queues: dict[int, PartitionedQueue] = {}
        for number, partition, group, lease_id in held:
            queue = self.store.by_number.get(number)
            if queue is not None and queue.end_held(group, partition, lease_id):
                queues[number] = queue
        for queue in queues.values():
            self.line.given_back(queue)

    def ack(self, requests: Sequence[AckRequest], now: float) -> list[AckAnswer]:
        """Settle messages of any queues and groups; each gets its own answer."""
        answers: list[AckAnswer | None] = [None] * len(requests)
        places: dict[tuple[int, str], list[int]] = {}
        for place, request in enumerate(requests):
            places.setdefault((request.queue, request.group), []).append(place)
        for (number, group), mine in places.items():
            acks = [requests[place].ack for place in mine]
            queue, outcomes = self.settle(number, group, acks, now)
            for place, outcome in zip(mine, outcomes, strict=True):
                answers[place] = AckAnswer(outcome, queue)
        return [answer for answer in answers if answer is not None]

    def settle(
        self, number: int, group: str, acks: Sequence[Ack], now: float
    ) -> tuple[PartitionedQueue | None, list[AckOutcome]]:
        """Settle messages of one queue for one group; those of one partition take effect together."""
        queue = self.store.by_number.get(number)
        if queue is None:
            return None, [NOT_FOUND] * len(acks)
        decision = decide_acks(queue, group, acks, now)
        if decision.events:
            self.store.commit([(number, event) for event in decision.events])
        outcomes = decision.outcomes
        counters = self.counters.of(queue.name)
        refused = 0
        last: AckOutcome | None = None
        for outcome in outcomes:
            if outcome is not last:  # equal answers are one object, so most calls check only one
                last = outcome
                if not outcome.success:
                    refused = sum(1 for each in outcomes if not each.success)
                    break
        counters.acked(len(acks) - refused, refused)
        for event in decision.events:
            if isinstance(event, Acked) and event.dead_letters:
                counters.dead_letters += len(event.dead_letters)
        return queue, outcomes

    def settle_clean(
        self, number: int, group: str, runs: Sequence[CleanRun], now: float
    ) -> tuple[PartitionedQueue, list[AckOutcome]] | None:
        """Settle whole runs as completed, one outcome each; None: nothing was done, use ``settle``."""
        queue = self.store.by_number.get(number)
        decided = None if queue is None else decide_clean(queue, group, runs, now)
        if queue is None or decided is None:
            return None
        outcomes, events = decided
        self.store.commit([(number, event) for event in events])
        self.counters.of(queue.name).acked(sum([len(run[2]) for run in runs]), 0)
        return queue, outcomes

    def queues_of_lease(self, lease_id: str) -> list[str]:
        """The names of the queues in which a lease may hold messages."""
        return [queue.name for queue in self._popping.homes(lease_id)]

    def extend(self, lease_id: str, seconds: float | None, now: float) -> Extension:
        """Renew a lease in all its queues; by default for the queue's lease time, at least a minute."""
        renewed, known = 0, False
        expires_at: float | None = None
        for queue in self._popping.homes(lease_id):
            found = queue.extend(lease_id, seconds or max(60.0, queue.config.lease_length), now)
            known = known or found.known
            renewed += found.renewed
            if found.renewed:
                self._popping.renewed(queue, lease_id, now)
            if found.expires_at is not None:
                expires_at = found.expires_at if expires_at is None else min(expires_at, found.expires_at)
        return Extension(renewed, expires_at, known)

    def turn(self, now: float) -> None:
        """Push timed messages that are due, then serve the pops woken since the last turn."""
        try:
            if self.firing.wanted:
                self.firing.fire(now)
        finally:
            self.line.serve(now)

    def plan_timed(self) -> None:
        """Schedule a call for when the next timed message is due; used after a change or a restart."""
        self.firing.plan()

    @property
    def has_retention(self) -> bool:
        """Whether any queue drops messages by age or size."""
        return bool(self.store.aging) or len(self.stream_limits) > 0

    def retain(self, now: float, *, eviction: bool = True, retention: bool = True) -> bool:
        """One bounded step of retention and eviction over all queues; return whether there may be more."""
        return self._retention.step(now, eviction=eviction, retention=retention)

    def drop_idle(self, now: float, days: int) -> bool:
        """One bounded step of deleting idle, empty partitions; return whether the pass continues."""
        if self._sweep is None:
            self._sweep = IdleSweep(list(self.store.queues.values()))
        found = self._sweep.step(now, days * 86_400 * US)
        if found is None:
            self._sweep = None
            return False
        queue, event = found
        if event is not None and self.store.by_number.get(queue.number) is queue:
            self.store.commit([(queue.number, event)])
            self.counters.of(queue.name).partitions_deleted += len(event.partitions)
        return True


def _by_queue(items: Sequence[PushItem]) -> Sequence[tuple[str, Sequence[PushItem]]]:
    if not items:
        return ()
    first = items[0][0]
    if [item[0] for item in items].count(first) == len(items):
        return ((first, items),)
    found: dict[str, list[PushItem]] = {}
    for item in items:
        found.setdefault(item[0], []).append(item)
    return tuple(found.items())


def emptied(columns: Iterable[dict[Any, Any]]) -> Iterator[None]:
    """Empty these, some entries in each step."""
    work = 0
    for column in columns:
        work += 1
        while column:
            column.popitem()
            work += 1
            if work >= _FREED:
                work = 0
                yield
