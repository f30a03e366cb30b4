"""``POST /api/v1/transaction``: acks, pushes, keyed rows and timers that happen together or not at all.

Owns: reading these requests and the error texts. Must not touch: the rules; a refused transaction is an
answer (200, ``success: false``), not an error.
"""

from collections.abc import Generator, Sequence
from enum import Enum
from typing import Final
from uuid import uuid4

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.errors import BrokerError
from holtmq.broker.partitioned.commands.atomic_commit import PartitionedPart, transact
from holtmq.broker.partitioned.commands.looking_up import looking_up
from holtmq.broker.partitioned.extras.keyed import KeyDecision, KeyOp
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckRefused, AckStatus, AckVerdict
from holtmq.broker.partitioned.groups.group import QUEUE_MODE, micros
from holtmq.broker.partitioned.log.identifiers import partition_id, partition_of
from holtmq.broker.partitioned.requests import AckRequest, PushItem
from holtmq.broker.work.timed_leases import WorkAck, WorkPush
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.context import Context
from holtmq.http.engine.errors import Refusal, invalid_json
from holtmq.http.engine.request import HttpRequest
from holtmq.http.engine.waiting_requests import in_turn_or_as_task
from holtmq.http.engine.wire import quoted, quoted_or_null
from holtmq.http.extras.keyed import (
    KvRefused,
    check_answer,
    check_rights,
    lost_out,
    read_operations,
    result_out,
    stores,
)
from holtmq.http.extras.keyed import OperationIn as KeyOperationIn
from holtmq.http.extras.timers import TimerOperations
from holtmq.http.queues.ack import NEEDS_PARTITION, NEEDS_TRANSACTION, NOWHERE, document_of
from holtmq.http.queues.delayed_push import DelayedPushes, delay_of
from holtmq.http.queues.push import PushItemIn, check_text, explain_items, read_item
from holtmq.http.queues.rendering import ack_verdict, refusal_text
from holtmq.http.queues.request_bounds import OPERATIONS, check_queues, check_size
from holtmq.http.queues.work import WorkApi


class OperationIn(msgspec.Struct, rename="camel"):
    """One operation of a transaction: an ack, pushes, or one push with its fields right here."""

    type: str
    items: list[PushItemIn] | None = None
    queue: str | None = None
    partition: str | None = None
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    delay_seconds: float | None = None
    transaction_id: str | None = None
    trace_id: str | None = None
    partition_id: str | None = None
    status: str | None = None
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None


class TransactionIn(msgspec.Struct, rename="camel"):
    operations: list[OperationIn] | None = None
    required_leases: list[str] | None = None
    kv: list[KeyOperationIn] | None = None
    timers: list[dict[str, object]] | None = None


_read_transaction: Final = msgspec.json.Decoder(TransactionIn).decode


