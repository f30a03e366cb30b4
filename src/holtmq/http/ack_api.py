"""Acknowledgments, transactions and lease renewal over HTTP.

Owns: reading these requests and the texts of what is wrong with them. Must not touch: the rules; a refused
ack is an answer (200, ``success: false``), not an error.
"""

from collections.abc import Sequence
from typing import Final
from uuid import uuid4

import msgspec

from holtmq.broker.errors import BrokerError, LeaseLost
from holtmq.broker.partitioned.acknowledgment import Ack, AckStatus
from holtmq.broker.partitioned.bundle import transact
from holtmq.broker.partitioned.clean_acks import CleanRun
from holtmq.broker.partitioned.groups import QUEUE_MODE, micros
from holtmq.broker.partitioned.identifiers import message_id, partition_id, partition_of
from holtmq.broker.partitioned.keyed import KeyDecision, KeyOp
from holtmq.broker.partitioned.queue import Extension
from holtmq.broker.partitioned.requests import AckRequest, PushItem
from holtmq.http.context import Context
from holtmq.http.errors import EMPTY_BODY, Refusal, invalid_json
from holtmq.http.keyed_api import KvRefused, lost_out, read_operation, result_out
from holtmq.http.keyed_api import OperationIn as KeyOperationIn
from holtmq.http.protocol import Exchange
from holtmq.http.push_api import PushItemIn, check_text, explain_items, read_item
from holtmq.http.rendering import ack_answers, ack_verdict, clean_answers
from holtmq.http.timers_api import Riders
from holtmq.http.wire import iso_seconds, quoted, quoted_or_null, segment
from holtmq.http.work_api import WorkApi

LEASE_PREFIX: Final = b"/api/v1/lease/"
LEASE_SUFFIX: Final = b"/extend"
_NOWHERE: Final = (0, 0)  # no queue has number 0
_MOST_LEASE: Final = 86_400.0
_COMPLETED: Final = AckStatus.COMPLETED


class AckIn(msgspec.Struct, rename="camel", gc=False):
    """One acknowledgment as it comes."""

    transaction_id: str
    partition_id: str
    status: str | None = None
    consumer_group: str | None = None
    lease_id: str | None = None
    error: str | None = None


class BatchIn(msgspec.Struct, rename="camel"):
    acknowledgments: list[AckIn]
    consumer_group: str | None = None


class OperationIn(msgspec.Struct, rename="camel"):
    """One operation of a transaction: an ack, pushes, or one push with its fields right here."""

    type: str
    items: list[PushItemIn] | None = None
    queue: str | None = None
    partition: str | None = None
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
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


class ExtendIn(msgspec.Struct):
    seconds: float | None = None


_read_ack: Final = msgspec.json.Decoder(AckIn).decode
_read_batch: Final = msgspec.json.Decoder(BatchIn).decode
_read_transaction: Final = msgspec.json.Decoder(TransactionIn).decode
_read_extend: Final = msgspec.json.Decoder(ExtendIn).decode


