"""What the dashboard shows of a queue, read from the queue itself at one moment.

Owns: the columns and the row they make. Must not touch: state, wire paths. An unknown value is None, never 0.
A list of 20,000 queues is sorted by one column, and only the queues of the page become rows.
"""

from collections.abc import Callable
from typing import Final, TypeGuard

import msgspec

from holtmq.auth.users import DEFAULT_VHOST
from holtmq.broker.figures.rings import Ring
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.pausing import Pause
from holtmq.broker.publish.publish_properties import DIRECT_REPLY_TO
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.work.priority_levels import Levels
from holtmq.broker.work.spilling_fifo import SpillingFifo
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.context import Context

DIED_MOST: Final = 1_000  # dead letters of a stream that are counted
_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _US
_DEATHS: Final = b"\x07x-death"  # the header's name as a field of a table
_HIDDEN: Final = DIRECT_REPLY_TO + "."
_READ_BACK_AT_ONCE: Final = 20  # queue heads read from disk per request; ``oldest`` of the rest is unknown


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
    paused_reason: str = ""
    holds_dead_letters: bool = False  # its messages died in other queues


COLUMNS: Final = frozenset(QueueRow.__struct_fields__) - {
    "paused_since",
    "paused_by",
    "paused_reason",
    "holds_dead_letters",
}  # to sort by


def is_shown(queue: Queue) -> TypeGuard[WorkQueue]:
    """Whether it is a work queue that an operator knows. Partitioned queues are read from their own store."""
    return isinstance(queue, WorkQueue) and not queue.name.startswith(_HIDDEN)


class WorkColumns:
    """The columns of work queues now. Each method is a column of ``QueueRow``."""

    def __init__(self, context: Context, now: float) -> None:
        self._pager = context.broker.flow.pager
        self._now = now
        self._now_ms = int(now * 1000)
        self._second = int(now)
        self._may_read = _READ_BACK_AT_ONCE

    def column(self, name: str) -> Callable[[WorkQueue], object]:
        """How to read the column of this name, one of ``COLUMNS``."""
        found: Callable[[WorkQueue], object] = getattr(self, name)
        return found

    def sort_key(self, name: str) -> Callable[[WorkQueue], object]:
        """What to sort by for the column of this name: an order as that of its values, read faster."""
        return self._waiting_ms if name == "oldest" else self.column(name)

    def _waiting_ms(self, queue: WorkQueue) -> int | None:
        arrived_ms = self.arrived_ms(queue)
        return None if arrived_ms is None else self._now_ms - arrived_ms

    def row(self, queue: WorkQueue) -> QueueRow:
        pause = queue.paused
        return QueueRow(
            name=queue.name,
            vhost=queue.vhost,
            kind=self.kind(queue),
            ready=len(queue),
            unacked=queue.unacked,
            oldest=self.oldest(queue),
            incoming=self.incoming(queue),
            outgoing=self.outgoing(queue),
            acked=self.acked(queue),
            consumers=len(queue.consumers),
            died_today=self.died_today(queue),
            died_since=self.died_since(queue),
            bytes=queue.bytes,
            durable=queue.durable,
            holds_dead_letters=self.holds_dead_letters(queue),
            paused=pause is not None,
            paused_since=_since(pause),
            paused_by=_by(pause),
            paused_reason=_reason(pause),
        )

    def arrived_ms(self, queue: WorkQueue) -> int | None:
        """When the oldest ready message arrived; None: there is none, or it would have to be read from disk
        and this request has read enough."""
        store = queue.store
        if not isinstance(store, Levels):
            return store.ready[0].arrived_ms if store.ready else self._head_ms(store)
        # The next message of a queue with priorities is not its oldest one.
        found = [self._head_ms(fifo) for _, fifo in store.by_level(highest_first=True)]
        return None if None in found else min((at for at in found if at is not None), default=None)

    def _head_ms(self, fifo: SpillingFifo) -> int | None:
        if not fifo.ready:
            if not len(fifo) or not self._may_read:
                return None
            self._may_read -= 1
        head = fifo.peek(self._pager)
        return None if head is None else head.arrived_ms

    def holds_dead_letters(self, queue: WorkQueue) -> bool:
        """Whether its next message has died in another queue; False if that message is on disk."""
        store = queue.store
        fifos = (
            [fifo for _, fifo in store.by_level(highest_first=True)] if isinstance(store, Levels) else [store]
        )
        for fifo in fifos:
            if fifo.ready:
                head = fifo.peek(self._pager)
                return head is not None and _DEATHS in head.header
        return False

    def name(self, queue: WorkQueue) -> str:
        return queue.name

    def vhost(self, queue: WorkQueue) -> str:
        return queue.vhost

    def kind(self, queue: WorkQueue) -> str:
        return queue.options.queue_type.value

    def ready(self, queue: WorkQueue) -> int:
        return len(queue.store)

    def unacked(self, queue: WorkQueue) -> int:
        return queue.unacked

    def oldest(self, queue: WorkQueue) -> float | None:
        arrived_ms = self.arrived_ms(queue)
        return None if arrived_ms is None else max(0.0, round(self._now - arrived_ms / 1000, 1))

    def incoming(self, queue: WorkQueue) -> float:
        return _rate(queue.figures.ring, self._second, 0)

    def outgoing(self, queue: WorkQueue) -> float:
        return _rate(queue.figures.ring, self._second, 1)

    def acked(self, queue: WorkQueue) -> float:
        return _rate(queue.figures.ring, self._second, 2)

    def consumers(self, queue: WorkQueue) -> int:
        return len(queue.consumers)

    def groups(self, _: WorkQueue) -> None:
        return None

    def dead_letters(self, _: WorkQueue) -> None:
        return None

    def died_today(self, queue: WorkQueue) -> int:
        died = queue.figures.dead_letters
        return 0 if died is None else died.within_a_day(int(self._now * 1000))[0]

    def died_since(self, queue: WorkQueue) -> int | None:
        died = queue.figures.dead_letters
        return None if died is None else died.within_a_day(int(self._now * 1000))[1]

    def bytes(self, queue: WorkQueue) -> int:
        return queue.bytes

    def durable(self, queue: WorkQueue) -> bool:
        return queue.durable

    def paused(self, queue: WorkQueue) -> bool:
        return queue.paused is not None


