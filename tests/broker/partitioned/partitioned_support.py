"""A node of partitioned queues in a few lines: what the broker does with the rules, without disk or wire.

Owns: what the tests of the partitioned core share. Must not touch: clocks; ``node.now`` is the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holtmq.broker.partitioned.commands.acking import decide_acks
from holtmq.broker.partitioned.commands.pushing import PushDecision, decide_push
from holtmq.broker.partitioned.events import (
    NO_QUEUE,
    Event,
    Pushed,
    QueueConfigured,
    Subscribed,
    SubscriptionMoved,
    SubscriptionsForgotten,
    decode_all,
    encode,
)
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckOutcome, AckStatus
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, micros
from holtmq.broker.partitioned.groups.joining import decide_join, decide_subscription
from holtmq.broker.partitioned.groups.subscriptions import Scope, Subscriptions, read_start
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.queue_config import QueueConfig


@dataclass(frozen=True, slots=True)
class Popped:
    """One message in a worker's hands."""

    queue: str
    partition: int
    transaction_id: str
    lease_id: str
    attempt: int


class Node:
    """Queues by name, their subscriptions, a journal in memory, and a clock the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.queues: dict[str, PartitionedQueue] = {}
        self.subscriptions = Subscriptions()
        self.stored: dict[int, list[str]] = {}  # queue number -> transaction ids by offset
        self.journal: list[bytes] = []
        self.leases = 0

    @property
    def queue(self) -> PartitionedQueue:
        """The only queue of a test that has one."""
        return self.queues["q"]

    def create(
        self, name: str = "q", namespace: str = "", task: str = "", **options: object
    ) -> PartitionedQueue:
        number = len(self.stored) + 1
        config = QueueConfig(**options)  # type: ignore[arg-type]
        self.stored[number] = []
        self.commit(number, QueueConfigured(name, namespace, task, config, micros(self.now)))
        return self.queues[name]

    def _new(self, number: int, event: QueueConfigured) -> None:
        stored = self.stored[number]
        self.queues[event.name] = PartitionedQueue(number, event, lambda offset, position: stored[offset])

    def commit(self, number: int, *events: Event) -> None:
        self.journal.append(b"".join(encode(number, event) for event in events))
        for event in events:
            self.apply(number, event)

    def apply(self, number: int, event: Event) -> None:
        if isinstance(event, Subscribed | SubscriptionMoved | SubscriptionsForgotten):
            self.subscriptions.apply(event)
            return
        known = next((queue for queue in self.queues.values() if queue.number == number), None)
        if known is None:
            assert isinstance(event, QueueConfigured)
            self._new(number, event)
        else:
            count = len(event.partitions) if isinstance(event, Pushed) else 0
            known.apply(event, range(known.log.next_offset, known.log.next_offset + count))  # type: ignore[arg-type]
            if isinstance(event, Pushed):
                known.show(event)

    def restart(self) -> None:
        """Forget everything but the journal, and fold that."""
        self.queues, self.subscriptions = {}, Subscriptions()
        for record in self.journal:
            for number, event in decode_all(record):
                self.apply(number, event)

    def push(self, partition: str, *ids: str, queue: str = "q") -> PushDecision:
        target = self.queues[queue]
        decision = decide_push(target, [(partition, one) for one in ids], self.now)
        if decision.event is not None:
            fresh = [one for place, one in enumerate(ids) if place not in decision.duplicates]
            self.stored[target.number] += fresh
            self.commit(target.number, decision.event)
        return decision

    def pop(
        self,
        group: str = QUEUE_MODE,
        batch: int = 1,
        *,
        queue: str = "q",
        partition: str = "",
        partitions: int = 1,
        mode: str | None = None,
        start: str | None = None,
        default_mode: str = "",
        lookback: float = 0,
        auto_ack: bool = False,
        conflates: bool = False,
    ) -> list[Popped]:
        """Pop from one queue, as the two queue-naming forms of the API do."""
        source = self.queues.get(queue)
        request = read_start(mode, start, default_mode)
        scope = Scope(queue, partition)
        made = decide_subscription(self.subscriptions, source, group, scope, request, self.now, lookback)
        if made is not None:
            self.commit(NO_QUEUE, made)
        if source is None:
            return []
        return self._claim(source, group, batch, partition, partitions, made, auto_ack, conflates)

    def pop_scope(
        self, group: str, namespace: str = "", task: str = "", mode: str | None = None, batch: int = 10
    ) -> list[Popped]:
        """Pop from any queue of a namespace and/or task."""
        scope = Scope("", "", namespace, task)
        request = read_start(mode, None)
        made = decide_subscription(self.subscriptions, None, group, scope, request, self.now, 0)
        if made is not None:
            self.commit(NO_QUEUE, made)
        popped: list[Popped] = []
        for queue in list(self.queues.values()):
            if namespace in ("", queue.namespace) and task in ("", queue.task):
                popped += self._claim(queue, group, batch - len(popped), "", 10, made, False, False)
        return popped

    def _claim(
        self,
        queue: PartitionedQueue,
        group: str,
        batch: int,
        partition: str,
        partitions: int,
        made: Subscribed | None,
        auto_ack: bool,
        conflates: bool,
    ) -> list[Popped]:
        started = decide_join(
            self.subscriptions, queue, group, partition=partition, made=made, conflates=conflates
        )
        if started is not None:
            self.commit(queue.number, started)
        self.leases += 1
        claim = queue.claim(
            group,
            f"lease-{self.leases}",
            batch,
            self.now,
            partition=partition or None,
            most_partitions=partitions,
            auto_ack=auto_ack,
        )
        popped: list[Popped] = []
        for delivery in claim.deliveries:
            ids = [self.stored[queue.number][offset] for offset in delivery.offsets]
            queue.delivered(delivery, ids)
            lease_id = "" if delivery.lease is None else delivery.lease.id
            popped += [Popped(queue.name, delivery.partition, one, lease_id, delivery.attempt) for one in ids]
        if claim.events:
            self.commit(queue.number, *claim.events)
        return popped

    def ack(
        self,
        messages: Sequence[Popped],
        *statuses: AckStatus | None,
        group: str = QUEUE_MODE,
        lease: bool = True,
        error: str | None = None,
        release: bool | None = None,
    ) -> list[AckOutcome]:
        """Ack messages of one queue; one status for all, or one for each."""
        said = list(statuses) or [AckStatus.COMPLETED]
        if len(said) == 1:
            said *= len(messages)
        queue = self.queues[messages[0].queue]
        acks = [
            Ack(m.partition, m.transaction_id, status, m.lease_id if lease else "", error)
            for m, status in zip(messages, said, strict=True)
        ]
        decision = decide_acks(queue, group, acks, self.now, release)
        if decision.events:
            self.commit(queue.number, *decision.events)
        return decision.outcomes


def node_with(**options: bool | float | None) -> Node:
    """A node whose queue ``q`` has the given options."""
    node = Node()
    node.create("q", "", "", **options)
    return node


def ids(popped: Sequence[Popped]) -> list[str]:
    return [message.transaction_id for message in popped]