class AckApi:
    """See the module."""

    def __init__(self, context: Context, work: WorkApi) -> None:
        self._service = context.service
        self._work = work
        self._journal = context.journal
        self._clock = context.clock
        self._max_batch = context.config.http.max_batch

    def ack(self, exchange: Exchange) -> None:
        body = exchange.body
        try:
            incoming = _read_ack(body)
        except msgspec.MsgspecError as error:
            raise _explain_ack(body, error) from None
        if not incoming.transaction_id:
            raise Refusal(400, _NEEDS_TRANSACTION)
        if not incoming.partition_id:
            raise Refusal(400, _NEEDS_PARTITION)
        self._settle(exchange, [incoming], None)

    def ack_batch(self, exchange: Exchange) -> None:
        body = exchange.body
        try:
            batch = _read_batch(body)
        except msgspec.MsgspecError as error:
            raise _explain_batch(body, error) from None
        if len(batch.acknowledgments) > self._max_batch:
            raise Refusal(413, f"more than {self._max_batch} acknowledgments", "batch_too_large")
        self._settle(exchange, batch.acknowledgments, batch.consumer_group)

    def _settle(self, exchange: Exchange, incoming: list[AckIn], group: str | None) -> None:
        if not incoming:
            exchange.answer(200, b"[]")
            return
        now = self._clock()
        if self._settle_clean(exchange, incoming, group, now):
            return
        if any(map(self._work.owns, [ack.partition_id for ack in incoming])):
            self._settle_work(exchange, incoming)
            return
        known: dict[str, tuple[int, int]] = {}
        together: list[Ack] = []
        home: tuple[int, str] | None = None
        parts: list[str] = []
        status_of = AckStatus.named
        count = 0
        for ack in incoming:
            where = known.get(ack.partition_id)
            if where is None:
                where = known[ack.partition_id] = partition_of(ack.partition_id) or _NOWHERE
            named = group or ack.consumer_group or QUEUE_MODE
            if home is None or where[0] != home[0] or named != home[1]:
                if home is not None:  # another queue or group: what came before is a call of its own
                    parts.append(self._settle_run(home, together, now, count))
                    count += len(together)
                    together = []
                home = (where[0], named)
            status = ack.status
            together.append(
                Ack(
                    where[1],
                    ack.transaction_id,
                    _COMPLETED if status == "completed" else status_of(status or "completed"),
                    ack.lease_id or "",
                    ack.error,
                )
            )
        assert home is not None
        parts.append(self._settle_run(home, together, now, count))
        exchange.answer_when_durable(self._journal, 200, f"[{','.join(parts)}]".encode())

    def _settle_clean(self, exchange: Exchange, incoming: list[AckIn], group: str | None, now: float) -> bool:
        """The usual call: everything popped, or a part, is completed; no object for each message."""
        first = incoming[0]
        own_group, text, lease_id = first.consumer_group, "", None
        runs: list[CleanRun] = []
        ids: list[str] = []
        number = -1
        for ack in incoming:
            if ack.partition_id != text or ack.lease_id != lease_id:
                text, lease_id, ids = ack.partition_id, ack.lease_id, []
                where = partition_of(text)
                if where is None or not lease_id or number not in (-1, where[0]):
                    return False
                number = where[0]
                runs.append(CleanRun(where[1], lease_id, ids))
            status = ack.status
            if (status != "completed" and status is not None) or ack.consumer_group != own_group:
                return False
            ids.append(ack.transaction_id)
        settled = self._service.settle_clean(number, group or own_group or QUEUE_MODE, runs, now)
        if settled is None:
            return False
        exchange.answer_when_durable(self._journal, 200, clean_answers(runs, *settled))
        return True

    def _settle_work(self, exchange: Exchange, incoming: list[AckIn]) -> None:
        """Messages of work queues: each has its own lease and place, so each is settled by itself."""
        if not all(map(self._work.owns, [ack.partition_id for ack in incoming])):
            raise Refusal(
                400,
                "one call acknowledges messages of work queues and partitioned queues: send two",
                "mixed_queues",
            )
        answers = [self._work.settle(index, ack) for index, ack in enumerate(incoming)]
        exchange.answer_when_durable(self._journal, 200, f"[{','.join(answers)}]".encode())

    def _settle_run(self, home: tuple[int, str], acks: list[Ack], now: float, first: int) -> str:
        queue, outcomes = self._service.settle(*home, acks, now)
        return ack_answers(acks, queue, outcomes, first)

    # -- leases ----------------------------------------------------------------------------------

    def extend(self, exchange: Exchange) -> None:
        """Leases live in memory: nothing to wait for."""
        lease_id = segment(exchange.path[len(LEASE_PREFIX) : -len(LEASE_SUFFIX)].decode("latin-1"))
        seconds: float | None = None
        if exchange.body.strip():
            try:
                seconds = _read_extend(exchange.body).seconds
            except msgspec.MsgspecError as error:
                raise invalid_json(error) from None
        if seconds is not None and not 0 < seconds <= _MOST_LEASE:
            raise Refusal(400, f"seconds must be above 0 and at most {_MOST_LEASE:.0f}")
        extension = self._service.extend(lease_id, seconds, self._clock())
        if not extension.known and (until := self._work.extend(lease_id, seconds)) is not None:
            extension = Extension(1, until, True)
        at = quoted_or_null(iso_seconds(extension.expires_at))
        reason = None
        if not extension.renewed:
            reason = "Lease already expired" if extension.known else "Lease not found"
        exchange.answer(
            200,
            (
                f'{{"leaseId":{quoted(lease_id)},"success":{"true" if extension.renewed else "false"},'
                f'"renewed":{extension.renewed},"newExpiresAt":{at},"expiresAt":{at},'
                f'"lease_expires_at":{at},"error":{quoted_or_null(reason)}}}'
            ).encode(),
        )

    # -- transactions ----------------------------------------------------------------------------

    def transaction(self, exchange: Exchange) -> None:
        body = exchange.body
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
        items: list[PushItem] = []
        acks: list[AckRequest] = []
        order: list[tuple[bool, int]] = []  # (is it a push, its place among its kind)
        for operation in operations:
            if operation.type == "push":
                pushed = _pushed_by(operation, exchange.subject)
                order += [(True, len(items) + at) for at in range(len(pushed))]
                items += pushed
            elif operation.type == "ack":
                order.append((False, len(acks)))
                acks.append(_ack_of(operation, fallback))
            else:
                exchange.answer(200, _failure(own_id, f"Unknown operation type: {operation.type}"))
                return
        if len(order) > self._max_batch:
            raise Refusal(413, f"more than {self._max_batch} operations", "batch_too_large")
        for item in items:
            if self._work.find(item.queue) is not None:
                text = f"{item.queue} is a work queue: transactions span partitioned queues only"
                exchange.answer(200, _failure(own_id, text))
                return
        now = self._clock()
        riders = Riders(self._service, exchange.subject, now)
        try:
            ops = [read_operation(asked) for asked in incoming.kv or ()]
            for timer in incoming.timers or ():
                riders.add(timer)
        except KvRefused as refused:
            code = "kv_bad_request" if incoming.kv else "timers_bad_request"
            raise Refusal(refused.status, str(refused), code) from None
        keyed = self._service.keyed.decide(ops, micros(now))
        if keyed.failed is not None:
            lost = {"transactionId": own_id, **lost_out(keyed, len(order) + keyed.failed), "results": []}
            exchange.answer(200, msgspec.json.encode(lost))
            return
        extras = [*keyed.extras, *self._service.timed.record(riders.change)]
        try:
            results, answers = transact(self._service, items, acks, now, extras)
        except BrokerError as error:
            text = str(error)
            if text in _ACK_TEXTS:
                text = f"ACK operation failed: {text}"
            if isinstance(error, LeaseLost) and not leases_only:
                text += "; transaction rolled back"  # what newer clients look for
            exchange.answer(200, _failure(own_id, text))
            return
        parts: list[str] = []
        for index, (is_push, place) in enumerate(order):
            if is_push:
                number, partition, offset, created_us, duplicate = results[place]
                item = items[place]
                parts.append(
                    f'{{"index":{index},"type":"push","success":{"false" if duplicate else "true"},'
                    f'"duplicate":{"true" if duplicate else "false"},'
                    f'"transactionId":{quoted(item.body.transaction_id)},'
                    f'"messageId":"{message_id(number, offset, created_us)}",'
                    f'"partitionId":"{partition_id(number, partition)}","queueName":{quoted(item.queue)}}}'
                )
            else:
                ack_id = quoted(acks[place].transaction_id)
                verdict = ack_verdict(answers[place].outcome, None)
                parts.append(f'{{"index":{index},"type":"ack","transactionId":{ack_id},{verdict}}}')
        parts += _rider_results(len(order), ops, keyed, riders.results)
        if riders.results:
            self._service.plan_timed()
        answer = f'{{"transactionId":"{own_id}","success":true,"results":[{",".join(parts)}]}}'
        exchange.answer_when_durable(self._journal, 200, answer.encode())