class TransactionApi:
    """The handler for transactions."""

    def __init__(self, context: Context, work: WorkApi) -> None:
        self._service = context.service
        self._work = work
        self._journal = context.journal
        self._clock = context.clock
        self._max_batch = context.config.http.max_batch
        self._check_alarm = context.check_alarm
        self._check_partitioned = context.check_partitioned

    def transaction(self, request: HttpRequest) -> None:
        body = request.body
        try:
            incoming = _read_transaction(body)
        except msgspec.MsgspecError as error:
            raise _explain_transaction(body, error) from None
        check_text(body)
        operations = incoming.operations
        if operations is None:
            if not incoming.kv and not incoming.timers:
                raise Refusal(400, "operations array required")
            operations = []
        if not operations and not incoming.kv and not incoming.timers:
            raise Refusal(400, "operations array cannot be empty")
        own_id = str(uuid4())
        leases = incoming.required_leases or []
        fallback = leases[0] if len(leases) == 1 else ""
        leases_only = not any(operation.lease_id for operation in operations)
        asked = _Asked()
        for operation in operations:
            if operation.type == "push":
                for item, seconds in _pushed_by(operation, request.subject):
                    asked.push(item, self._work.find(item.queue), seconds)
            elif operation.type == "ack":
                asked.partitions.add(operation.partition_id or "")
                asked.ack(_ack_of(operation, fallback, self._work))
            else:
                request.answer(200, _failure(own_id, f"Unknown operation type: {operation.type}"))
                return
        sender = request.identity
        for name in asked.queues:
            sender.require(Action.WRITE, name)
        for partition in asked.partitions:
            if (name_of := self._work.queue_name(partition)) is not None:
                sender.require(Action.READ, name_of)
        order = asked.order
        check_size(len(order), min(self._max_batch, OPERATIONS), "operations")
        check_queues(asked.queues, self._work.exists)
        in_turn_or_as_task(
            request, "transaction in steps", self._committing(request, incoming, asked, own_id, leases_only)
        )

    def _committing(
        self, request: HttpRequest, incoming: TransactionIn, asked: "_Asked", own_id: str, leases_only: bool
    ) -> Generator[None, None, None]:
        """Look the acknowledged messages up, then commit at once and answer."""
        acks: dict[tuple[int, str], list[Ack]] = {}
        for each in asked.acks:
            acks.setdefault((each.queue, each.group), []).append(each.ack)
        with looking_up() as look_up:
            for (number, group), some in acks.items():
                queue = self._service.store.by_number.get(number)
                if queue is not None:
                    yield from look_up.acknowledged(queue, group, some, self._clock())
            if acks:
                yield
            self._commit(request, incoming, asked, own_id, leases_only)

    def _commit(
        self, request: HttpRequest, incoming: TransactionIn, asked: "_Asked", own_id: str, leases_only: bool
    ) -> None:
        sender, order, now = request.identity, asked.order, self._clock()
        timer_operations = TimerOperations(self._service, request.subject, now)
        try:
            ops = read_operations(incoming.kv or ())
            for timer in incoming.timers or ():
                timer_operations.add(timer)
        except KvRefused as refused:
            code = "kv_bad_request" if incoming.kv else "timers_bad_request"
            raise Refusal(refused.status, str(refused), code) from None
        check_rights(sender, ops)
        timer_operations.check_rights(sender)
        if asked.items or asked.delayed or asked.work_pushes or timer_operations.queues or stores(ops):
            self._check_alarm()
        for name in timer_operations.queues:
            self._check_partitioned(name)
        keyed = self._service.keyed.decide(ops, micros(now))
        if keyed.failed is not None:
            lost = {"transactionId": own_id, **lost_out(keyed, len(order) + keyed.failed), "results": []}
            request.answer(200, msgspec.json.encode(lost))
            return
        try:
            check_answer(sender, ops, keyed)
        except KvRefused as refused:
            raise Refusal(refused.status, str(refused)) from None
        state_records = [*keyed.state_records, *self._service.timed.record(timer_operations.change)]
        delayed = DelayedPushes(self._service, now)
        later = [delayed.add(*push) for push in asked.delayed]
        part = PartitionedPart(asked.items, asked.acks, now, [*state_records, *delayed.records])
        try:
            if asked.work_pushes or asked.work_acks:
                self._work.transact(part, asked.work_pushes, asked.work_acks)
            else:
                transact(self._service, part)
        except AckRefused as refused:
            text = f"ACK operation failed: {refusal_text(refused.verdict)}"
            if refused.verdict is AckVerdict.INVALID_LEASE and not leases_only:
                text += "; transaction rolled back"  # newer clients search for this text
            request.answer(200, _failure(own_id, text))
            return
        except BrokerError as error:
            request.answer(200, _failure(own_id, str(error)))
            return
        parts = [self._result(index, asked, part, later, *which) for index, which in enumerate(order)]
        parts += _operation_results(len(order), ops, keyed, timer_operations.results)
        if timer_operations.results or later:
            self._service.plan_timed()
        answer = f'{{"transactionId":"{own_id}","success":true,"results":[{",".join(parts)}]}}'
        request.answer_when_durable(self._journal, 200, answer.encode())

    def _result(
        self,
        index: int,
        asked: "_Asked",
        part: PartitionedPart,
        later: Sequence[tuple[str, bool, str | None]],
        kind: "_Kind",
        place: int,
    ) -> str:
        head = f'{{"index":{index},"type":"{"push" if kind in _PUSHES else "ack"}",'
        if kind is _Kind.WORK_PUSH:
            push = asked.work_pushes[place]
            name = quoted(push.transaction_id)
            return (
                f'{head}"success":true,"duplicate":false,"transactionId":{name},"messageId":{name},'
                f'"partitionId":"{self._work.partition_id(push.queue)}","queueName":{quoted(push.queue.name)}}}'
            )
        if kind is _Kind.WORK_ACK:
            ack = asked.work_acks[place]
            filed = "true" if ack.status is AckStatus.DEAD_LETTER else "false"
            return (
                f'{head}"transactionId":{quoted(ack.transaction_id)},"success":true,"error":null,'
                f'"leaseReleased":true,"dlq":{filed},"noop":false}}'
            )
        if kind is _Kind.DELAYED:
            (item, _), (message_id, duplicate, where) = asked.delayed[place], later[place]
            return (
                f'{head}"success":{"false" if duplicate else "true"},'
                f'"duplicate":{"true" if duplicate else "false"},'
                f'"transactionId":{quoted(item.body.transaction_id)},"messageId":"{message_id}",'
                f'"partitionId":{quoted_or_null(where)},"queueName":{quoted(item.queue)}}}'
            )
        if kind is _Kind.ACK:
            verdict = ack_verdict(part.answers[place].outcome, None)
            return f'{head}"transactionId":{quoted(asked.acks[place].transaction_id)},{verdict}}}'
        item = asked.items[place]
        name = quoted(item.body.transaction_id)
        if part.results is None:
            return (
                f'{head}"success":true,"duplicate":false,"status":"buffered","transactionId":{name},'
                f'"messageId":null,"partitionId":null,"queueName":{quoted(item.queue)}}}'
            )
        number, partition, offset, created_us, duplicate = part.results[place]
        message_id = self._service.store.by_number[number].id_of(offset, created_us)
        return (
            f'{head}"success":{"false" if duplicate else "true"},'
            f'"duplicate":{"true" if duplicate else "false"},"transactionId":{name},'
            f'"messageId":"{message_id}",'
            f'"partitionId":"{partition_id(number, partition)}","queueName":{quoted(item.queue)}}}'
        )


