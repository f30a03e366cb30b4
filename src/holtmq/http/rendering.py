"""Answers of the hot routes as bytes, payloads untouched.

Owns: the JSON of push results, popped messages and acknowledgments. Must not touch: state, sockets.
A message's own part is rendered once and kept with its body, so that ten groups cost one rendering.
"""

from collections.abc import Sequence

from holtmq.broker.acknowledgment import AckOutcome, AckVerdict
from holtmq.broker.identifiers import message_id, partition_id
from holtmq.broker.partitioned_requests import AckAnswer, AckRequest, Popped, PushItem, PushResult, Run
from holtmq.http.wire import iso_us, quoted, quoted_or_null

ACK_ERRORS = {
    AckVerdict.NOT_FOUND: "Message not found",
    AckVerdict.INVALID_LEASE: "Invalid or expired lease",
    AckVerdict.STALE: "transaction is unresolvable, already committed, or acknowledgment is stale",
    AckVerdict.UNKNOWN_STATUS: "Unknown acknowledgment status",
}
# Under a lease an unknown id is a client's mix-up, and newer clients look for this word.
_NOT_DELIVERED = "Message not found: transaction is unresolvable under this lease"


def push_results(items: Sequence[PushItem], results: Sequence[PushResult]) -> bytes:
    """The array that answers a push."""
    parts: list[str] = []
    tails: dict[tuple[int, int], tuple[str, str]] = {}
    for index, (item, result) in enumerate(zip(items, results, strict=True)):
        number, partition, offset, created_us, duplicate = result
        tail = tails.get((number, partition))
        if tail is None:
            name = quoted(item.queue)
            tail = tails[number, partition] = (partition_id(number, partition), name)
        body = item.body
        parts.append(
            f'{{"index":{index},"status":"{"duplicate" if duplicate else "queued"}",'
            f'"transaction_id":{quoted(body.transaction_id)},'
            f'"message_id":"{message_id(number, offset, created_us)}","partition_id":"{tail[0]}",'
            f'"trace_id":{quoted_or_null(body.trace_id)},"queueName":{tail[1]}}}'
        )
    return f"[{','.join(parts)}]".encode()


def buffered_results(items: Sequence[PushItem]) -> bytes:
    """The answer while maintenance spools pushes."""
    parts = [
        f'{{"index":{index},"status":"buffered","queue":{quoted(item.queue)},'
        f'"partition":{quoted(item.partition)},"queueName":{quoted(item.queue)},'
        f'"transactionId":{quoted(item.body.transaction_id)},'
        f'"transaction_id":{quoted(item.body.transaction_id)}}}'
        for index, item in enumerate(items)
    ]
    return f"[{','.join(parts)}]".encode()


def popped_messages(popped: Popped, extra: str = "") -> bytes:
    """The object that answers a pop; ``extra`` is more of its fields, each with its comma."""
    request = popped.request
    lease = "" if request.auto_ack else request.lease_id
    group = quoted(request.group)
    parts: list[bytes] = []
    for run in popped.runs:
        suffix = (
            f',"leaseId":"{lease}","consumerGroup":{group},"deliveryAttempt":{run.delivery.attempt}}}'
        ).encode()
        parts.append((suffix + b",").join(_fragments(run)) + suffix)
    first = popped.runs[0]
    head = (
        f'{{"success":true,"queue":{quoted(first.queue.name)},"partition":{quoted(first.delivery.name)},'
        f'"partitionId":"{partition_id(first.queue.number, first.delivery.partition)}",'
        f'"leaseId":"{lease}","consumerGroup":{group},"partitionsClaimed":{len(popped.runs)}{extra},'
        f'"messages":['
    )
    return b"".join((head.encode(), b",".join(parts), b"]}"))


def _fragments(run: Run) -> list[bytes]:
    """Each message without its end, which differs from pop to pop."""
    fragments: list[bytes] = []
    number = run.queue.number
    where = ""
    for position, (row, body) in enumerate(zip(run.rows, run.bodies, strict=True), run.delivery.first):
        fragment = body.rendered
        if fragment is None:
            if not where:
                where = (
                    f'","queue":{quoted(run.queue.name)},"partition":{quoted(run.delivery.name)},'
                    f'"partitionId":"{partition_id(number, run.delivery.partition)}","offset":'
                )
            offset, _, created_us = row
            head = (
                f'{{"id":"{message_id(number, offset, created_us)}",'
                f'"transactionId":{quoted(body.transaction_id)},"traceId":{quoted_or_null(body.trace_id)},'
                f'"data":'
            )
            tail = (
                f',"producerSub":{quoted_or_null(body.producer)},"createdAt":"{iso_us(created_us)}'
                f"{where}{position}"
            )
            fragment = body.rendered = b"".join((head.encode(), body.payload, tail.encode()))
        fragments.append(fragment)
    return fragments


def ack_answers(requests: Sequence[AckRequest], answers: Sequence[AckAnswer]) -> bytes:
    """The array that answers an acknowledgment, also for a single one."""
    parts: list[str] = []
    tails: dict[tuple[int, int], str] = {}
    for index, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        _, partition, _, transaction_id, _, lease_id, _ = request
        outcome, queue = answer
        if outcome.verdict is AckVerdict.NOT_FOUND and lease_id and queue is not None:
            partition = -1 - partition  # a tail of its own: see _NOT_DELIVERED
        key = (id(outcome), partition)
        tail = tails.get(key)
        if tail is None:
            error = ACK_ERRORS.get(outcome.verdict)
            if partition < 0:
                partition, error = -1 - partition, _NOT_DELIVERED
            queue_name = partition_name = "null"
            if queue is not None and partition < len(queue.partitions):
                queue_name, partition_name = quoted(queue.name), quoted(queue.partitions[partition].name)
            tail = tails[key] = (
                f'{ack_verdict(outcome, error)},"queueName":{queue_name},"partitionName":{partition_name}}}'
            )
        parts.append(f'{{"index":{index},"transactionId":{quoted(transaction_id)},{tail}')
    return f"[{','.join(parts)}]".encode()


def ack_verdict(outcome: AckOutcome, error: str | None) -> str:
    """The fields of one verdict."""
    return (
        f'"success":{_json(outcome.success)},"error":{quoted_or_null(error)},'
        f'"leaseReleased":{_json(outcome.lease_released)},"dlq":{_json(outcome.dead_lettered)},'
        f'"noop":{_json(outcome.noop)}'
    )


def _json(flag: bool) -> str:
    return "true" if flag else "false"