def _rider_results(
    first: int, ops: Sequence[KeyOp], keyed: KeyDecision, timers: Sequence[dict[str, object]]
) -> list[str]:
    """After the operations' own results, in the same flat numbering."""
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


_ACK_TEXTS: Final = frozenset(
    {
        "Message not found",
        "Invalid or expired lease",
        "The message is already settled",
        "Unknown acknowledgment status",
    }
)


def _failure(own_id: str, text: str) -> bytes:
    return f'{{"transactionId":"{own_id}","success":false,"error":{quoted(text)},"results":[]}}'.encode()


def _pushed_by(operation: OperationIn, subject: str | None) -> list[PushItem]:
    if operation.items is not None:
        return [read_item(item, subject) for item in operation.items]
    if operation.queue is None:
        raise Refusal(400, "items array is required")
    flat = PushItemIn(operation.queue)
    for payload in (operation.payload, operation.data):
        if isinstance(payload, msgspec.Raw):
            flat.payload = payload
            break
    flat.partition, flat.trace_id = operation.partition, operation.trace_id
    flat.transaction_id = operation.transaction_id
    return [read_item(flat, subject)]


def _ack_of(operation: OperationIn, fallback_lease: str) -> AckRequest:
    if not operation.transaction_id:
        raise Refusal(400, _NEEDS_TRANSACTION)
    if not operation.partition_id:
        raise Refusal(400, _NEEDS_PARTITION)
    where = partition_of(operation.partition_id) or _NOWHERE
    return AckRequest(
        *where,
        operation.consumer_group or QUEUE_MODE,
        operation.transaction_id,
        AckStatus.named(operation.status or "completed"),
        operation.lease_id or fallback_lease,
        operation.error,
    )


