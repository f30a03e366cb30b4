"""Queues of both kinds as rows of one table, read in steps and cached for a second.

Owns: what a row contains. Must not touch: state, wire paths. An unknown value is None, never 0.
"""

from typing import Final, TypedDict

import msgspec

from holtmq.broker.figures.rings import RATE_SECONDS, Ring
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.pausing import Pause
from holtmq.broker.publish.publish_properties import DIRECT_REPLY_TO
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.dashboard.fresh import Fresh
from holtmq.http.engine.context import Context
from holtmq.http.engine.stepwise import Stepwise

FRESH_SECONDS: Final = 1.0
_US: Final = 1_000_000
_LOOK_EVERY: Final = 32  # queues between two looks at the clock
_SETTLED_SECONDS: Final = RATE_SECONDS + 3  # after that the rates of an idle queue are 0
_HIDDEN: Final = DIRECT_REPLY_TO + "."
DIED_MOST: Final = 1_000  # dead letters of a stream that are counted
_DAY_US: Final = 86_400 * _US
_READ_BACK_AT_ONCE: Final = 20  # queue heads read from disk per table; ``oldest`` of the rest stays unknown


class QueueRow(msgspec.Struct, kw_only=True, gc=False):
    """One queue. Rates are messages per second; ``oldest`` is in seconds."""

    name: str
    vhost: str
    kind: str  # classic, quorum, stream
    ready: int  # a stream's stored messages
    unacked: int | None
    oldest: float | None
    incoming: float | None
    outgoing: float | None
    acked: float | None
    consumers: int
    groups: int | None = None
    dead_letters: int | None = None  # stored now; a work queue's lie in other queues
    died_today: int = 0  # messages dead-lettered in the last 24 hours; a stream's: ``DIED_MOST`` at most
    died_since: int | None = None  # milliseconds
    bytes: int | None = None
    durable: bool = True
    paused: bool = False
    paused_since: int | None = None  # milliseconds
    paused_by: str | None = None


class QueueTable(msgspec.Struct):
    """All queues, in no particular order, and their sums."""

    rows: list[QueueRow]
    ready: int = 0  # in work queues
    stored: int = 0  # in partitioned queues
    unacked: int = 0
    consumers: int = 0

    def add(self, row: QueueRow) -> None:
        self.rows.append(row)
        if row.kind == "stream":
            self.stored += row.ready
        else:
            self.ready += row.ready
        self.unacked += row.unacked or 0
        self.consumers += row.consumers


class _Kept:
    """A row of a work queue, used again as long as nothing happens there: most queues are idle."""

    __slots__ = ("head_at", "row")

    def __init__(self, row: QueueRow, head_at: float | None) -> None:
        self.row = row
        self.head_at = head_at  # when the oldest message arrived

    def is_current(self, queue: WorkQueue, now: float) -> bool:
        """Whether the row still holds; its age is brought up to date."""
        row, ring = self.row, queue.figures.ring
        if (
            row.ready != len(queue.store)
            or row.unacked != queue.unacked
            or row.consumers != len(queue.consumers)
            or row.paused is not (queue.paused is not None)
            or queue.figures.dead_letters is not None
            or (ring is not None and now - ring.counted_at < _SETTLED_SECONDS)
        ):
            return False
        if self.head_at is not None:
            row.oldest = round(now - self.head_at, 1)
        return True


class QueueTables:
    """The table of all queues, rebuilt when it is older than a second."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.oldest_unread: dict[str, float] = {}  # seconds by stream, over its groups, at the last count
        self._kept: dict[int, _Kept] = {}  # rows of work queues that were not used since, by the queue's id
        self._table = Fresh(self._read, context.clock, FRESH_SECONDS)

    async def queues(self) -> QueueTable:
        """The current table."""
        return await self._table.get()

    async def _read(self, now: float) -> QueueTable:
        context, stepwise = self._context, Stepwise()
        table = QueueTable([])
        known, self._kept = self._kept, {}
        read_back = 0
        for vhost in list(context.broker.vhosts.values()):
            for place, queue in enumerate(list(vhost.queues.values())):
                if not place % _LOOK_EVERY:
                    await stepwise.between()
                if not isinstance(queue, WorkQueue) or queue.name.startswith(_HIDDEN):
                    continue
                kept = known.get(queue.id)
                if kept is None or not kept.is_current(queue, now):
                    in_memory = queue.store.in_memory > 0
                    read_back += len(queue) > 0 and not in_memory
                    may_read = in_memory or read_back <= _READ_BACK_AT_ONCE
                    row = self.work_row(queue, now, may_read=may_read)
                    kept = _Kept(row, None if row.oldest is None else now - row.oldest)
                    if not may_read:
                        table.add(row)
                        continue  # next time its turn to be read may come
                self._kept[queue.id] = kept
                table.add(kept.row)
        for stream in list(context.service.store.queues.values()):
            table.add(self.stream_row(stream, now))
            await stepwise.between()
        return table

    def work_row(self, queue: WorkQueue, now: float, *, may_read: bool = True) -> QueueRow:
        """The current row of a work queue."""
        rates = _rates(queue.figures.ring, now)
        head = queue.store.peek(self._context.broker.flow.pager) if may_read and len(queue) else None
        died = queue.figures.dead_letters
        died_today, died_since = (0, None) if died is None else died.within_a_day(int(now * 1000))
        return QueueRow(
            name=queue.name,
            vhost=queue.vhost,
            kind=queue.options.queue_type.value,
            ready=len(queue),
            unacked=queue.unacked,
            oldest=None if head is None else max(0.0, round(now - head.arrived_ms / 1000, 1)),
            incoming=rates[0],
            outgoing=rates[1],
            acked=rates[2],
            consumers=len(queue.consumers),
            died_today=died_today,
            died_since=died_since,
            bytes=queue.bytes,
            durable=queue.durable,
            **_pause(queue.paused),
        )

    def stream_row(self, queue: PartitionedQueue, now: float) -> QueueRow:
        """The current row of a partitioned queue."""
        context = self._context
        rates = _rates(context.sampler.partitioned.get(queue.name), now)
        vhost = context.broker.vhosts.get("/")
        amqp = vhost.queues.get(queue.name) if vhost is not None else None
        died_today, died_us = queue.dead_letters.since(int(now * _US) - _DAY_US, DIED_MOST)
        return QueueRow(
            name=queue.name,
            vhost="/",
            kind="stream",
            ready=queue.log.live,
            unacked=None,
            oldest=self.oldest_unread.get(queue.name),
            incoming=rates[0],
            outgoing=rates[1],
            acked=rates[2],
            consumers=len(amqp.consumers) if amqp is not None else 0,
            groups=len(queue.groups),
            dead_letters=len(queue.dead_letters),
            died_today=died_today,
            died_since=None if died_us is None else died_us // 1000,
            **_pause(queue.paused),
        )


def _rates(ring: Ring | None, now: float) -> list[float]:
    return [0.0, 0.0, 0.0] if ring is None else [round(rate, 1) for rate in ring.rates(int(now))]


class _Paused(TypedDict):
    paused: bool
    paused_since: int | None
    paused_by: str | None


def _pause(pause: Pause | None) -> _Paused:
    if pause is None:
        return {"paused": False, "paused_since": None, "paused_by": None}
    return {"paused": True, "paused_since": pause.since_ms, "paused_by": pause.by}
