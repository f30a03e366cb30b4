"""Where messages are: each source gives the messages behind a place, in order, without taking them.

Owns: the five kinds of source and the rows of what was found. Must not touch: the search's conditions.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from holtmq.broker.jobs.filters import Subject
from holtmq.broker.message import Message
from holtmq.broker.partitioned.log.bodies import Body
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.log.identifiers import dead_letter_id, partition_id
from holtmq.broker.partitioned.log.message_log import GONE
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.records.message_records import decode_delayed
from holtmq.broker.work.leases import Lease
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.spilling_fifo import SpillingFifo
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.dashboard.ordering import ordered_page
from holtmq.http.engine.context import Context
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management.messages import message_row
from holtmq.journal.interface import RecordUnreadable

Place = tuple[int, int]  # rises within a source; (0, 0): before the first
_AT_ONCE: Final = 64  # messages read from disk in one step
_AT_ONCE_BYTES: Final = 1 << 20
_SHOWN_BYTES: Final = 64 << 10  # of a body


@dataclass(slots=True)
class Found:
    """One message that was looked at. ``subject`` None: it could not be read."""

    place: Place
    state: str
    vhost: str
    queue: str
    at_ms: int
    subject: Subject | None
    details: dict[str, object]
    message: Message | None = None  # of a work queue
    home: WorkQueue | None = None
    body: Body | None = None  # of a partitioned queue

    def ids(self) -> list[str]:
        """Everything that a person would call its id."""
        ids = [str(value) for name, value in self.details.items() if name in _IDS]
        if self.message is not None and self.subject is not None and self.subject.properties.message_id:
            ids.append(self.subject.properties.message_id)
        return ids

    def row(self) -> dict[str, object]:
        """It as JSON, with at most the first 64 KiB of its body."""
        common: dict[str, object] = {
            "state": self.state,
            "vhost": self.vhost,
            "queue": self.queue,
            "arrived_at": self.at_ms,
            **self.details,
        }
        if self.message is not None:
            size = len(self.message.body)
            return {
                **message_row(self.home, self.message, truncate=_SHOWN_BYTES),
                **common,
                "truncated": size > _SHOWN_BYTES,
            }
        assert self.body is not None
        payload = self.body.payload
        is_whole = len(payload) <= _SHOWN_BYTES
        return {
            **common,
            "payload_bytes": len(payload),
            "payload": msgspec.Raw(payload)
            if is_whole
            else payload[:_SHOWN_BYTES].decode("utf-8", "replace"),
            "payload_encoding": "json" if is_whole else "string",
            "truncated": not is_whole,
            "properties": {},
        }


_IDS: Final = frozenset({"transaction_id", "id", "trace_id"})


class Source:
    """One place with messages. ``name`` orders the sources of a search."""

    def __init__(self, context: Context, order: int, state: str, vhost: str, queue: str) -> None:
        self.context = context
        self.state = state
        self.vhost = vhost
        self.queue = queue
        self.name = f"{order} {vhost}\x00{queue}"

    def messages(self, after: Place, stepwise: Stepwise) -> AsyncGenerator[Found, None]:
        """The messages behind a place."""
        raise NotImplementedError

    def _work(
        self, message: Message, place: Place, home: WorkQueue | None, details: dict[str, object]
    ) -> Found:
        deliveries = 0 if home is None else home.returned.get(message.seq, 0)
        age = max(0.0, self.context.clock() - message.arrived_ms / 1000)
        subject = Subject(
            message.body, message.header, message.exchange, message.routing_key, age, deliveries
        )
        more: dict[str, object] = {"deliveries": deliveries, **details}
        return Found(
            place, self.state, self.vhost, self.queue, message.arrived_ms, subject, more, message, home
        )


class Ready(Source):
    """The waiting messages of a work queue; with ``dead_only`` those that were dead-lettered."""

    def __init__(self, context: Context, order: int, queue: WorkQueue, dead_only: bool = False) -> None:
        super().__init__(context, order, "dead" if dead_only else "ready", queue.vhost, queue.name)
        self._home = queue
        self._dead_only = dead_only

    async def messages(self, after: Place, stepwise: Stepwise) -> AsyncGenerator[Found, None]:
        store, pager = self._home.store, self.context.broker.flow.pager
        levels: list[tuple[int, SpillingFifo]] = (
            list(store.by_level(True)) if isinstance(store, Levels) else [(0, store)]
        )
        # The place names the level too, and messages within it by seq and journal position.
        begun = _Mark.unpack(after)
        for level, fifo in levels:
            if begun.seq and level > begun.level and isinstance(store, Levels):
                continue
            where = (begun.seq, begun.position) if begun.seq and level == begun.level else (0, 0)
            while found := fifo.following(where, _AT_ONCE, _AT_ONCE_BYTES, pager):
                for message in found:
                    where = (message.seq, message.position)
                    if not self._dead_only or b"x-death" in message.header:
                        yield self._work(message, _Mark(level, *where).pack(), self._home, {})
                await stepwise.between()


class _Mark(msgspec.Struct, frozen=True):
    level: int
    seq: int
    position: int

    def pack(self) -> Place:
        return self.seq << 8 | self.level, self.position

    @staticmethod
    def unpack(place: Place) -> "_Mark":
        return _Mark(place[0] & 0xFF, place[0] >> 8, place[1])


class Unacked(Source):
    """Messages of a work queue that consumers hold."""

    def __init__(self, context: Context, order: int, queue: WorkQueue, leases: list[Lease]) -> None:
        super().__init__(context, order, "unacked", queue.vhost, queue.name)
        self._home = queue
        self._leases = sorted(leases, key=lambda lease: lease.message.seq)

    async def messages(self, after: Place, stepwise: Stepwise) -> AsyncGenerator[Found, None]:
        for lease in self._leases:
            message = lease.message
            if message.seq > after[0]:
                yield self._work(message, (message.seq, 0), self._home, {})


class Delayed(Source):
    """Messages that wait in delaying exchanges, of all vhosts."""

    def __init__(self, context: Context, order: int, positions: list[int]) -> None:
        super().__init__(context, order, "delayed", "", "")
        self._positions = sorted(positions)

    async def messages(self, after: Place, stepwise: Stepwise) -> AsyncGenerator[Found, None]:
        flow = self.context.broker.flow
        for position in self._positions:
            if position <= after[0] or position not in flow.delayed:
                continue
            place = (position, 0)
            try:
                due_ms, vhost, exchange, message, _ = decode_delayed(flow.journal.read(position)[1])
            except RecordUnreadable:
                yield Found(place, "delayed", "", "", 0, None, {"id": str(position)})
                continue
            details: dict[str, object] = {"id": str(position), "due_at": due_ms, "delayed_by": exchange}
            found = self._work(message, place, None, details)
            found.vhost = vhost
            yield found


class Retained(Source):
    """The stored messages of a partitioned queue."""

    def __init__(self, context: Context, order: int, queue: PartitionedQueue, vhost: str) -> None:
        super().__init__(context, order, "retained", vhost, queue.name)
        self._stream = queue

    async def messages(self, after: Place, stepwise: Stepwise) -> AsyncGenerator[Found, None]:
        log = self._stream.log
        for offset in range(max(log.first_offset, after[0]), log.durable_end):
            if offset < log.first_offset or log.partition(offset) == GONE:
                await stepwise.between()
                continue
            created_us, index = log.created_us(offset), log.partition(offset)
            details: dict[str, object] = {
                "id": self._stream.id_of(offset, created_us),
                "partition": self._stream.partitions[index].name,
                "partition_id": partition_id(self._stream.number, index),
                "offset": offset,
            }
            yield _stored(self, (offset + 1, 0), log.position(offset), created_us, details)


class Letters(Source):
    """The dead letters of a partitioned queue's groups."""

    def __init__(self, context: Context, order: int, queue: PartitionedQueue, vhost: str) -> None:
        super().__init__(context, order, "dead", vhost, queue.name)
        self._stream = queue

    async def messages(self, after: Place, stepwise: Stepwise) -> AsyncGenerator[Found, None]:
        letters: list[DeadLetter] = sorted(self._stream.dead_letters, key=lambda letter: letter.number)
        for letter in letters:
            if letter.number < after[0]:
                continue
            details: dict[str, object] = {
                "id": dead_letter_id(self._stream.number, letter.number),
                "partition": self._stream.partitions[letter.partition].name,
                "partition_id": partition_id(self._stream.number, letter.partition),
                "group": letter.group,
                "error": letter.error,
                "retries": letter.retry_count,
                "failed_at": letter.failed_us // 1000,
            }
            place = (letter.number + 1, 0)
            yield _stored(self, place, letter.journal_position, letter.created_us, details)