# -- what is wrong with a request ---------------------------------------------------------------------

_NEEDS_TRANSACTION: Final = "transactionId is required"
_NEEDS_PARTITION: Final = "partitionId is required to ensure message uniqueness"
_EACH_TRANSACTION: Final = "Each acknowledgment must have a valid transactionId string"
_EACH_PARTITION: Final = (
    "Each acknowledgment must have a valid partitionId string to ensure message uniqueness"
)


def _document(body: bytes) -> object:
    if not body.strip():
        raise Refusal(400, EMPTY_BODY)
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise invalid_json(error) from None


def _explain_ack(body: bytes, error: Exception) -> Refusal:
    document = _document(body)
    if isinstance(document, dict):
        if not isinstance(document.get("transactionId"), str):
            return Refusal(400, _NEEDS_TRANSACTION)
        if not isinstance(document.get("partitionId"), str):
            return Refusal(400, _NEEDS_PARTITION)
    return invalid_json(error)


def _explain_batch(body: bytes, error: Exception) -> Refusal:
    document = _document(body)
    acks = document.get("acknowledgments") if isinstance(document, dict) else None
    if not isinstance(acks, list):
        return Refusal(400, "acknowledgments array is required")
    for ack in acks:
        if not isinstance(ack, dict) or not isinstance(ack.get("transactionId"), str):
            return Refusal(400, _EACH_TRANSACTION)
        if not isinstance(ack.get("partitionId"), str):
            return Refusal(400, _EACH_PARTITION)
    return invalid_json(error)


def _explain_transaction(body: bytes, error: Exception) -> Refusal:
    document = _document(body)
    operations = document.get("operations") if isinstance(document, dict) else None
    if not isinstance(operations, list):
        return Refusal(400, "operations array required")
    for operation in operations:
        if isinstance(operation, dict) and operation.get("type") == "push" and "items" in operation:
            found = explain_items(operation["items"])
            if found is not None:
                return found
    return invalid_json(error)
