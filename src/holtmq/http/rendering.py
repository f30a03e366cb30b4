"""Answers of the hot routes as bytes, payloads untouched.

Owns: the JSON of push results, popped messages and acknowledgments. Must not touch: state, sockets.
A message's own part is rendered once and kept with its body, so that ten groups cost one rendering.
"""

from collections.abc import Sequence

from holtmq.broker.acknowledgment import Ack, AckOutcome, AckVerdict
from holtmq.broker.clean_acks import CleanRun
from holtmq.broker.identifiers import partition_id
from holtmq.broker.partitioned_queue import PartitionedQueue
from holtmq.broker.partitioned_requests import Popped, PushItem, PushResult, Run
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
    number = ms = -1
    head = middle = tail = ""
    base = 0
    for index, (item, result) in enumerate(zip(items, results, strict=True)):
        if result[0] != number:
            number = result[0]
            base = int(partition_id(number, 0))
            middle = _id_middle(number)
            tail = f'"queueName":{quoted(item[0])}}}'
        offset, created_us = result[2], result[3]
        if created_us // 1000 != ms:
            ms = created_us // 1000
            head = _id_head(ms)
        body = item[2]
        trace = "null" if body.trace_id is None else quoted(body.trace_id)
        status = "duplicate" if result[4] else "queued"
        parts.append(
            f'{{"index":{index},"status":"{status}","transaction_id":{quoted(body.transaction_id)},'
            f'"message_id":"{head}{created_us - ms * 1000:03x}{middle}{offset:012x}",'
            f'"partition_id":"{base + result[1]}","trace_id":{trace},{tail}'
        )
    return f"[{','.join(parts)}]".encode()


def _id_head(ms: int) -> str:
    """What the ids of one millisecond begin with; with ``_id_middle`` the same as ``message_id``."""
    return f"{ms >> 16 & 0xFFFF_FFFF:08x}-{ms & 0xFFFF:04x}-7"


def _id_middle(queue: int) -> str:
    return f"-{0x8000 | queue & 0x3FFF:04x}-"


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
    fragments = [body.rendered for body in run.bodies]
    if None not in fragments:
        return fragments  # type: ignore[return-value]  # just checked
    number = run.queue.number
    middle = _id_middle(number)
    where = (
        f'","queue":{quoted(run.queue.name)},"partition":{quoted(run.delivery.name)},'
        f'"partitionId":"{partition_id(number, run.delivery.partition)}","offset":'
    )
    ms = -1
    head = second = ""
    rendered: list[bytes] = []
    for position, (row, body) in enumerate(zip(run.rows, run.bodies, strict=True), run.delivery.first):
        fragment = body.rendered
        if fragment is None:
            offset, _, created_us = row
            if created_us // 1000 != ms:
                ms = created_us // 1000
                head, second = _id_head(ms), iso_us(created_us)[:23]
            us = created_us - ms * 1000
            trace_id, producer = body.trace_id, body.producer
            front = (
                f'{{"id":"{head}{us:03x}{middle}{offset:012x}","transactionId":{quoted(body.transaction_id)},'
                f'"traceId":{"null" if trace_id is None else quoted(trace_id)},"data":'
            )
            back = (
                f',"producerSub":{"null" if producer is None else quoted(producer)},'
                f'"createdAt":"{second}{us:03d}Z{where}{position}'
            )
            fragment = body.rendered = b"".join((front.encode(), body.payload, back.encode()))
        rendered.append(fragment)
    return rendered


def ack_answers(
    acks: Sequence[Ack], queue: PartitionedQueue | None, outcomes: Sequence[AckOutcome], first: int = 0
) -> str:
    """Elements of the array that answers acknowledgments of one queue, numbered from ``first``."""
    parts: list[str] = []
    last: tuple[AckOutcome | None, int] = (None, -1)
    tail = ""
    for index, (ack, outcome) in enumerate(zip(acks, outcomes, strict=True), first):
        partition = ack[0]
        if outcome is not last[0] or partition != last[1] or outcome.verdict is AckVerdict.NOT_FOUND:
            last = (outcome, partition)
            tail = _ack_tail(ack, queue, outcome)
        parts.append(f'{{"index":{index},"transactionId":{quoted(ack[1])},{tail}')
    return ",".join(parts)


def clean_answers(runs: Sequence[CleanRun], queue: PartitionedQueue, outcomes: Sequence[AckOutcome]) -> bytes:
    """The array that answers acknowledgments in runs with one outcome each."""
    parts: list[str] = []
    for run, outcome in zip(runs, outcomes, strict=True):
        ids = run.transaction_ids
        tail = _ack_tail(Ack(run.partition, ids[0]), queue, outcome)
        parts += [
            f'{{"index":{index},"transactionId":{quoted(id_)},{tail}'
            for index, id_ in enumerate(ids, len(parts))
        ]
    return f"[{','.join(parts)}]".encode()


def _ack_tail(ack: Ack, queue: PartitionedQueue | None, outcome: AckOutcome) -> str:
    error = ACK_ERRORS.get(outcome.verdict)
    names = '"queueName":null,"partitionName":null'
    if queue is not None and ack.partition < len(queue.partitions):
        if outcome.verdict is AckVerdict.NOT_FOUND and ack.lease_id:
            error = _NOT_DELIVERED
        name = queue.partitions[ack.partition].name
        names = f'"queueName":{quoted(queue.name)},"partitionName":{quoted(name)}'
    return f"{ack_verdict(outcome, error)},{names}}}"


def ack_verdict(outcome: AckOutcome, error: str | None) -> str:
    """The fields of one verdict."""
    return (
        f'"success":{_json(outcome.success)},"error":{quoted_or_null(error)},'
        f'"leaseReleased":{_json(outcome.lease_released)},"dlq":{_json(outcome.dead_lettered)},'
        f'"noop":{_json(outcome.noop)}'
    )


def _json(flag: bool) -> str:
    return "true" if flag else "false"
