"""Answers of the hot routes as bytes; payloads are copied unchanged.

Owns: the JSON of push results, popped messages and acknowledgments. Must not touch: state, sockets.
A message's own part is rendered once and cached in its body, so that ten groups cost one rendering.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import add
from typing import Final

import msgspec

from holtmq.broker.partitioned.commands.clean_acks import CleanRun
from holtmq.broker.partitioned.groups.acknowledgment import Ack, AckOutcome, AckVerdict
from holtmq.broker.partitioned.log.identifiers import message_id, partition_id
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.requests import Popped, PushItem, PushResult, Run
from holtmq.http.engine.wire import iso_us, quoted, quoted_or_null

ACK_ERRORS = {
    AckVerdict.NOT_FOUND: "Message not found",
    AckVerdict.INVALID_LEASE: "Invalid or expired lease",
    AckVerdict.STALE: "transaction is unresolvable, already committed, or acknowledgment is stale",
    AckVerdict.UNKNOWN_STATUS: "Unknown acknowledgment status",
}
_SETTLED: Final = "The message is already settled"
# Byte templates in which everything that repeats within a millisecond and 4096 offsets is already filled in:
# 0.4 µs instead of 1.2 for a push result, 0.8 instead of 1.8 for a popped message, against formatting each.
_HEX: Final = [b"%03x" % number for number in range(4096)]
_encode: Final = msgspec.json.Encoder().encode
_NUMBER: Final = '{{"index":{},"transactionId":'
_NUMBERED: Final = [_NUMBER.format(index) for index in range(1000)]
# Under a lease an unknown id is a client's mistake; newer clients search for this text.
_NOT_DELIVERED = "Message not found: transaction is unresolvable under this lease"


def refusal_text(verdict: AckVerdict) -> str:
    """Why an acknowledgment made a whole commit fail."""
    return _SETTLED if verdict is AckVerdict.STALE else ACK_ERRORS[verdict]


def push_results(
    items: Sequence[PushItem], results: Sequence[PushResult], queues: Mapping[int, PartitionedQueue]
) -> bytes:
    """The array that answers a push."""
    return b"[%b]" % b",".join(push_elements(range(len(items)), items, results, queues))


def push_elements(
    places: Iterable[int],
    items: Sequence[PushItem],
    results: Sequence[PushResult],
    queues: Mapping[int, PartitionedQueue],
) -> list[bytes]:
    """The elements of that array; ``places`` are the items' indexes in the request."""
    parts: list[bytes] = []
    number = ms = page = -1
    base = 0
    row = queue = b""
    for index, item, result in zip(places, items, results, strict=True):
        offset, created_us = result[2], result[3]
        if created_us // 1000 != ms or offset >> 12 != page or result[0] != number:
            if result[0] != number:
                number = result[0]
                base = int(partition_id(number, 0))
                queue = _literal(quoted(item[0]))
            ms, page = created_us // 1000, offset >> 12
            row = (
                b'{"index":%%d,"status":"%%b","transaction_id":%%b,"message_id":"%b",'
                b'"partition_id":"%%d","trace_id":%%b,"queueName":%b}' % (_id(number, ms, page), queue)
            )
        body = item[2]
        trace_id = body.trace_id
        part = row % (
            index,
            b"duplicate" if result[4] else b"queued",
            _encode(body.transaction_id),
            _HEX[created_us - ms * 1000],
            _HEX[offset & 0xFFF],
            base + result[1],
            b"null" if trace_id is None else _encode(trace_id),
        )
        if result[4] and (promised := queues[number].given_ids.get(offset)) is not None:
            part = part.replace(message_id(number, offset, created_us).encode(), promised.encode())
        parts.append(part)
    return parts


def _id(queue: int, ms: int, page: int) -> bytes:
    """``message_id`` with two placeholders: the microseconds, and the last three digits of the offset."""
    return b"%08x-%04x-7%%b-%04x-%09x%%b" % (
        ms >> 16 & 0xFFFF_FFFF,
        ms & 0xFFFF,
        0x8000 | queue & 0x3FFF,
        page & 0xF_FFFF_FFFF,
    )


def _literal(text: str) -> bytes:
    """Text for a byte template, with ``%`` escaped."""
    return text.encode().replace(b"%", b"%%")


def buffered_results(items: Sequence[PushItem]) -> bytes:
    """The answer while maintenance spools pushes."""
    return b"[%b]" % b",".join(buffered_elements(range(len(items)), items))


