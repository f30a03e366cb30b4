"""Pops: join the group if needed, claim messages, read their bodies.

Owns: how a request becomes claims, over one queue or many. Must not touch: the claiming rules (see the
queue), waiting pops (see ``WaitingLine``), wire names, clocks.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from holtmq.broker.partitioned.commands.delivery_marks import DeliveryMarks
from holtmq.broker.partitioned.counters import QueueCounters
from holtmq.broker.partitioned.events import NO_QUEUE
from holtmq.broker.partitioned.groups.further import Looks
from holtmq.broker.partitioned.groups.group import LOOKS, Delivery, micros
from holtmq.broker.partitioned.groups.joining import decide_join, decide_subscription
from holtmq.broker.partitioned.groups.subscriptions import Scope
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import Popped, PopRequest, Run
from holtmq.broker.partitioned.store import Change, MessagesSetAside, PartitionedStore
from holtmq.broker.partitioned.waiting.waiting_pops import WaitingLine
from holtmq.broker.partitioned.waiting.wide_pops import WideLines, matches

_FEW_HOMES: Final = 4_096
_QUEUE_LOOKS: Final = 4  # a queue takes as long as so many partitions
_JOIN_LOOKS: Final = 20  # the record of where a group starts
_LINED_UP: Final = 50  # queues that are put into a new line in the time of a look
_JOINED_MAX: Final = 100_000  # 180 bytes each; needs a bound because pops may name any partition


class Popping:
    """Runs pops over one queue or many. One per node."""

    def __init__(
        self,
        store: PartitionedStore,
        counters: QueueCounters,
        line: WaitingLine,
        wide: WideLines,
        lookback: float,
    ) -> None:
        self._store = store
        self._counters_of_queues = counters
        self._line = line
        self._wide = wide
        # Lease id -> numbers of the queues where it was granted.
        self._homes: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._found_homes = False
        self._lookback = lookback
        self.marks = DeliveryMarks(store, line)
        # Per pop over all its queues; the last message may exceed it. Its answer takes about 30 ms.
        self.most_bytes = 12 << 20
        self._joined: set[tuple[int, str, str]] = set()  # pops that need no join any more

    def pop(self, request: PopRequest, now: float, wrote: bool = False) -> Popped | None:
        """Deliver available messages, under a lease or auto-acked; None when there are none.

        A group's first pop records where it starts, even if it finds nothing. While the journal is stalled,
        nothing is delivered: an ack could not be stored.

        Of very many partitions or queues a pop looks at some. If these have nothing, its result has no runs,
        and the same pop again looks at others. ``wrote``: the one before wrote records.
        """
        if self._store.journal.failed is not None:
            raise self._store.journal.failed
        if self._store.journal.stalled:
            return None
        looks = Looks(LOOKS) if request.further is None else request.further.looks
        if request.queue:
            queue = self._store.queues.get(request.queue)
            wrote = self._join(request, queue, Scope(request.queue, request.partition), now) or wrote
            if queue is None or queue.paused is not None:
                return None
            most_bytes = min(request.most_bytes, self.most_bytes)
            runs = self._claim(queue, request, request.limit, request.most_partitions, most_bytes, looks, now)
        else:
            wrote, runs = self._pop_many(request, looks, now, wrote)
        if runs:
            self._count(runs, now)
            return Popped(request, runs, wrote or request.auto_ack)
        return Popped(request, runs, wrote) if looks.left <= 0 else None

    def _pop_many(self, request: PopRequest, looks: Looks, now: float, wrote: bool) -> tuple[bool, list[Run]]:
        scope = Scope("", "", request.namespace, request.task)
        wrote = self._join(request, None, scope, now) or wrote
        runs: list[Run] = []
        limit, most = request.limit, request.most_partitions
        left = min(request.most_bytes, self.most_bytes)
        if not self._wide.has_line(request.namespace, request.task, request.group):
            looks.left -= len(self._store.queues) // _LINED_UP
        line = self._wide.line(request.namespace, request.task, request.group)
        may_read = request.may_read
        for queue in line.take(now):
            if may_read is not None and not may_read(queue.name):
                line.offer(queue)  # another reader may have access
                continue
            if looks.left <= 0:
                line.offer(queue)
                break
            looks.left -= _QUEUE_LOOKS
            try:
                if self._join(request, queue, scope, now):
                    wrote = True
                    looks.left -= _JOIN_LOOKS
                if queue.paused is not None:
                    continue  # the event of its end puts the queue back in line
                found = self._claim(queue, request, limit, most, left, looks, now)
            except BaseException:
                line.offer(queue)  # nothing was delivered
                raise
            if not found and looks.left > 0:
                line.empty(queue)
                continue
            line.offer(queue)
            runs += found
            limit -= sum([len(run.bodies) for run in found])
            most -= len(found)
            left -= sum([len(body.payload) for run in found for body in run.bodies])
            if limit <= 0 or most <= 0 or left <= 0:
                break
        return wrote, runs

    def matching(self, namespace: str, task: str) -> list[PartitionedQueue]:
        """Every queue of a namespace and/or task; blank matches all."""
        return [queue for queue in self._store.queues.values() if matches(namespace, task, queue)]

    def _join(self, request: PopRequest, queue: PartitionedQueue | None, scope: Scope, now: float) -> bool:
        """Record where the group starts, if it is not recorded yet; return whether anything was written."""
        group = request.group
        key = (queue.number if queue is not None else NO_QUEUE, group, scope.partition or scope.queue)
        if queue is not None and key in self._joined:
            return False
        changes: list[Change] = []
        store = self._store
        named = queue if scope.queue else None
        made = decide_subscription(
            store.subscriptions, named, group, scope, request.start, now, self._lookback
        )
        if made is not None:
            # Two commits, because the start depends on the record. After a crash between them, the next pop
            # writes the missing start.
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
            if len(self._joined) >= _JOINED_MAX:
                self._joined.clear()
            self._joined.add(key)
        return made is not None or bool(changes)

    def forget_joined(self) -> None:
        """Drop the caches, after groups, queues or subscription records were deleted."""
        self._joined.clear()
        self._wide.clear()

    def _claim(
        self,
        queue: PartitionedQueue,
        request: PopRequest,
        limit: int,
        most: int,
        left: int,
        looks: Looks,
        now: float,
    ) -> list[Run]:
        while True:
            try:
                return self._claim_once(queue, request, limit, most, left, looks, now)
            except MessagesSetAside:
                continue  # the store has removed the unreadable messages; claim the rest

    def _claim_once(
        self,
        queue: PartitionedQueue,
        request: PopRequest,
        limit: int,
        most: int,
        left: int,
        looks: Looks,
        now: float,
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
            looks=looks,
            further=request.further,
        )
        if not claim.deliveries:
            return []
        try:
            runs = self._runs(queue, request.group, claim.deliveries, left)
            if claim.events:
                ends = {run.delivery.partition: run.delivery.end for run in runs}
                events = [replace(e, cursor=ends[e.partition]) for e in claim.events if e.partition in ends]
                self._store.commit([(queue.number, event) for event in events])
        except BaseException:
            for delivery in claim.deliveries:  # not delivered: do not make the next worker wait
                queue.leave_out(request.group, delivery)
            raise
        if not request.auto_ack:
            self._note_home(request.lease_id, queue.number)
            self.marks.note(queue, request.group, runs, now)
        self._line.plan(queue, request.group)
        return runs

    def _runs(
        self, queue: PartitionedQueue, group: str, deliveries: Sequence[Delivery], left: int
    ) -> list[Run]:
        """The messages of these deliveries, up to ``left`` bytes; the last one may exceed that."""
        refs = queue.log.refs
        rows = [row for delivery in deliveries for row in refs(delivery.offsets)]
        positions = [position for _, position, _ in rows]
        # The journal span from first to last bounds their total size: no need to check each.
        if max(positions) - min(positions) > left:
            return self._runs_within(queue, group, deliveries, left)
        bodies = self._store.bodies(positions)
        runs: list[Run] = []
        at = 0
        for delivery in deliveries:
            end = at + len(delivery.offsets)
            mine = bodies[at:end]
            queue.delivered(delivery, [body.transaction_id for body in mine])
            runs.append(Run(queue, delivery, rows[at:end], mine))
            at = end
        return runs

    def _runs_within(
        self, queue: PartitionedQueue, group: str, deliveries: Sequence[Delivery], left: int
    ) -> list[Run]:
        runs: list[Run] = []
        for delivery in deliveries:
            if left <= 0:
                queue.leave_out(group, delivery)
                continue
            rows = queue.log.refs(delivery.offsets)
            bodies, left = self._store.bodies_within([position for _, position, _ in rows], left)
            short = delivery.shortened(len(bodies))
            queue.delivered(short, [body.transaction_id for body in bodies])
            runs.append(Run(queue, short, rows[: len(bodies)], bodies))
        return runs

    def renewed(self, queue: PartitionedQueue, lease_id: str, now: float) -> None:
        """A lease ends later, which a restart must not forget."""
        for group in queue.groups.values():
            if group.leases.knows(lease_id):
                self.marks.renewed(queue, group.name, now)

    def _note_home(self, lease_id: str, number: int) -> None:
        homes = self._homes.get(lease_id, ())
        if number not in homes:
            self._homes[lease_id] = (*homes, number)
        if len(self._homes) > _FEW_HOMES:
            # Leases that end are not reported here. Two are looked at for each new one, so that about half of
            # all have not ended; to look at all from time to time would take 0.1 s if there are 100,000.
            for _ in range(2):
                held, numbers = self._homes.popitem(last=False)
                if left := tuple(home.number for home in self._known(numbers) if home.knows_lease(held)):
                    self._homes[held] = left

    def homes(self, lease_id: str) -> list[PartitionedQueue]:
        """The queues in which this lease may hold messages."""
        if not self._found_homes:
            self._find_homes()
        return self._known(self._homes.get(lease_id, ()))

    def _find_homes(self) -> None:
        """Of the leases that a restart did not end."""
        self._found_homes = True
        for queue in self._store.by_number.values():
            for group in queue.groups.values():
                for lease in group.leases.recorded.values():
                    self._note_home(lease.id, queue.number)

    def _known(self, numbers: Sequence[int]) -> list[PartitionedQueue]:
        by_number = self._store.by_number
        return [by_number[number] for number in numbers if number in by_number]

    def _count(self, runs: Sequence[Run], now: float) -> None:
        now_us = micros(now)
        for run in runs:
            self._counters_of_queues.of(run.queue.name).popped(
                len(run.bodies), max(0, now_us - run.rows[0][2])
            )