class StreamColumns:
    """The same columns of partitioned queues. ``oldest_unread``: seconds by queue, over its groups."""

    def __init__(self, context: Context, now: float, oldest_unread: dict[str, float]) -> None:
        self._context = context
        self._now = now
        self._second = int(now)
        self._oldest_unread = oldest_unread

    def column(self, name: str) -> Callable[[PartitionedQueue], object]:
        """How to read the column of this name, one of ``COLUMNS``."""
        found: Callable[[PartitionedQueue], object] = getattr(self, name)
        return found

    def sort_key(self, name: str) -> Callable[[PartitionedQueue], object]:
        """As ``WorkColumns.sort_key``: an age in milliseconds."""
        return self._waiting_ms if name == "oldest" else self.column(name)

    def _waiting_ms(self, queue: PartitionedQueue) -> float | None:
        seconds = self._oldest_unread.get(queue.name)
        return None if seconds is None else seconds * 1000

    def row(self, queue: PartitionedQueue) -> QueueRow:
        died_today, died_since = self._died(queue)
        return QueueRow(
            name=queue.name,
            vhost=DEFAULT_VHOST,
            kind="stream",
            ready=queue.log.live,
            unacked=None,
            oldest=self.oldest(queue),
            incoming=self.incoming(queue),
            outgoing=self.outgoing(queue),
            acked=self.acked(queue),
            consumers=self.consumers(queue),
            groups=len(queue.groups),
            dead_letters=len(queue.dead_letters),
            died_today=died_today,
            died_since=died_since,
            paused=queue.paused is not None,
            paused_since=_since(queue.paused),
            paused_by=_by(queue.paused),
            paused_reason=_reason(queue.paused),
        )

    def name(self, queue: PartitionedQueue) -> str:
        return queue.name

    def vhost(self, _: PartitionedQueue) -> str:
        return DEFAULT_VHOST

    def kind(self, _: PartitionedQueue) -> str:
        return "stream"

    def ready(self, queue: PartitionedQueue) -> int:
        return queue.log.live

    def unacked(self, _: PartitionedQueue) -> None:
        return None

    def oldest(self, queue: PartitionedQueue) -> float | None:
        return self._oldest_unread.get(queue.name)

    def incoming(self, queue: PartitionedQueue) -> float:
        return self._rate(queue, 0)

    def outgoing(self, queue: PartitionedQueue) -> float:
        return self._rate(queue, 1)

    def acked(self, queue: PartitionedQueue) -> float:
        return self._rate(queue, 2)

    def consumers(self, queue: PartitionedQueue) -> int:
        vhost = self._context.broker.vhosts.get(DEFAULT_VHOST)
        amqp = vhost.queues.get(queue.name) if vhost is not None else None
        return len(amqp.consumers) if amqp is not None else 0

    def groups(self, queue: PartitionedQueue) -> int:
        return len(queue.groups)

    def dead_letters(self, queue: PartitionedQueue) -> int:
        return len(queue.dead_letters)

    def died_today(self, queue: PartitionedQueue) -> int:
        return self._died(queue)[0]

    def died_since(self, queue: PartitionedQueue) -> int | None:
        return self._died(queue)[1]

    def bytes(self, _: PartitionedQueue) -> None:
        return None

    def durable(self, _: PartitionedQueue) -> bool:
        return True

    def paused(self, queue: PartitionedQueue) -> bool:
        return queue.paused is not None

    def _rate(self, queue: PartitionedQueue, series: int) -> float:
        return _rate(self._context.sampler.partitioned.get(queue.name), self._second, series)

    def _died(self, queue: PartitionedQueue) -> tuple[int, int | None]:
        count, since_us = queue.dead_letters.since(int(self._now * _US) - _DAY_US, DIED_MOST)
        return count, None if since_us is None else since_us // 1000


def _rate(ring: Ring | None, second: int, series: int) -> float:
    return 0.0 if ring is None else round(ring.rate(second, series), 1)


def _since(pause: Pause | None) -> int | None:
    return None if pause is None else pause.since_ms


def _reason(pause: Pause | None) -> str:
    return "" if pause is None else pause.reason


def _by(pause: Pause | None) -> str | None:
    return None if pause is None else pause.by
