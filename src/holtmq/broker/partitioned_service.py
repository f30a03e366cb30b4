"""Partitioned queues at work: push, pop, ack, transaction, each decided, written and applied in one step.

Owns: which commands a queue gets and in which order; who is woken by what is the waiting line's. Must not
touch: wire names, clocks (``now`` comes in), durability of answers: after a command the edge answers when the
journal says so (``journal.on_durable``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holtmq.broker.acking import NOT_FOUND, decide_acks
from holtmq.broker.acknowledgment import Ack
from holtmq.broker.errors import LimitReached
from holtmq.broker.groups import micros
from holtmq.broker.joining import decide_join, decide_subscription
from holtmq.broker.partitioned_bodies import AmqpFacts, Body, encode_body
from holtmq.broker.partitioned_events import NO_QUEUE, Acked, QueueEvent, Trimmed
from holtmq.broker.partitioned_keyed import KeyedRows
from holtmq.broker.partitioned_locks import LockPermits
from holtmq.broker.partitioned_queue import Extension, PartitionedQueue
from holtmq.broker.partitioned_requests import (
    AckAnswer,
    AckRequest,
    Popped,
    PopRequest,
    PushItem,
    PushResult,
    Run,
    Waiter,
)
from holtmq.broker.partitioned_spool import Spool
from holtmq.broker.partitioned_store import Change, Extra, PartitionedStore
from holtmq.broker.partitioned_streams import StreamStates
from holtmq.broker.partitioned_tally import Tally
from holtmq.broker.partitioned_timed import Timed, TimedChange, TimedMessages
from holtmq.broker.partitioned_waiting import WaitingLine
from holtmq.broker.pushing import PushDecision, decide_push
from holtmq.broker.queue_config import US
from holtmq.broker.range_reads import DeliveryCheckpoints
from holtmq.broker.retention import decide_retention
from holtmq.broker.staging import Staging
from holtmq.broker.subscriptions import Scope
from holtmq.journal.interface import Journal

Decided = tuple[str, Sequence[PushItem], PushDecision]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the node's configuration says about partitioned queues."""

    lookback: float = 4.0
    default_mode: str = ""