def buffered_elements(places: Iterable[int], items: Sequence[PushItem]) -> list[bytes]:
    """The elements of that array; ``places`` are the items' indexes in the request."""
    return [
        f'{{"index":{index},"status":"buffered","queue":{quoted(item.queue)},'
        f'"partition":{quoted(item.partition)},"queueName":{quoted(item.queue)},'
        f'"transactionId":{quoted(item.body.transaction_id)},'
        f'"transaction_id":{quoted(item.body.transaction_id)}}}'.encode()
        for index, item in zip(places, items, strict=True)
    ]


def popped_messages(popped: Popped, extra: str = "") -> bytes:
    """The object that answers a pop; ``extra`` is further fields, each with a leading comma."""
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
    """Each message without its last fields, which differ from pop to pop."""
    fragments = [body.rendered for body in run.bodies]
    if None not in fragments:
        return fragments  # type: ignore[return-value]  # just checked
    number = run.queue.number
    where = _literal(
        f'","queue":{quoted(run.queue.name)},"partition":{quoted(run.delivery.name)},'
        f'"partitionId":"{partition_id(number, run.delivery.partition)}","offset":'
    )
    ms = page = -1
    whole = b""
    rendered: list[bytes] = []
    given = run.queue.given_ids
    for position, row, body in zip(run.delivery.positions, run.rows, run.bodies, strict=True):
        fragment = body.rendered
        if fragment is None:
            offset, _, created_us = row
            if created_us // 1000 != ms or offset >> 12 != page:
                ms, page = created_us // 1000, offset >> 12
                second = iso_us(created_us)[:23].encode()
                whole = (
                    b'{"id":"%b","transactionId":%%b,"traceId":%%b,"data":%%b,"producerSub":%%b,'
                    b'"createdAt":"%b%%03dZ%b%%d' % (_id(number, ms, page), second, where)
                )
            us = created_us - ms * 1000
            trace_id, producer = body.trace_id, body.producer
            fragment = body.rendered = whole % (
                _HEX[us],
                _HEX[offset & 0xFFF],
                _encode(body.transaction_id),
                b"null" if trace_id is None else _encode(trace_id),
                body.payload,
                b"null" if producer is None else _encode(producer),
                us,
                position,
            )
            if given and (promised := given.get(offset)) is not None:
                # The id is the 36 characters after {"id":"
                fragment = body.rendered = fragment[:7] + promised.encode() + fragment[43:]
        rendered.append(fragment)
    return rendered


def ack_answers(
    places: Iterable[int],
    acks: Sequence[Ack],
    queue: PartitionedQueue | None,
    outcomes: Sequence[AckOutcome],
) -> list[str]:
    """Elements of the array that answers acks, for acks of one queue; ``places`` are their indexes."""
    parts: list[str] = []
    last: tuple[AckOutcome | None, int] = (None, -1)
    tail = ""
    for index, ack, outcome in zip(places, acks, outcomes, strict=True):
        partition = ack[0]
        if outcome is not last[0] or partition != last[1] or outcome.verdict is AckVerdict.NOT_FOUND:
            last = (outcome, partition)
            tail = _ack_tail(ack, queue, outcome)
        parts.append(f'{{"index":{index},"transactionId":{quoted(ack[1])},{tail}')
    return parts


def clean_answers(runs: Sequence[CleanRun], queue: PartitionedQueue, outcomes: Sequence[AckOutcome]) -> bytes:
    """The array that answers acks which came in runs with one outcome each."""
    parts: list[str] = []
    name, last, verdict, at = quoted(queue.name), None, "", 0
    for (partition, _, ids), outcome in zip(runs, outcomes, strict=True):
        if outcome is not last:
            last, verdict = outcome, ack_verdict(outcome, None)
        where = quoted(queue.partitions[partition].name)
        tail = f',{verdict},"queueName":{name},"partitionName":{where}}}'
        end = at + len(ids)
        heads = _NUMBERED[at:end] if end <= len(_NUMBERED) else map(_NUMBER.format, range(at, end))
        parts.append(f"{tail},".join([*map(add, heads, map(quoted, ids))]) + tail)
        at = end
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
        f'"noop":{_json(outcome.noop)},"message":"{outcome.verdict.value}"'
    )


def _json(flag: bool) -> str:
    return "true" if flag else "false"
