"""Pushes, pops and acks of the partitioned queue's HTTP interface, as mostly prebuilt bytes.

Owns: request templates with a serial number patched in, and parsing the responses. Must not touch: sockets,
counts. Costs 0.3 µs per pushed and 1.3 µs per popped and acked message in batches of 100.
"""

from __future__ import annotations

from itertools import count
from typing import Final

import msgspec

from holtmq.load.errors import LoadError
from holtmq.load.http_wire import END, HttpAddress, HttpAnswer
from holtmq.load.http_workloads import PAYLOAD, HttpWorkload

QUEUE: Final = "holt-load"
_SERIAL: Final = b"%012d"
_MARK: Final = b"\x00"
_WAIT_MS: Final = 1000
_LOOK_EVERY: Final = 8  # responses: how often the body is checked, not only the status


class HeldMessage(msgspec.Struct, rename="camel", gc=False):
    """The fields of a popped message that an ack needs; encoded again, it *is* the ack."""

    transaction_id: str
    partition_id: str
    lease_id: str
    status: str = "completed"


class HeldBatch(msgspec.Struct, gc=False):
    messages: list[HeldMessage]


_read_popped: Final = msgspec.json.Decoder(HeldBatch).decode
_encode: Final = msgspec.json.Encoder().encode


class HttpDialect:
    """Builds requests and parses responses. All connections of a round share it: serials are unique."""

    def __init__(self, address: HttpAddress, workload: HttpWorkload, queue: str = QUEUE) -> None:
        self._workload = workload
        self._serials = count(1)
        self._answers = 0
        partitions, pushers = workload.partitions, workload.pushers
        names = [f"p{number}" for number in range(partitions)]
        self._templates = [
            [
                _template(address, queue, name, workload)
                for name in (names[number::pushers] if number < partitions else [names[number % partitions]])
            ]
            for number in range(pushers)
        ]
        self._turns = [0] * pushers
        self._pops = [_pop(address, workload, queue, group) for group in range(workload.lines)]
        self._ack_head = address.post_head("/api/v1/ack/batch")
        self._ack_one_head = address.post_head("/api/v1/ack")
        self._ack_starts = [
            b'{"consumerGroup":"%s","acknowledgments":' % name.encode() if name else b'{"acknowledgments":'
            for name in (group_name(workload, group) for group in range(workload.lines))
        ]

    def push(self, number: int) -> bytes:
        templates = self._templates[number]
        turn = self._turns[number]
        self._turns[number] = turn + 1 if turn + 1 < len(templates) else 0
        return (_SERIAL % next(self._serials)).join(templates[turn])

    def pushed(self, answer: HttpAnswer) -> None:
        if answer.status not in (200, 201):
            raise LoadError(f"a push gave {answer.status} {answer.body[:200]!r}")
        self._answers += 1
        if self._answers % _LOOK_EVERY == 0:
            stored = answer.body.count(b'"queued"')
            if stored != self._workload.push_batch:
                raise LoadError(
                    f"{stored} of {self._workload.push_batch} messages stored: {answer.body[:200]!r}"
                )

    def pop(self, number: int, group: int) -> bytes:
        return self._pops[group]

    def popped(self, answer: HttpAnswer, number: int, group: int) -> list[HeldMessage] | None:
        if answer.status == 204:
            return None
        if answer.status != 200:
            raise LoadError(f"a pop gave {answer.status} {answer.body[:200]!r}")
        held = _read_popped(answer.body).messages
        self._answers += 1
        if held and self._answers % _LOOK_EVERY == 0 and answer.body.count(PAYLOAD) != len(held):
            raise LoadError(f"payloads came back changed: {answer.body[:300]!r}")
        return held or None

    def size(self, held: list[HeldMessage]) -> int:
        return len(held)

    def ack(self, held: list[HeldMessage], first: int, count: int, group: int) -> bytes:
        if self._workload.ack_batch == 1 and not self._workload.groups:
            body = _encode(held[first])
            return b"%s%d%s%s" % (self._ack_one_head, len(body), END, body)
        chosen = held if count == len(held) else held[first : first + count]
        start, acks = self._ack_starts[group], _encode(chosen)
        return b"%s%d%s%s%s}" % (self._ack_head, len(start) + len(acks) + 1, END, start, acks)

    def acked(self, answer: HttpAnswer, count: int) -> None:
        if answer.status != 200 or answer.body.count(b'"success":true') != count:
            raise LoadError(f"an ack of {count} gave {answer.status} {answer.body[:300]!r}")


def group_name(workload: HttpWorkload, group: int) -> str:
    return f"g{group}" if workload.groups else ""


def _template(address: HttpAddress, queue: str, partition: str, workload: HttpWorkload) -> list[bytes]:
    """A complete push, split where its serial number goes: one ``join`` builds the request."""
    items = []
    for place in range(workload.push_batch):
        own_id = b',"transactionId":"%s-%03d"' % (_MARK, place) if workload.own_ids else b""
        items.append(
            b'{"queue":"%s","partition":"%s","payload":%s%s}'
            % (queue.encode(), partition.encode(), PAYLOAD, own_id)
        )
    body = b'{"items":[%s]}' % b",".join(items)
    serials = body.count(_MARK)
    length = len(body) + serials * (len(_SERIAL % 0) - len(_MARK))
    return (b"%s%d%s%s" % (address.post_head("/api/v1/push"), length, END, body)).split(_MARK)


def _pop(address: HttpAddress, workload: HttpWorkload, queue: str, group: int) -> bytes:
    path = f"/api/v1/pop/queue/{queue}?batch={workload.pop_batch}&wait=true&timeout={_WAIT_MS}"
    if workload.pop_partitions > 1:
        path += f"&partitions={workload.pop_partitions}"
    name = group_name(workload, group)
    if name:
        path += f"&consumerGroup={name}&subscriptionMode=all"
    return address.get(path)