def _stored(
    source: Source, place: Place, position: int, created_us: int, details: dict[str, object]
) -> Found:
    context = source.context
    at_ms = created_us // 1000
    try:
        body = context.service.store.body(position)
    except RecordUnreadable:
        return Found(place, source.state, source.vhost, source.queue, at_ms, None, details)
    details |= {"transaction_id": body.transaction_id, "trace_id": body.trace_id, "producer": body.producer}
    age = max(0.0, context.clock() - at_ms / 1000)
    subject = Subject(body.payload, b"", "", str(details["partition"]), age, 0)
    return Found(place, source.state, source.vhost, source.queue, at_ms, subject, details, body=body)


async def sources_of(
    context: Context, states: list[str], may: Callable[[str, str], bool], *, with_delayed: bool
) -> AsyncGenerator[Source, None]:
    """The places in these states that hold messages and ``may`` be searched; their names rise."""
    stepwise = Stepwise()
    queues: list[WorkQueue] = []
    for vhost in list(context.broker.vhosts.values()):
        for queue in list(vhost.queues.values()):
            if isinstance(queue, WorkQueue) and (queue.unacked or len(queue.store)):
                queues.append(queue)
            await stepwise.between()
    queues = await ordered_page(queues, lambda queue: (queue.vhost, queue.name), False, 0, len(queues))
    streams = list(context.service.store.queues.values())
    streams = await ordered_page(streams, lambda stream: (stream.name,), False, 0, len(streams))
    if "ready" in states:
        for queue in queues:  # a step of a search seldom gets to the last one, so ``may`` is asked late
            if may(queue.vhost, queue.name):
                yield Ready(context, 1, queue)
    if "unacked" in states:
        held = await _held(context, stepwise)
        for queue in queues:
            if queue.id in held and may(queue.vhost, queue.name):
                yield Unacked(context, 2, queue, held[queue.id])
    if "delayed" in states and with_delayed:
        yield Delayed(context, 3, list(context.broker.flow.delayed))
    if "retained" in states:
        for stream in streams:
            if may("/", stream.name):
                yield Retained(context, 4, stream, "/")
    if "dead" in states:
        for queue in queues:
            if may(queue.vhost, queue.name):
                yield Ready(context, 5, queue, dead_only=True)
        for stream in streams:
            if may("/", stream.name):
                yield Letters(context, 6, stream, "/")


async def _held(context: Context, stepwise: Stepwise) -> dict[int, list[Lease]]:
    """What consumers hold, by the queue's id."""
    held: dict[int, list[Lease]] = {}
    for session in list(context.broker.sessions):
        for lease in session.outstanding():
            held.setdefault(lease.queue.id, []).append(lease)
        await stepwise.between()
    return held
