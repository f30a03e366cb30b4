"""Work queues over HTTP: push, pop, ack and extend for a name that is a work queue.

Owns: the wire form. Must not touch: leases and queues; ``TimedLeases`` does that. A work queue has no
partitions, so its "partition" is the queue itself; consumer groups have no meaning here.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from holtmq.auth.permissions import Action
from holtmq.auth.rights import Identity
from holtmq.broker.partitioned.commands.atomic_commit import PartitionedPart
from holtmq.broker.partitioned.groups.acknowledgment import AckStatus, AckVerdict
from holtmq.broker.partitioned.log.identifiers import partition_of
from holtmq.broker.partitioned.requests import PushItem
from holtmq.broker.streams.cross_kind_transaction import CrossKindTransactions
from holtmq.broker.work.timed_leases import TimedLeases, WorkAck, Worker, WorkMessage, WorkPush
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.context import Context
from holtmq.http.engine.request import HttpRequest
from holtmq.http.engine.uuid_pool import new_uuid
from holtmq.http.engine.wire import iso_us, quoted, quoted_or_null
from holtmq.http.queues.rendering import ACK_ERRORS

if TYPE_CHECKING:
    from holtmq.http.queues.ack import AckIn
    from holtmq.http.queues.pop import Parameters

_PREFIX: Final = "w"
_DIGITS_MAX: Final = 18  # of a queue's number: Python converts 4,300 at most, and slowly
_LEASE_SECONDS: Final = 300.0
_FULL: Final = "the queue is full and refuses publishers"


class WorkApi:
    """What the push, pop, ack and transaction handlers call for work queues."""

    def __init__(self, context: Context) -> None:
        self._broker = context.broker
        self._queues = context.service.store.queues
        self._by_number = context.service.store.by_number
        self._journal = context.journal
        self._clock = context.clock
        self._leases = TimedLeases(context.broker)
        self._transactions = CrossKindTransactions(context.broker, context.service, self._leases)

    def find(self, name: str) -> WorkQueue | None:
        """The work queue of this name, unless a partitioned queue has the name."""
        return None if name in self._queues else self._leases.find(name)

    def exists(self, name: str) -> bool:
        """Whether there is a queue of this name, of either kind."""
        return name in self._queues or self._leases.find(name) is not None

    @staticmethod
    def owns(partition_id: str) -> bool:
        """Whether a partition id is a work queue's."""
        return partition_id.startswith(_PREFIX)

    def push(self, queue: WorkQueue, items: Sequence[tuple[int, PushItem]]) -> list[tuple[int, bytes]]:
        """Publish items; return (index, result element) of each."""
        self._tick()
        taken = self._leases.push(queue, [(item.body.transaction_id, item.body.payload) for _, item in items])
        return [
            (index, _pushed(index, queue, item, accepted))
            for (index, item), accepted in zip(items, taken, strict=True)
        ]

    def later(self, queue: WorkQueue, item: PushItem, seconds: float) -> WorkPush:
        """A delayed push, for ``transact``."""
        return WorkPush(queue, item.body.transaction_id, item.body.payload, int(seconds * 1000))

    def element(self, index: int, queue: WorkQueue, item: PushItem) -> bytes:
        """The result element of an accepted push."""
        return _pushed(index, queue, item, accepted=True)

    def push_to_both(
        self, part: PartitionedPart, items: Sequence[tuple[int, PushItem, WorkQueue]]
    ) -> list[tuple[int, bytes]]:
        """Publish items and commit the part for partitioned queues, or raise and do neither. Returns (index,
        result element) of each item."""
        pushes = [WorkPush(queue, item.body.transaction_id, item.body.payload) for _, item, queue in items]
        self.transact(part, pushes, ())
        return [(index, _pushed(index, queue, item, accepted=True)) for index, item, queue in items]

    def pop(self, request: HttpRequest, asked: "Parameters", queue: WorkQueue) -> None:
        """Answer with messages that are ready, or wait for some."""
        self._tick()
        lease_id = new_uuid()
        seconds = asked.lease_seconds or _LEASE_SECONDS

        def answer(messages: list[WorkMessage]) -> None:
            self._deliver(request, asked, messages, lease_id)

        worker = Worker(request.identity.name, request.connection.peer.address)
        found = self._leases.pop(queue, lease_id, asked.limit, seconds, asked.auto_ack, worker)
        if found:
            self._leases.write_down()
            answer(found)
            return
        if asked.wait_seconds <= 0:
            request.answer_empty()
            return

        lasting = request.connection.engine.lasting

        def ended() -> None:
            timer.cancel()
            request.on_lost = None
            lasting.end(request)

        def deliver(messages: list[WorkMessage]) -> None:
            ended()
            # In a later loop iteration: the queue is delivering to its consumers right now, and what that
            # settles is not in the journal yet.
            loop.call_soon(answer, messages)
            loop.call_soon(self._leases.withdraw, waiting)

        def give_up() -> None:
            ended()
            self._leases.withdraw(waiting)
            request.answer_empty()

        def lost() -> None:
            ended()
            self._leases.withdraw(waiting)

        def check(sender: Identity) -> None:
            sender.require(Action.READ, asked.queue)

        def refuse(error: Exception) -> None:
            ended()
            self._leases.withdraw(waiting)
            request.fail(error)

        request.connection.free_body(request)
        waiting = self._leases.wait(
            queue, lease_id, asked.limit, seconds, asked.auto_ack, deliver, give_up, worker
        )
        loop = asyncio.get_running_loop()
        timer = loop.call_later(asked.wait_seconds, give_up)
        request.on_lost = lost
        lasting.begin(request, check, refuse)

    def _deliver(
        self, request: HttpRequest, asked: "Parameters", messages: list[WorkMessage], lease_id: str
    ) -> None:
        body = _popped(messages, "" if asked.auto_ack else lease_id, asked.group)
        if not asked.auto_ack:
            request.on_dropped = lambda: self._give_back(lease_id)
        request.answer_when_durable(self._journal, 200, body)

    def _give_back(self, lease_id: str) -> None:
        """Return messages whose client left before the answer: others need not wait for the lease to end."""
        self._tick()
        self._leases.give_back(lease_id)

    def settle(self, acks: Sequence[tuple[int, "AckIn"]]) -> list[tuple[int, str]]:
        """Settle messages of work queues; takes (index, ack) and returns (index, answer) of each."""
        self._tick()
        answers = [(index, self._settle(index, ack)) for index, ack in acks]
        self._leases.write_down()
        return answers

    def _settle(self, index: int, ack: "AckIn") -> str:
        queue = self.queue_of(ack.partition_id)
        status = AckStatus.named(ack.status or "completed")
        if status is None:
            verdict = AckVerdict.UNKNOWN_STATUS
        elif queue is None:
            verdict = AckVerdict.NOT_FOUND
        else:
            verdict = self._leases.settle(queue, ack.transaction_id, ack.lease_id or "", status)
        name = quoted_or_null(queue.name if queue is not None else None)
        success = "true" if verdict.success else "false"
        dead = "true" if verdict is AckVerdict.FILED else "false"
        return (
            f'{{"index":{index},"transactionId":{quoted(ack.transaction_id)},'
            f'"success":{success},"error":{quoted_or_null(ACK_ERRORS.get(verdict))},'
            f'"message":"{verdict.value}","queueName":{name},"partitionName":"Default",'
            f'"leaseReleased":{success},"dlq":{dead}}}'
        )

    def queue_of(self, partition_id: str) -> WorkQueue | None:
        """The work queue of a partition id that we own; None when there is none."""
        number = partition_id[len(_PREFIX) :]
        is_number = number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX
        return self._leases.by_id(int(number)) if is_number else None

    def queue_name(self, partition_id: str) -> str | None:
        """The name of the queue, of either kind, that a partition id belongs to; None when there is none."""
        if self.owns(partition_id):
            work = self.queue_of(partition_id)
            return None if work is None else work.name
        where = partition_of(partition_id)
        queue = self._by_number.get(where[0]) if where is not None else None
        return None if queue is None else queue.name

    @staticmethod
    def partition_id(queue: WorkQueue) -> str:
        """The partition id of a work queue; ``queue_of`` is the reverse."""
        return f"{_PREFIX}{queue.id}"

    def transact(self, part: PartitionedPart, pushes: Sequence[WorkPush], acks: Sequence[WorkAck]) -> None:
        """Run a transaction that names work queues; raises the first refusal, and then nothing changed."""
        self._tick()
        self._transactions.transact(part, pushes, acks)

    def queue_of_lease(self, lease_id: str) -> str | None:
        """The name of the work queue whose messages a lease holds; None when it is not a lease of ours."""
        return self._leases.queue_of_lease(lease_id)

    def extend(self, lease_id: str, seconds: float | None) -> float | None:
        """Renew a lease; return when it expires, or None when it is not a lease of ours."""
        self._tick()
        return self._leases.extend(lease_id, seconds or _LEASE_SECONDS)

    def _tick(self) -> None:
        self._broker.flow.now_ms = int(self._clock() * 1000)