class PartitionedService:
    """See the module. One per node, on the loop's thread."""

    def __init__(self, journal: Journal, settings: Settings | None = None) -> None:
        self.journal = journal
        self.settings = settings or Settings()
        self.store = PartitionedStore(journal)
        self.spool = Spool(self.store)
        self.streams = StreamStates(self.store)
        self.keyed = KeyedRows(self.store)
        self.locks = LockPermits(self.keyed)
        self.timed = TimedMessages(self.store)
        self.staging = Staging(self.store, self.spool)
        DeliveryCheckpoints(self.store)
        self.tally = Tally()
        self.line = WaitingLine(self.store.queues, self.pop)
        self.store.on_event = self.line.hear
        self._joined: set[tuple[int, str, str]] = set()  # pops that have nothing to record any more
        self._fires_at_us: int | None = None
        self._fire_wanted = False
        self._turns = 0  # where a pop over many queues starts: fair rotation

    # -- push ------------------------------------------------------------------------------------

    def push(self, items: Sequence[PushItem], now: float) -> list[PushResult] | None:
        """Store messages, over any number of queues, as one step; None: kept in the spool instead."""
        if not items:
            return []
        if self.spool.holds:
            self.spool.put(items)
            return None
        return self._store_all(items, now)

    def drain_spool(self, now: float) -> bool:
        """Push the spool's oldest, if it may go; whether more of it can follow at once."""
        if self.spool.pushes_spooled or not len(self.spool):
            return False
        items = self.spool.head()
        try:
            self._store_all(items, now, [self.spool.gone(len(items))])
        except LimitReached:
            return False  # a full queue: everything behind it waits, for order's sake
        return len(self.spool) > 0

    def _store_all(
        self, items: Sequence[PushItem], now: float, extras: Sequence[Extra] = ()
    ) -> list[PushResult]:
        changes: list[Change] = []
        records: list[bytes] = []
        bodies: list[Body] = []
        decided = self.decide_pushes(items, now, changes, records, bodies)
        if changes or extras:
            self.store.commit(changes, records, bodies, extras)
        return self.results(items, decided)

    def decide_pushes(
        self,
        items: Sequence[PushItem],
        now: float,
        changes: list[Change],
        records: list[bytes],
        bodies: list[Body],
    ) -> list[Decided]:
        """Decide pushes queue by queue; what they add to a commit is appended to the three lists."""
        return [
            (name, mine, self._decide_push(name, mine, now, changes, records, bodies))
            for name, mine in _by_queue(items)
        ]

    def results(self, items: Sequence[PushItem], decided: Sequence[Decided]) -> list[PushResult]:
        """The answers to pushes that were decided and have been committed, in the items' order."""
        if len(decided) == 1:
            return self._results(*decided[0])
        answers = {name: iter(self._results(name, mine, decision)) for name, mine, decision in decided}
        return [next(answers[item.queue]) for item in items]

    def _decide_push(
        self,
        name: str,
        items: Sequence[PushItem],
        now: float,
        changes: list[Change],
        records: list[bytes],
        bodies: list[Body],
    ) -> PushDecision:
        store = self.store
        queue = store.queues.get(name)
        if queue is None:
            drafts = len({number for number, _ in changes if number >= store.next_queue})
            queue, configured = store.draft(name, now, drafts)
            changes.append((queue.number, configured))
        decision = decide_push(queue, [(item.partition, item.body.transaction_id) for item in items], now)
        if decision.event is not None:
            changes.append((queue.number, decision.event))
            cipher = store.cipher if queue.config.encryption_enabled else None
            duplicates = decision.duplicates
            for place, item in enumerate(items):
                if place not in duplicates:
                    records.append(encode_body(item.body, cipher))
                    bodies.append(item.body)
        return decision

    def _results(self, name: str, items: Sequence[PushItem], decision: PushDecision) -> list[PushResult]:
        queue = self.store.queues[name]
        number, indexes, created = queue.number, queue.indexes, queue.log.created_us
        duplicates = decision.duplicates
        tally = self.tally.of(name)
        tally.push_requests += 1
        tally.push_messages += len(items) - len(duplicates)
        event = decision.event
        if event is not None and not duplicates:  # the hot case: offsets and times are a run
            ahead = event.created_us - event.first_offset
            return [
                PushResult(number, indexes[item.partition], offset, offset + ahead, False)
                for item, offset in zip(items, decision.offsets, strict=True)
            ]
        return [
            PushResult(number, indexes[item.partition], offset, created(offset), place in duplicates)
            for place, (item, offset) in enumerate(zip(items, decision.offsets, strict=True))
        ]

    def push_from_amqp(
        self, queue: str, partition: str, transaction_id: str, payload: bytes, facts: AmqpFacts, now: float
    ) -> PushResult | None:
        """A message that an exchange routed here; ``payload`` must be JSON."""
        results = self.push([PushItem(queue, partition, Body(transaction_id, payload, facts=facts))], now)
        return results[0] if results else None

    # -- pop -------------------------------------------------------------------------------------

    def pop(self, request: PopRequest, now: float) -> Popped | None:
        """Hand out what is there, under a lease or settled at once; None when there is nothing.

        A group's first pop records where it starts, whether it finds anything or not.
        """
        if self.spool.pops_paused:
            return None
        if request.queue:
            queue = self.store.queues.get(request.queue)
            wrote = self._join(request, queue, Scope(request.queue, request.partition), now)
            if queue is None:
                return None
            runs = self._claim(queue, request, request.limit, request.most_partitions, now)
        else:
            wrote, runs = self._pop_many(request, now)
        if not runs:
            return None
        self._count(runs, now)
        conflates = request.conflates and any(run.queue.groups[request.group].conflates for run in runs)
        return Popped(request, runs, wrote or request.auto_ack, conflates)

    def _pop_many(self, request: PopRequest, now: float) -> tuple[bool, list[Run]]:
        scope = Scope("", "", request.namespace, request.task)
        queues = self.matching(request.namespace, request.task)
        wrote = self._join(request, None, scope, now)
        runs: list[Run] = []
        limit, most = request.limit, request.most_partitions
        if queues:
            self._turns += 1
            at = self._turns % len(queues)
            queues = sorted(queues[at:] + queues[:at], key=_priority)
        for queue in queues:
            if limit <= 0 or most <= 0:
                break
            wrote = self._join(request, queue, scope, now) or wrote
            for run in self._claim(queue, request, limit, most, now):
                runs.append(run)
                limit -= len(run.bodies)
                most -= 1
        return wrote, runs

    def matching(self, namespace: str, task: str) -> list[PartitionedQueue]:
        """Every queue of a namespace and/or task; blank matches all."""
        return [
            queue
            for queue in self.store.queues.values()
            if (not namespace or queue.namespace == namespace) and (not task or queue.task == task)
        ]

    def _join(self, request: PopRequest, queue: PartitionedQueue | None, scope: Scope, now: float) -> bool:
        """Record where the group starts, if that is not known yet; whether anything was written."""
        group = request.group
        key = (queue.number if queue is not None else NO_QUEUE, group, scope.partition or scope.queue)
        if queue is not None and key in self._joined:
            return False
        changes: list[Change] = []
        store = self.store
        named = queue if scope.queue else None
        made = decide_subscription(
            store.subscriptions, named, group, scope, request.start, now, self.settings.lookback
        )
        if made is not None:
            # Two records, the second decided on the first: a crash between them leaves a record without a
            # start, which the next pop turns into one.
            store.commit([(NO_QUEUE, made)])
        if queue is not None:
            start = decide_join(
                store.subscriptions,
                queue,
                group,
                partition=scope.partition,
                made=made,
                conflates=request.conflates,
            )
            if start is not None:
                changes.append((queue.number, start))
                store.commit(changes)
            self._joined.add(key)
        return made is not None or bool(changes)

    def forget_joined(self) -> None:
        """Groups, queues or their records went away: the next pops look again."""
        self._joined.clear()

    def _claim(
        self, queue: PartitionedQueue, request: PopRequest, limit: int, most: int, now: float
    ) -> list[Run]:
        claim = queue.claim(
            request.group,
            request.lease_id,
            limit,
            now,
            partition=request.partition or None,
            most_partitions=most,
            lease_seconds=request.lease_seconds,
            auto_ack=request.auto_ack,
        )
        if not claim.deliveries:
            return []
        runs: list[Run] = []
        try:
            for delivery in claim.deliveries:
                rows = queue.log.refs(delivery.offsets)
                bodies = self.store.bodies([position for _, position, _ in rows])
                queue.delivered(delivery, [body.transaction_id for body in bodies])
                runs.append(Run(queue, delivery, rows, bodies))
            if claim.events:
                self.store.commit([(queue.number, event) for event in claim.events])
        except BaseException:
            for delivery in claim.deliveries:  # nobody gets them: do not make the next worker wait
                queue.release(request.group, delivery.partition)
            raise
        self.line.plan(queue, request.group)
        return runs

    def _count(self, runs: Sequence[Run], now: float) -> None:
        now_us = micros(now)
        for run in runs:
            self.tally.of(run.queue.name).popped(len(run.bodies), max(0, now_us - run.rows[0][2]))

    def wait(self, waiter: Waiter, now: float) -> None:
        """Serve the pop as soon as there is something for it."""
        self.line.add(waiter, now)

    def withdraw(self, waiter: Waiter) -> None:
        """The client is gone or its time is up."""
        self.line.remove(waiter)

    # -- ack -------------------------------------------------------------------------------------

    def ack(self, requests: Sequence[AckRequest], now: float, release: bool | None = None) -> list[AckAnswer]:
        """Settle messages; each has its own answer, those of one (partition, group) take effect together."""
        answers = [_UNKNOWN] * len(requests)
        places: dict[tuple[int, str], list[int]] = {}
        for place, request in enumerate(requests):
            places.setdefault((request[0], request[2]), []).append(place)
        for (number, group), mine in places.items():
            queue = self.store.by_number.get(number)
            if queue is None:
                continue
            acks = [_ack(requests[place]) for place in mine]
            decision = decide_acks(queue, group, acks, now, release)
            if decision.events:
                self.store.commit([(number, event) for event in decision.events])
            refused = 0
            for place, outcome in zip(mine, decision.outcomes, strict=True):
                answers[place] = AckAnswer(outcome, queue)
                if not outcome.success:
                    refused += 1
            tally = self.tally.of(queue.name)
            tally.acked(len(mine) - refused, refused)
            for event in decision.events:
                if isinstance(event, Acked) and event.dead_letters:
                    tally.dead_letters += len(event.dead_letters)
        return answers

    def extend(self, lease_id: str, seconds: float | None, now: float) -> Extension:
        """Renew a lease wherever it holds something; by default for a minute, or its queue's lease time."""
        renewed, known = 0, False
        expires_at: float | None = None
        for queue in self.store.queues.values():
            found = queue.extend(lease_id, seconds or max(60.0, queue.config.lease_length), now)
            known = known or found.known
            renewed += found.renewed
            if found.expires_at is not None:
                expires_at = found.expires_at if expires_at is None else min(expires_at, found.expires_at)
        return Extension(renewed, expires_at, known)

    # -- timed messages ---------------------------------------------------------------------------

    def plan_timed(self) -> None:
        """Have the node call when the next timed message is due; after a change and after a restart."""
        due_us = self.timed.next_due_us()
        if due_us is not None and (self._fires_at_us is None or due_us < self._fires_at_us):
            self._fires_at_us = due_us
            self.line.at(due_us / US, self._timed_due)

    def _timed_due(self) -> None:
        self._fires_at_us = None
        self._fire_wanted = True
        self.line.on_dirty()

    def _fire(self, now: float) -> None:
        self._fire_wanted = False
        timers = self.timed.due(micros(now))
        try:
            self._push_timed(timers, now)
        except LimitReached:
            # One full queue must not hold up the timers of others: each on its own, the refused ones later.
            for timer in timers:
                try:
                    self._push_timed([timer], now)
                except LimitReached:
                    self.timed.put_back([timer])
                    self.line.at(now + 1.0, self._timed_due)
        self.plan_timed()

    def _push_timed(self, timers: Sequence[Timed], now: float) -> None:
        if not timers:
            return
        items = [
            PushItem(t.queue, t.partition, Body(t.transaction_id, t.payload, producer=t.producer))
            for t in timers
        ]
        ended = self.timed.record(TimedChange([], [(timer.queue, timer.key) for timer in timers]))
        if self.spool.holds:
            self.spool.put(items)
            self.store.commit_extras(ended)
        else:
            self._store_all(items, now, ended)

    # -- time ------------------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Serve whoever was woken since the last turn."""
        if self._fire_wanted:
            self._fire(now)
        self.line.serve(now)

    def retain(self, now: float, *, eviction: bool = True, retention: bool = True) -> int:
        """One bounded step of retention and eviction over all queues; how many events it took."""
        done = 0
        for queue in list(self.store.aging.values()):
            config = queue.config
            if (eviction and config.max_wait_seconds) or (retention and config.retention_enabled):
                events = decide_retention(queue, now)
                if events:
                    self._count_aged(queue, events)
                    self.store.commit([(queue.number, event) for event in events])
                    done += len(events)
        return done

    def _count_aged(self, queue: PartitionedQueue, events: Sequence[QueueEvent]) -> None:
        tally = self.tally.of(queue.name)
        for event in events:
            if isinstance(event, Acked):
                tally.dead_letters += len(event.dead_letters)
                tally.evicted += len(event.dead_letters)
            elif isinstance(event, Trimmed):
                partitions = zip(event.partitions, event.firsts, strict=True)
                gone = sum(first - queue.partitions[index].first for index, first in partitions)
                if queue.config.retention_enabled:
                    tally.retained += gone
                else:
                    tally.evicted += gone


_UNKNOWN = AckAnswer(NOT_FOUND, None)


def _ack(request: AckRequest) -> Ack:
    return Ack(request[1], request[3], request[4], request[5], request[6])


def _by_queue(items: Sequence[PushItem]) -> Sequence[tuple[str, Sequence[PushItem]]]:
    if not items:
        return ()
    first = items[0][0]
    if all(item[0] == first for item in items):
        return ((first, items),)
    found: dict[str, list[PushItem]] = {}
    for item in items:
        found.setdefault(item[0], []).append(item)
    return tuple(found.items())


def _priority(queue: PartitionedQueue) -> int:
    return queue.config.priority_order
