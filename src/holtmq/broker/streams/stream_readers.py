"""How AMQP consumers read a partitioned queue: alone from an offset, or as members of a group.

Owns: what each consumer has read and holds. Must not touch: the journal, AMQP names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from holtmq.broker.errors import Conflict
from holtmq.broker.message import Message
from holtmq.broker.partitioned.groups.further import Further
from holtmq.broker.partitioned.groups.partition_leases import FOR_EVER
from holtmq.broker.partitioned.groups.subscriptions import StartMode, StartRequest
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.requests import HeldPartition, PopRequest
from holtmq.broker.partitioned.store import MessagesSetAside
from holtmq.broker.streams.claims import Claim, claimed
from holtmq.broker.streams.envelopes import Showing
from holtmq.broker.streams.stream_filter import StreamFilter

if TYPE_CHECKING:
    from holtmq.broker.streams.stream_queue import StreamQueue

READ_AT_ONCE: Final = 256
_BYTES_AT_ONCE: Final = 4 << 20  # the last message may exceed it
# Work is counted in messages that are delivered to a reader without a group and a filter, about 3 µs each.
_READ: Final = 10  # a read
_CLAIMED: Final = 2  # a message that is claimed for a group, and each of its partitions
_BYTES: Final = 2_048  # of bodies
_FIRST_SCAN: Final = 16  # messages that a filter looks at; later twice as many as it had time for
_GROUP_PARTITIONS: Final = 64
_LOOKS: Final = 1_000  # partitions that a claim looks at, most of which may have nothing: about 1 ms
_GIVEN_BACK: Final = 2_000  # claims returned at once: about 4 ms
_UNITS: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3_600, "m": 60, "s": 1}

Row = tuple[int, int, int]  # offset, journal position, creation time in microseconds


class StreamReader:
    """Reads a log from an offset on, independently of other consumers."""

    def __init__(self, queue: StreamQueue, offset: int, chosen: StreamFilter | None = None) -> None:
        self._queue = queue
        self._offset = offset
        self._filter = chosen
        self._showing = Showing(queue.name)
        self._scan = _FIRST_SCAN
        self.has_unread = False  # a filter stopped after much work; there may be more to deliver
        self.work = 0  # of the last ``next``

    def next(self, limit: int, most_work: int) -> list[Message]:
        """The next messages, at most ``limit``; the work may be a little more than ``most_work``."""
        self.work = 0
        if self._filter is None:
            return self._show(self._read(limit))
        found: list[tuple[Row, Body]] = []
        while not found and self.work < most_work and not self._is_at_end:
            found = self._choose(self._read(self._scan), self._filter, limit, most_work)
        self.has_unread = not found and not self._is_at_end
        return self._show(found)

    @property
    def _is_at_end(self) -> bool:
        log = self._queue.log
        return log is None or self._offset >= log.log.durable_end

    def _read(self, limit: int) -> list[tuple[Row, Body]]:
        self.work += _READ
        log = self._queue.log
        if log is None or self._offset >= log.log.durable_end:
            return []
        while True:
            offsets = list(islice(log.log.live_offsets(self._offset, log.log.durable_end), limit))
            rows = log.log.refs(offsets)
            positions = [position for _, position, _ in rows]
            try:
                bodies, left = self._queue.service.store.bodies_within(positions, _BYTES_AT_ONCE)
                break
            except MessagesSetAside:
                continue  # unreadable messages are set aside; read the rest
        self._offset = offsets[len(bodies) - 1] + 1 if offsets else log.log.durable_end
        self.work += (_BYTES_AT_ONCE - left) // _BYTES
        return list(zip(rows, bodies, strict=False))

    def _choose(
        self, read: list[tuple[Row, Body]], chosen: StreamFilter, limit: int, most_work: int
    ) -> list[tuple[Row, Body]]:
        """What passes the filter, up to the limit; the reader goes on behind the last one looked at."""
        found: list[tuple[Row, Body]] = []
        looked_at = 0
        for row, body in read:
            looked_at += 1
            if chosen.accepts(body):
                found.append((row, body))
            self.work += chosen.work
            if len(found) == limit or self.work >= most_work:
                self._offset = row[0] + 1
                break
        self._scan = max(1, min(2 * looked_at, READ_AT_ONCE))
        return found

    def _show(self, pairs: list[tuple[Row, Body]]) -> list[Message]:
        log = self._queue.log
        if log is None:
            return []
        self.work += len(pairs)
        show, partition_of, partitions = self._showing.message, log.log.partition, log.partitions
        return [
            show(partitions[partition_of(offset)].name, offset, created_us, body)
            for (offset, _, created_us), body in pairs
        ]


class GroupMember:
    """A consumer in a consumer group: claims partitions, and holds each until all it got of it is settled.

    If it has room and no other partition is ready, it gets further messages of those that it holds.
    """

    def __init__(self, queue: StreamQueue, group: str, start: StartRequest, name: str) -> None:
        self._queue = queue
        self._group = group
        self._start = start
        self._name = name
        self._showing = Showing(queue.name)
        self.has_unread = False  # it has not looked at all partitions
        self.work = 0  # of the last ``next``
        self._claimed = 0  # how often: each pop has a lease id of its own
        self._claims: dict[int, Claim] = {}  # by partition
        self._further = Further()
        queue.service.line.enlist(queue.stored_as, group, self._told)

    def _told(self) -> None:
        self._queue.touch(self._queue)

    def next(self, limit: int, most_work: int) -> list[Message]:
        """Claim and return messages, at most ``limit``."""
        queue = self._queue
        now = queue.now()
        self._claimed += 1
        lease_id = f"{self._name}-{self._claimed}"
        self._further.looks.left = _LOOKS
        popped = queue.service.pop(
            PopRequest(
                lease_id,
                queue.stored_as,
                group=self._group,
                limit=limit,
                most_partitions=_GROUP_PARTITIONS,
                further=self._further,
                most_bytes=_BYTES_AT_ONCE,
                lease_seconds=FOR_EVER,
                start=self._start,
            ),
            now,
        )
        log = queue.log
        if popped is None and log is not None:
            # The broker's clock has whole milliseconds, so a deadline within this one is due in the next. The
            # never-ending leases of members are not deadlines.
            queue.service.line.plan_for_member(log, self._group, now + 0.001, now + FOR_EVER / 2)
        messages: list[Message] = []
        runs = () if popped is None else popped.runs
        for run in runs:
            delivery = run.delivery
            claim = self._claims.get(delivery.partition)
            if claim is None or not delivery.continues:
                held = HeldPartition(run.queue.number, delivery.partition, self._group, lease_id)
                claim = Claim(held, self._claims)
            claim.take(delivery.positions)
            show, redelivered = self._showing.message, delivery.attempt > 1
            messages += [
                claimed(show(delivery.name, offset, created_us, body), claim, position, redelivered)
                for (offset, _, created_us), body, position in zip(
                    run.rows, run.bodies, delivery.positions, strict=True
                )
            ]
        size = sum([len(message.body) for message in messages])
        self.has_unread = self._further.looks.left <= 0
        looked_at = _LOOKS - self._further.looks.left
        self.work = _READ + looked_at // 4 + _CLAIMED * (len(messages) + len(runs)) + size // _BYTES
        return messages

    def leave(self) -> None:
        """Return every claim; of very many some now, and the others after other work.

        A claim of which an open transaction settles messages ends with them, as after a rollback; one with
        verdicts that take effect in later steps, after these.
        """
        self._queue.service.line.discharge(self._queue.stored_as, self._group, self._told)
        claims = list(reversed(self._claims.values()))
        self._claims.clear()  # each refers to all
        for claim in claims:
            if not claim.is_awaited:
                claim.is_left = True
                claim.over = not claim.in_line
        self._give_back(_taken_from(claims))

    def _give_back(self, claims: Iterator[Claim]) -> None:
        some = [claim.held for claim in islice(claims, _GIVEN_BACK)]
        service = self._queue.service
        service.end_held(some)
        if len(some) == _GIVEN_BACK:
            service.line.at(self._queue.now(), lambda: self._give_back(claims))


def _taken_from(claims: list[Claim]) -> Iterator[Claim]:
    """The last one first; each is free then: all at once would take as long as to return them."""
    while claims:
        claim = claims.pop()
        if claim.over:
            yield claim


def interval_seconds(text: str) -> int | None:
    parts = re.fullmatch(r"([0-9]{1,9})([YMDhms])", text)
    return int(parts[1]) * _UNITS[parts[2]] if parts else None


def group_start(queue: str, start: object) -> StartRequest:
    match start:
        case None:
            return StartRequest(explicit=False)
        case "first":
            return StartRequest(StartMode.ALL)
        case "next" | "last":
            return StartRequest(StartMode.NEW)
        case datetime():
            return StartRequest(StartMode.TIMESTAMP, int(start.timestamp() * 1_000_000))
    raise Conflict(bad_offset(queue, start) + " (a group starts at first, next or a timestamp)")


def bad_offset(queue: str, start: object) -> str:
    return (
        f"invalid arg 'x-stream-offset' for queue '{queue}': {start!r} is none of first, last, next, "
        "an offset, a timestamp or an interval such as 1h"
    )