def _pushed(index: int, queue: WorkQueue, item: PushItem, accepted: bool) -> bytes:
    name = quoted(item.body.transaction_id)
    fate = '"status":"queued"' if accepted else f'"status":"failed","error":{quoted(_FULL)}'
    return (
        f'{{"index":{index},{fate},"transaction_id":{name},"message_id":{name},'
        f'"partition_id":"{_PREFIX}{queue.id}","trace_id":{quoted_or_null(item.body.trace_id)},'
        f'"queueName":{quoted(queue.name)}}}'
    ).encode()


def _popped(messages: list[WorkMessage], lease_id: str, group: str) -> bytes:
    queue = messages[0].queue
    where = (
        f'"queue":{quoted(queue.name)},"partition":"Default","partitionId":"{_PREFIX}{queue.id}",'
        f'"leaseId":"{lease_id}","consumerGroup":{quoted(group)}'
    )
    parts = [
        b"".join(
            (
                f'{{"id":"{_PREFIX}{queue.id}-{message.seq:016x}","traceId":null,"producerSub":null,'
                f'"transactionId":{quoted(message.transaction_id)},'
                f'"createdAt":"{iso_us(message.created_ms * 1000)}","data":'.encode(),
                message.payload,
                f',{where},"deliveryAttempt":{message.attempt}}}'.encode(),
            )
        )
        for message in messages
    ]
    head = f'{{"success":true,{where},"partitionsClaimed":1,"messages":['
    return b"".join((head.encode(), b",".join(parts), b"]}"))