class _Kind(Enum):
    PUSH = 0
    ACK = 1
    WORK_PUSH = 2
    WORK_ACK = 3
    DELAYED = 4


_PUSHES: Final = (_Kind.PUSH, _Kind.WORK_PUSH, _Kind.DELAYED)


class _Asked:
    """A transaction's operations, grouped by kind, and their order in the request."""

    def __init__(self) -> None:
        self.items: list[PushItem] = []
        self.delayed: list[tuple[PushItem, float]] = []  # with the delay in seconds
        self.acks: list[AckRequest] = []
        self.work_pushes: list[WorkPush] = []
        self.work_acks: list[WorkAck] = []
        self.order: list[tuple[_Kind, int]] = []  # the kind, and the index in the list of that kind
        self.queues: set[str] = set()  # names that are pushed to
        self.partitions: set[str] = set()  # ids whose messages are acknowledged

    def push(self, item: PushItem, queue: WorkQueue | None, seconds: float) -> None:
        self.queues.add(item.queue)
        if queue is None and seconds:
            self.order.append((_Kind.DELAYED, len(self.delayed)))
            self.delayed.append((item, seconds))
        elif queue is None:
            self.order.append((_Kind.PUSH, len(self.items)))
            self.items.append(item)
        else:
            self.order.append((_Kind.WORK_PUSH, len(self.work_pushes)))
            delay_ms = int(seconds * 1000)
            self.work_pushes.append(WorkPush(queue, item.body.transaction_id, item.body.payload, delay_ms))

    def ack(self, request: AckRequest | WorkAck) -> None:
        if isinstance(request, AckRequest):
            self.order.append((_Kind.ACK, len(self.acks)))
            self.acks.append(request)
        else:
            self.order.append((_Kind.WORK_ACK, len(self.work_acks)))
            self.work_acks.append(request)


def _operation_results(
    first: int, ops: Sequence[KeyOp], keyed: KeyDecision, timers: Sequence[dict[str, object]]
) -> list[str]:
    """Results of keyed rows and timers, numbered on from the operations' results."""
    rows: list[dict[str, object]] = []
    for place, (op, result) in enumerate(zip(ops, keyed.results, strict=True)):
        rows.append({**result_out(place, op, result), "type": "kv", "opIndex": place})
    rows += [{**row, "type": "timer", "opIndex": place} for place, row in enumerate(timers)]
    return [
        msgspec.json.encode(
            {**row, "index": index, "success": bool(row.get("applied", row.get("ok", True)))}
        ).decode()
        for index, row in enumerate(rows, first)
    ]


def _failure(own_id: str, text: str) -> bytes:
    return f'{{"transactionId":"{own_id}","success":false,"error":{quoted(text)},"results":[]}}'.encode()


def _pushed_by(operation: OperationIn, subject: str | None) -> list[tuple[PushItem, float]]:
    """The items to push, each with its delay in seconds."""
    if operation.items is not None:
        return [(read_item(item, subject), delay_of(item.delay_seconds)) for item in operation.items]
    if operation.queue is None:
        raise Refusal(400, "items array is required")
    flat = PushItemIn(operation.queue)
    for payload in (operation.payload, operation.data):
        if isinstance(payload, msgspec.Raw):
            flat.payload = payload
            break
    flat.partition, flat.trace_id = operation.partition, operation.trace_id
    flat.transaction_id = operation.transaction_id
    return [(read_item(flat, subject), delay_of(operation.delay_seconds))]


def _ack_of(operation: OperationIn, fallback_lease: str, work: WorkApi) -> AckRequest | WorkAck:
    if not operation.transaction_id:
        raise Refusal(400, NEEDS_TRANSACTION)
    if not operation.partition_id:
        raise Refusal(400, NEEDS_PARTITION)
    status = AckStatus.named(operation.status or "completed")
    lease_id = operation.lease_id or fallback_lease
    if work.owns(operation.partition_id):
        return WorkAck(work.queue_of(operation.partition_id), operation.transaction_id, lease_id, status)
    where = partition_of(operation.partition_id) or NOWHERE
    group = operation.consumer_group or QUEUE_MODE
    return AckRequest(*where, group, operation.transaction_id, status, lease_id, operation.error)


def _explain_transaction(body: bytes, error: Exception) -> Refusal:
    document = document_of(body)
    operations = document.get("operations") if isinstance(document, dict) else None
    if not isinstance(operations, list):
        return Refusal(400, "operations array required")
    for operation in operations:
        if isinstance(operation, dict) and operation.get("type") == "push" and "items" in operation:
            found = explain_items(operation["items"])
            if found is not None:
                return found
    return invalid_json(error)
